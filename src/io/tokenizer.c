/* Tokenizers: text to ids and back, with the same results as Hugging Face's tokenizers 0.23.
 *
 * It reads the parts of a tokenizer.json of two families, byte-level BPE (GPT-2, Llama 3, Qwen) and
 * SentencePiece's BPE and Unigram (Llama 2, Mistral, Gemma, T5, XLM-R):
 *
 *     normalizer      tokenizer_steps.c, tokenizer_normal.c, tokenizer_charsmap.c
 *     pre_tokenizer   tokenizer_steps.c, tokenizer_regex.c; run by tokenizer_stream.c
 *     model           tokenizer_vocab.c; tokenizer_bpe.c, tokenizer_unigram.c
 *     decoder         tokenizer_steps.c, tokenizer_decode.c
 *     post_processor  here; special tokens are added on demand, from a template of one sequence
 *
 * Everything else is refused by name, as an ignored setting could change tokens. An id's bytes are
 * those it stands for in byte-level BPE, else its text; an added token's are its content. */
#include "tokenizer.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

/* ---- post_processor ---- */

static void add_special(Json j, const char *name, int64_t id, uint32_t *list, int *count, int most)
{
    if (id < 0 || id >= NO_TOKEN || *count == most)
        fail(arena_ctx(j.a), TN_FAIL, "%s: special token \"%s\": bad id, or too many", j.where,
             name);
    list[(*count)++] = (uint32_t)id;
}

/* The ids of a template's special token. */
static void add_template(Tokenizer *t, Json j, Json item, bool after)
{
    const char *name = json_get_string(json_get_object(item, "SpecialToken"), "id");
    int64_t id[LEN(t->special.before)];
    Json all = json_get_object(j, "special_tokens"), token = json_get_object(all, name);
    int n = json_get_ints(token, "ids", LEN(id), id);
    for (int i = 0; i < n; i++)
        add_special(j, name, id[i], after ? t->special.after : t->special.before,
                    after ? &t->special.nafter : &t->special.nbefore, LEN(t->special.before));
}

static void read_template(Tokenizer *t, Json j)
{
    bool after = false;
    for (size_t i = 0; i < json_count(j, "single"); i++) {
        Json item = json_item(j, "single", i);
        if (json_has(item, "SpecialToken"))
            add_template(t, j, item, after);
        else if (after || strcmp(json_get_string(json_get_object(item, "Sequence"), "id"), "A"))
            fail(t->ctx, TN_FAIL, "%s: expected the sequence \"A\" once", item.where);
        else
            after = true;
    }
    if (!after)
        fail(t->ctx, TN_FAIL, "%s: key \"single\" has no sequence", j.where);
}

/* cls and sep, each ["token", id]. */
static void read_roberta(Tokenizer *t, Json j)
{
    json_t *cls = json_array_get(json_object_get(j.object, "cls"), 1);
    json_t *sep = json_array_get(json_object_get(j.object, "sep"), 1);
    if (!json_is_integer(cls) || !json_is_integer(sep))
        fail(t->ctx, TN_FAIL, "%s: expected \"cls\" and \"sep\" as [\"token\", id]", j.where);
    add_special(j, "cls", json_integer_value(cls), t->special.before, &t->special.nbefore,
                LEN(t->special.before));
    add_special(j, "sep", json_integer_value(sep), t->special.after, &t->special.nafter,
                LEN(t->special.after));
}

static void read_post_processor(Tokenizer *t, Arena *a, Json j, int depth)
{
    const char *type = json_get_string(j, "type");
    bool adds = !strcmp(type, "TemplateProcessing") || !strcmp(type, "RobertaProcessing") ||
                !strcmp(type, "BertProcessing");
    if (!strcmp(type, "Sequence"))
        for (size_t i = 0; i < json_count(j, "processors"); i++)
            read_post_processor(t, a, step_item(j, "processors", i, depth), depth + 1);
    else if (adds && (t->special.nbefore || t->special.nafter))
        t->special.post = "more than one post_processor that adds them is not supported";
    else if (!strcmp(type, "TemplateProcessing"))
        read_template(t, j);
    else if (adds)
        read_roberta(t, j);
    else if (strcmp(type, "ByteLevel"))
        t->special.post = arena_printf(a, "post_processor of type \"%s\" is not supported", type);
}

/* ---- the whole file ---- */

static void check_root(Tokenizer *t, Json root)
{
    static const char *const off[] = {"truncation", "padding"};
    json_check_keys(root, "version|truncation|padding|added_tokens|normalizer|pre_tokenizer|"
                          "post_processor|decoder|model");
    const char *version = json_find_string(root, "version", "1.0");
    if (strcmp(version, "1.0"))
        fail(t->ctx, TN_FAIL, "%s: expected version \"1.0\", found \"%s\"", root.where, version);
    for (int i = 0; i < LEN(off); i++)
        if (json_has(root, off[i]))
            fail(t->ctx, TN_FAIL, "%s: \"%s\" is not supported", root.where, off[i]);
}

static void check_special(const Tokenizer *t)
{
    size_t n;
    for (int i = 0; i < t->special.nbefore + t->special.nafter; i++) {
        uint32_t id = i < t->special.nbefore ? t->special.before[i]
                                             : t->special.after[i - t->special.nbefore];
        if (!tokenizer_bytes(t, id, &n))
            fail(t->ctx, TN_FAIL, "%s: \"post_processor\": no token has the id %u", t->path, id);
    }
}

static void fill(Tokenizer *t, Arena *a, Arena *tmp, Json root)
{
    Json post = json_find_object(root, "post_processor");
    check_root(t, root);
    steps_fill(t, a, root);
    vocab_fill(t, a, tmp, root);
    if (post.object)
        read_post_processor(t, a, post, 0);
    check_special(t);
}

static void drop_tmp(void *slot)
{
    arena_free(*(Arena **)slot);
}

/* Memory for reading: freed with `a` where reading fails, at the end where it does not. */
static Arena **new_tmp(Arena *a)
{
    Arena **slot = NEW(a, Arena *);
    arena_defer(a, drop_tmp, slot);
    *slot = arena_new(arena_ctx(a));
    if (!*slot)
        fail(arena_ctx(a), TN_FAIL, "out of memory");
    return slot;
}

static Tokenizer *new_tokenizer(Arena *a, const char *path)
{
    Tokenizer *t = NEW(a, Tokenizer);
    t->ctx = arena_ctx(a);
    t->path = arena_strdup(a, path);
    return t;
}

static Tokenizer *finish(Arena *a, Arena **tmp, Json root)
{
    Tokenizer *t = new_tokenizer(a, root.where);
    fill(t, a, *tmp, root);
    arena_free(*tmp);
    *tmp = NULL;
    return t;
}

static Tokenizer *new_bytes(Arena *a)
{
    Tokenizer *t = new_tokenizer(a, "bytes");
    t->bytes = true;
    t->ntoken = 256;
    t->token = NEWN(a, VocabEntry, t->ntoken);
    char *all = NEWN(a, char, t->ntoken);
    for (int i = 0; i < t->ntoken; i++) {
        all[i] = (char)i;
        t->token[i] = (VocabEntry){.bytes = &all[i], .n = 1, .id = (uint32_t)i};
    }
    return t;
}

/* SentencePiece's own file is not read; transformers makes the other of it. */
_Noreturn static void fail_model(Arena *a, const char *folder, const char *path)
{
    Buf quoted = {.a = a};
    buf_add(&quoted, "");
    for (; *folder; folder++) /* for the shell */
        buf_addn(&quoted, *folder == '\'' ? "'\\''" : folder, *folder == '\'' ? 4 : 1);
    fail(arena_ctx(a), TN_FAIL,
         "%s: a SentencePiece model, which is not read; expected a tokenizer.json beside it\n"
         "  this line of Python writes it:\n"
         "  python3 -c 'import sys; from transformers import AutoTokenizer as T; "
         "T.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' '%s'",
         path, quoted.text);
}

/* The folder of a file. */
static const char *folder_of(Arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? arena_strndup(a, path, (size_t)(slash - path)) : ".";
}

Tokenizer *tokenizer_open(Arena *a, const char *path)
{
    struct stat st;
    size_t n = strlen(path);
    if (!strcmp(path, "bytes"))
        return new_bytes(a);
    Arena **tmp = new_tmp(a);
    if (n > 6 && !strcmp(path + n - 6, ".model"))
        fail_model(a, folder_of(*tmp, path), path);
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) {
        const char *model = arena_printf(*tmp, "%s/tokenizer.model", path), *folder = path;
        path = arena_printf(*tmp, "%s/tokenizer.json", path);
        if (stat(path, &st) && !stat(model, &st))
            fail_model(a, folder, model);
    }
    return finish(a, tmp, json_read(*tmp, path));
}

typedef struct JsonText {
    const char *at;
    size_t left;
} JsonText;

static size_t next_text(void *buffer, size_t size, void *data)
{
    JsonText *x = data;
    size_t n = MIN(size, x->left);
    memcpy(buffer, x->at, n);
    x->at += n;
    x->left -= n;
    return n;
}

Tokenizer *tokenizer_parse(Arena *a, const char *text, size_t n, const char *where)
{
    Arena **tmp = new_tmp(a);
    JsonText x = {text, n};
    return finish(a, tmp, json_stream(*tmp, next_text, &x, where));
}

/* ---- ids ---- */

int64_t tokenizer_limit(const Tokenizer *t)
{
    return (int64_t)t->token[t->ntoken - 1].id + 1;
}

static const VocabEntry *find_id(const Tokenizer *t, int64_t id)
{
    int64_t lo = 0, hi = t->ntoken;
    if (id >= 0 && id < hi && t->token[id].id == id) /* no gaps before it */
        return &t->token[id];
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (t->token[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->ntoken && t->token[lo].id == id ? &t->token[lo] : NULL;
}

const char *tokenizer_bytes(const Tokenizer *t, int64_t id, size_t *n)
{
    const VocabEntry *x = find_id(t, id);
    *n = x ? x->n : 0;
    return x ? x->bytes : NULL;
}

const char *tokenizer_shown(const Tokenizer *t, int64_t id, size_t *n)
{
    const VocabEntry *x = find_id(t, id);
    if (!x || !x->shown)
        return tokenizer_bytes(t, id, n);
    *n = strlen(x->shown);
    return x->shown;
}

int64_t tokenizer_find(const Tokenizer *t, const char *text)
{
    size_t n = strlen(text);
    for (int i = 0; i < t->ntoken; i++)
        if (t->token[i].n == n && !memcmp(t->token[i].bytes, text, n))
            return t->token[i].id;
    return -1;
}
