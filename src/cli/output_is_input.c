/* Refuses a command that would read and write the same file, before anything is opened, as the
 * output would destroy the input. Files are compared by device and inode, so that other spellings,
 * links and standard input from the file are found too. */
#include "../train/train.h"
#include "cli.h"

#include <dirent.h>
#include <fnmatch.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool same(const struct stat *x, const struct stat *y)
{
    return x->st_dev == y->st_dev && x->st_ino == y->st_ino;
}

/* Files that are read of a model's or a tokenizer's folder. */
static bool is_model_file(const char *name)
{
    static const char *const patterns[] = {"config.json",
                                           "generation_config.json",
                                           "state.json",
                                           "adapter_config.json",
                                           "adapter_model.safetensors",
                                           "model*.safetensors*",
                                           "optimizer.safetensors",
                                           "special_tokens_map.json",
                                           "tokenizer*",
                                           "vocab.json",
                                           "merges.txt",
                                           "added_tokens.json"};
    for (int i = 0; i < LEN(patterns); i++)
        if (!fnmatch(patterns[i], name, 0))
            return true;
    return false;
}

/* all: any file of it, as of a folder of data. */
static bool folder_has(const char *folder, const struct stat *out, bool all)
{
    struct stat st;
    bool found = false;
    DIR *d = opendir(folder);
    if (!d)
        return false;
    for (struct dirent *e; !found && (e = readdir(d));)
        found = (all || is_model_file(e->d_name)) && !fstatat(dirfd(d), e->d_name, &st, 0) &&
                same(&st, out);
    closedir(d);
    return found;
}

static bool pattern_has(const char *pattern, const struct stat *out)
{
    struct stat st;
    glob_t g;
    bool found = false;
    if (glob(pattern, 0, NULL, &g))
        return false;
    for (size_t i = 0; i < g.gl_pathc && !found; i++)
        found = !stat(g.gl_pathv[i], &st) && same(&st, out);
    globfree(&g);
    return found;
}

/* Whether what `input` names (a file, - , a pattern, a folder of a model or of a run) has the
 * file. */
static bool has(const char *input, const struct stat *out)
{
    struct stat st;
    char latest[PATH_MAX];
    if (!input)
        return false;
    if (!strcmp(input, "-"))
        return !fstat(STDIN_FILENO, &st) && same(&st, out);
    if (stat(input, &st))
        return pattern_has(input, out);
    if (!S_ISDIR(st.st_mode))
        return same(&st, out);
    if (snprintf(latest, sizeof latest, "%s/latest", input) >= (int)sizeof latest)
        return false;
    return folder_has(input, out, false) || folder_has(latest, out, false);
}

static bool option_has(const Option *o, const struct stat *out)
{
    if (o->kind == OPT_IN)
        return has(*(const char **)o->into, out);
    const Texts *t = o->into;
    for (int i = 0; o->kind == OPT_INS && i < t->count; i++)
        if (has(t->text[i], out) || folder_has(t->text[i], out, true))
            return true;
    return false;
}

/* Whether a file that is made there would be one of a folder of which all files are read, but for
 * hidden ones, or one that a pattern matches. */
static bool would_be_input(const Option *o, const char *path)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const Texts *t = o->into;
    struct stat st;
    const int n = slash ? (int)(slash - path) + (slash == path) : 1;
    if (o->kind != OPT_INS || *name == '.' || n >= (int)sizeof parent)
        return false;
    snprintf(parent, sizeof parent, "%.*s", n, slash ? path : ".");
    for (int i = 0; i < t->count; i++) {
        const bool there = !stat(t->text[i], &st);
        if (there ? S_ISDIR(st.st_mode) && path_same(t->text[i], parent)
                  : !fnmatch(t->text[i], path, FNM_PATHNAME | FNM_PERIOD))
            return true;
    }
    return false;
}

/* Whether a file is there that is none of the traces which the option writes. */
static bool is_no_trace(const Option *o, const char *path)
{
    static const char begins[] = "{\"displayTimeUnit\": \"ms\", ";
    char head[sizeof begins] = "";
    if (!word_among("profile trace", o->name))
        return false;
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(head, 1, sizeof begins - 1, f) : 0;
    if (f)
        fclose(f);
    return n && strcmp(head, begins) != 0;
}

static int check_output(const Command *c, const Option *table, const Texts *args, const Option *out)
{
    struct stat st;
    const char *path = *(const char **)out->into;
    if (!path || !strcmp(path, "-"))
        return -1;
    bool there = !stat(path, &st);
    if (there && !S_ISREG(st.st_mode)) /* a device or a pipe */
        return -1;
    for (const Option *o = table; o < out; o++)
        if (o->kind == OPT_OUT && *(const char **)o->into &&
            (!strcmp(path, *(const char **)o->into) || path_same(path, *(const char **)o->into)))
            return report(TN_CODE_USAGE, "%s: --%s: %s is an output already (--%s)", c->name,
                          out->name, path, o->name);
    for (const Option *o = table; there && o->kind; o++)
        if (option_has(o, &st))
            return report(TN_CODE_USAGE, "%s: --%s: %s is an input (--%s)", c->name, out->name,
                          path, o->name);
    if (there && is_no_trace(out, path))
        return report(TN_CODE_USAGE,
                      "%s: --%s: %s is there already and no trace: it is not replaced", c->name,
                      out->name, path);
    for (const Option *o = table; !there && o->kind; o++)
        if (would_be_input(o, path))
            return report(TN_CODE_USAGE, "%s: --%s: %s would be one of the files of --%s", c->name,
                          out->name, path, o->name);
    for (int i = 0; there && i < args->count; i++)
        if (has(args->text[i], &st))
            return report(TN_CODE_USAGE, "%s: --%s: %s is an input (%s)", c->name, out->name, path,
                          args->text[i]);
    return -1;
}

/* Whether the path is known and must be writable now: train and tune open their files themselves,
 * early, and train makes folders; ranks have names of their own. */
static bool is_known(const Command *c, const Option *o)
{
    const char *path = o->kind == OPT_OUT || o->kind == OPT_ONTO ? *(const char **)o->into : NULL;
    return path && strcmp(c->name, "train") != 0 && strcmp(c->name, "tune") != 0 &&
           !strstr(path, "%r");
}

int check_paths(const Command *c, const Option *table, const Texts *args)
{
    int code = -1;
    for (const Option *o = table; o->kind && code < 0; o++)
        if (o->kind == OPT_OUT)
            code = check_output(c, table, args, o);
    for (const Option *o = table; o->kind && code < 0; o++)
        if (is_known(c, o) && check_writable(*(const char **)o->into))
            code = TN_CODE_FAIL;
    return code;
}

/* ---- a folder that is renamed ---- */

static bool is_inside(const char *path, const char *folder)
{
    char real[PATH_MAX];
    size_t n = strlen(folder);
    return path && realpath(path, real) && !strncmp(real, folder, n) &&
           (!real[n] || real[n] == '/');
}

static bool pattern_inside(const char *pattern, const char *folder)
{
    glob_t g;
    bool found = is_inside(pattern, folder);
    if (found || !pattern || glob(pattern, 0, NULL, &g))
        return found;
    for (size_t i = 0; i < g.gl_pathc && !found; i++)
        found = is_inside(g.gl_pathv[i], folder);
    globfree(&g);
    return found;
}

/* The first input that is in the folder, NULL where none is. */
static const char *find_inside(const Option *table, const Texts *args, const char *folder)
{
    for (int i = 0; i < args->count; i++)
        if (is_inside(args->text[i], folder))
            return args->text[i];
    for (const Option *o = table; o->kind; o++) {
        const Texts *t = o->into;
        if (o->kind == OPT_IN && is_inside(*(const char **)o->into, folder))
            return *(const char **)o->into;
        for (int i = 0; o->kind == OPT_INS && i < t->count; i++)
            if (pattern_inside(t->text[i], folder))
                return t->text[i];
    }
    return NULL;
}

int check_renamed(const Command *c, const char *option, const char *folder, const Option *table,
                  const Texts *args)
{
    char real[PATH_MAX];
    if (!realpath(folder, real))
        return -1;
    const char *input = find_inside(table, args, real);
    if (input)
        return report(TN_CODE_USAGE, "%s: --%s: %s is to be read, and in %s, which is renamed",
                      c->name, option, input, folder);
    if (is_inside(".", real))
        return report(TN_CODE_USAGE, "%s: --%s: this process works in %s, which is renamed",
                      c->name, option, real);
    return -1;
}
