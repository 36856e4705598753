/* For folders whose weights are not safetensors: the line of Python that converts them. */
#include "api.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <string.h>
#include <unistd.h>

/* clang-format off */
/* The line for a folder and its files. Tensors that share memory are copied, as safetensors refuses
 * them. */
static const char torch[] =
    "import sys, torch; from safetensors.torch import save_file; "
    "save_file({k: v.clone(memory_format=torch.contiguous_format) for f in sys.argv[2:] "
    "for k, v in torch.load(f, \"cpu\", weights_only=True).items()}, "
    "sys.argv[1] + \"/model.safetensors\", {\"format\": \"pt\"})";
static const char gguf[] =
    "import sys; from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained(sys.argv[1], gguf_file=sys.argv[2]).save_pretrained(sys.argv[1])";
/* clang-format on */

/* Patterns of file names, the surest first, and what converts them; NULL: no line is sure to. */
static const struct {
    const char *pattern, *line;
} kinds[] = {{"pytorch_model*.bin", torch},
             {"*.gguf", gguf},
             {"*.pth", torch},
             {"*.pt", torch},
             {"*.ckpt", torch},
             {"*.safetensors", NULL},
             {"*.h5", NULL},
             {"*.msgpack", NULL}};

/* Files that trainers put beside the weights. */
static const char *const beside[] = {"optimizer*", "scheduler*", "rng_state*", "training_args*",
                                     "scaler*"};

static bool is_beside(const char *name)
{
    return globs_match(&(Globs){beside, LEN(beside)}, name);
}

/* The first name in a folder, in the order of strcmp, that a pattern matches; NULL: none. */
static const char *find_file(Arena *a, const char *folder, const char *pattern)
{
    const char *first = NULL;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (!fnmatch(pattern, e->d_name, 0) && !is_beside(e->d_name) &&
            (!first || strcmp(e->d_name, first) < 0))
            first = arena_strdup(a, e->d_name);
    if (d)
        closedir(d);
    return first;
}

/* A text as one word of a shell. */
static void add_word(Buf *b, const char *text)
{
    buf_add(b, " '");
    for (; *text; text++)
        buf_addn(b, *text == '\'' ? "'\\''" : text, *text == '\'' ? 4 : 1);
    buf_add(b, "'");
}

/* The line, its program, the folder, and its files as the program takes them. */
static void add_line(Buf *b, const char *folder, int kind, const char *name)
{
    bool sure = !kind || kinds[kind].line == gguf;
    buf_printf(b, "\n  this line of Python writes it%s:\n  python3 -c",
               sure ? "" : ", where that is a dictionary of tensors");
    add_word(b, kinds[kind].line);
    add_word(b, folder);
    if (kinds[kind].line == gguf) {
        add_word(b, name);
    } else if (kind) {
        add_word(b, arena_printf(b->a, "%s/%s", folder, name));
    } else {
        add_word(b, folder);
        buf_printf(b, "/%s", kinds[kind].pattern); /* for the shell, as there may be several */
    }
}

void convert_check(Arena *a, const char *folder)
{
    const char *name = NULL;
    int kind = 0;
    const char *one = arena_printf(a, "%s/model.safetensors", folder);
    const char *index = arena_printf(a, "%s/model.safetensors.index.json", folder);
    file_check_link(arena_ctx(a), one);
    if (access(one, F_OK))
        file_check_link(arena_ctx(a), index);
    if (!access(one, F_OK) || !access(index, F_OK))
        return;
    while (kind < LEN(kinds) && !(name = find_file(a, folder, kinds[kind].pattern)))
        kind++;
    if (!name)
        fail(arena_ctx(a), TN_FAIL,
             "%s: cannot open: %s\n  %s has a config.json without weights: expected "
             "model.safetensors there, or model.safetensors.index.json and what it lists\n  "
             "%s/config.json in the place of the folder is the model with initial values",
             one, strerror(ENOENT), folder, folder);
    Buf b = {.a = a};
    buf_printf(&b, "%s: expected model.safetensors, found %s", folder, name);
    if (kinds[kind].line)
        add_line(&b, folder, kind, name);
    fail(arena_ctx(a), TN_FAIL, "%s", b.text);
}
