/* Decides how --data is read. An option may say so; shards are recognised by their header, records
 * and compressed text by their form. For other files the run that the model comes from says what it
 * was trained on; if it says tokens, or nothing, files that look like text are text. Text is bytes
 * if the model has no tokenizer; else it is tokenized once, into a file beside the run, from which
 * training reads. */
#include "train.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the model's run and its tokenizer ---- */

/* The type in a checkpoint's state.json, or that of the option where an older version has saved it;
 * "" where neither says. */
static void read_type(const json_t *state, char type[TYPE_NAME])
{
    const json_t *options = json_object_get(state, "options");
    const char *text = json_string_value(json_object_get(state, "token_type"));
    if (!text)
        text = json_string_value(json_object_get(options, "token-type"));
    bool known = text && strcmp(text, "auto") != 0 && strlen(text) < TYPE_NAME;
    snprintf(type, TYPE_NAME, "%s", known ? text : "");
}

void source_run_type(const tn_model *m, char type[TYPE_NAME])
{
    char path[CHECKPOINT_PATH];
    const char *folder = tn_model_folder(m);
    *type = 0;
    if (!folder || snprintf(path, sizeof path, "%s/state.json", folder) >= (int)sizeof path)
        return;
    json_t *state = folder_json(path);
    read_type(state, type);
    json_decref(state);
}

bool source_tokenizer(const tn_model *m, char path[CHECKPOINT_PATH])
{
    static const char *const files[] = {"tokenizer.json", "tokenizer.model"};
    const char *folder = tn_model_folder(m);
    for (size_t i = 0; folder && i < sizeof files / sizeof *files; i++) {
        int n = snprintf(path, CHECKPOINT_PATH, "%s/%s", folder, files[i]);
        if (n < CHECKPOINT_PATH && (!access(path, F_OK) || errno != ENOENT))
            return true;
    }
    return false;
}

/* The path of the one that text is tokenized by; NULL: there is none. */
static const char *find_tokenizer(const Source *s, const tn_model *m, char path[CHECKPOINT_PATH])
{
    if (s->tokenizer)
        return strcmp(s->tokenizer, "bytes") != 0 ? s->tokenizer : NULL;
    return source_tokenizer(m, path) ? path : NULL;
}

const char *source_chat_folder(const tn_model *m, const char *tokenizer)
{
    struct stat st;
    bool folder = tokenizer && !stat(tokenizer, &st) && S_ISDIR(st.st_mode);
    return folder ? tokenizer : tn_model_folder(m);
}

bool source_own_tokenizer(const Source *s, char path[CHECKPOINT_PATH])
{
    struct stat st;
    const char *own = s->tokenizer;
    if (!own || !strcmp(own, "bytes"))
        return false;
    bool folder = !stat(own, &st) && S_ISDIR(st.st_mode);
    return snprintf(path, CHECKPOINT_PATH, folder ? "%s/tokenizer.json" : "%s", own) <
           CHECKPOINT_PATH;
}

/* ---- what the files are ---- */

static int open_as(tn_context *ctx, Source *s, const char *type, int64_t vocab)
{
    tn_data_free(s->files);
    s->files = NULL;
    return tn_data_open(ctx, s->npath, s->path, type, s->val_fraction, vocab, &s->files);
}

static int set_type(Source *s, const char *type)
{
    snprintf(s->type, sizeof s->type, "%s", type);
    return 0;
}

static bool is_ids(const char *type)
{
    return !strcmp(type, "u16") || !strcmp(type, "u32");
}

static int refuse(tn_context *ctx, const char *path, const char *found, const char *cure)
{
    return tn_context_fail(ctx, TN_CODE_USAGE, "%s: expected %s\n  %s", path, found, cure);
}

/* Chooses how to read files whose kind only an earlier run may have said. */
static int choose(tn_context *ctx, Source *s, const tn_model *m, const char *run, int64_t vocab)
{
    char path[CHECKPOINT_PATH];
    const char *first, *binary = tn_data_not_text(s->files);
    int64_t nbytes;
    uint64_t fingerprint;
    bool has = find_tokenizer(s, m, path) != NULL, bytes = s->tokenizer || vocab == 256;
    tn_data_file(s->files, 0, &first, &nbytes, &fingerprint);
    if (is_ids(run) && binary) {
        int code = open_as(ctx, s, run, vocab);
        return code ? code : set_type(s, run);
    }
    if (is_ids(run) && !has && !s->tokenizer)
        return refuse(ctx, first, "token ids, as the model was trained on; found text",
                      "--tokenizer names the tokenizer of the text, --token-type says what it is");
    if (binary && (has || !bytes))
        return refuse(ctx, binary, "text, found bytes that are none",
                      "--token-type u16 or u32 where these are token ids, byte where each byte is "
                      "a token");
    return set_type(s, has ? "text" : "byte");
}

/* ---- what is said of it ---- */

static FILE *log_of(const Source *s)
{
    return s->log ? s->log : stderr;
}

static void warn_bytes(const Source *s, int64_t vocab)
{
    const char *path = "data";
    int64_t nbytes;
    uint64_t fingerprint;
    tn_data_file(s->files, 0, &path, &nbytes, &fingerprint);
    fprintf(log_of(s),
            "tenon: warning: %s: each byte is taken as a token, but the model has a vocabulary of "
            "%" PRId64 "; --token-type u16 or u32 where these are token ids, byte where they are "
            "bytes, --tokenizer where they are text\n",
            path, vocab);
}

static void tell_bytes(Source *s, const char *run, int64_t vocab)
{
    const char *why = !strcmp(s->token_type, "byte") ? "--token-type byte"
                      : s->old                       ? "as the run began"
                      : s->tokenizer                 ? "--tokenizer bytes"
                      : *run                         ? "as the model was trained"
                                                     : NULL;
    if (!why && vocab != 256)
        warn_bytes(s, vocab);
    else
        snprintf(s->told, sizeof s->told, "each byte is a token (%s)",
                 why ? why : "the model has no tokenizer");
}

/* Records and compressed text are tokenized, by bytes where there is no tokenizer and the model is
 * one of bytes. */
static int take_records(tn_context *ctx, Source *s, const tn_model *m, const char *run,
                        int64_t vocab)
{
    char path[CHECKPOINT_PATH];
    const char *first;
    int64_t nbytes;
    uint64_t fingerprint;
    bool bytes = !strcmp(run, "byte") || vocab == 256 || s->tokenizer;
    tn_data_file(s->files, 0, &first, &nbytes, &fingerprint);
    if (!find_tokenizer(s, m, path) && !bytes)
        return refuse(ctx, first, "a tokenizer for what it holds, found none in the model's folder",
                      "--tokenizer names one; --token-type byte takes each byte as a token");
    return set_type(s, "text");
}

int source_open(tn_context *ctx, const tn_model *m, Source *s)
{
    char run[TYPE_NAME] = "";
    const char *type = s->token_type;
    int64_t vocab, context;
    tn_model_shape(m, &vocab, &context);
    if (!strcmp(type, "auto") && !s->tokenizer)
        source_run_type(m, run);
    if (!strcmp(run, "byte"))
        type = run;
    int code = open_as(ctx, s, type, vocab);
    if (code)
        return code;
    static const char *const types[] = {[1] = "byte", [2] = "u16", [4] = "u32"};
    int width = tn_data_width(s->files);
    bool ids = is_ids(run) && tn_data_not_text(s->files);
    if (!strcmp(s->token_type, "auto") && width == 1 && !s->old && !ids)
        code = tn_data_holds(s->files, &s->holds);
    if (code)
        return code;
    if (s->holds == TN_HOLDS_TEXTS && s->pack)
        s->holds = TN_HOLDS_TEXT_ROWS;
    if (s->holds != TN_HOLDS_PLAIN) {
        s->data = s->files;
        return take_records(ctx, s, m, run, vocab);
    }
    bool known = strcmp(type, "auto") != 0 || width > 1 || s->old;
    if (known)
        set_type(s, types[width]);
    if (!known)
        code = choose(ctx, s, m, run, vocab);
    if (!code && !strcmp(s->type, "byte"))
        tell_bytes(s, run, vocab);
    s->data = s->files;
    return code;
}

/* ---- text to tokens ---- */

bool source_is_text(const Source *s)
{
    return !strcmp(s->type, "text");
}

typedef struct TokenizingLine {
    const Source *s;
    double start, last; /* seconds */
    bool told;
} TokenizingLine;

/* On a terminal a line that is rewritten, elsewhere one once it takes a while. */
static int show_progress(void *arg, int64_t done, int64_t total)
{
    TokenizingLine *p = arg;
    double now = wall_sec(), rate = (double)done * 1e-6 / (now - p->start + 1e-9);
    if (p->s->pause && p->s->pause(p->s->pause_arg))
        return 1;
    if (p->s->progress ? now < p->last + 0.2 : p->told || now < p->start + 2)
        return 0;
    p->last = now;
    p->told = true;
    char text[120];
    snprintf(text, sizeof text, "tokenizing: %5.1f %% of %.1f MB, %.1f MB/s",
             100 * (double)done / (double)total, (double)total * 1e-6, rate);
    if (p->s->progress)
        line_show(log_of(p->s), "%s", text);
    else
        fprintf(log_of(p->s), "%s\n", text);
    return 0;
}

/* Below the line of progress, where one is open. */
static void show_warning(void *arg, const char *message)
{
    const TokenizingLine *p = arg;
    fprintf(log_of(p->s), "%stenon: warning: %s\n", p->told && p->s->progress ? "\r\033[K" : "",
            message);
}

/* The end of text by config.json, or where the tokenizer does not have it, by its usual names; -1:
 * none. */
static int64_t find_end(const tn_model *m, const tn_tokenizer *t)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    int64_t end[MOST_ENDS];
    if (tn_model_end(m, MOST_ENDS, end) > 0 && end[0] >= 0 && end[0] < tn_tokenizer_limit(t))
        return end[0];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tn_tokenizer_find(t, names[i]) >= 0)
            return tn_tokenizer_find(t, names[i]);
    return -1;
}

static void tell_tokens(Source *s, const char *tokenizer, int made)
{
    int64_t ntrain, nval, nbytes, ntext, nothing;
    tn_row_counts c;
    char where[CHECKPOINT_PATH + 20] = "", what[60];
    tn_data_size(s->data, &ntrain, &nval, &nbytes);
    tn_data_size(s->files, &nothing, &nothing, &ntext);
    if (s->file)
        snprintf(where, sizeof where, ", %s %s", made ? "written to" : "as they are in", s->file);
    if (!tn_data_row_counts(s->data, &c)) {
        snprintf(s->told, sizeof s->told, "text of %" PRId64 " bytes, %" PRId64 " tokens by %s%s",
                 ntext, ntrain + nval, tokenizer, where);
        return;
    }
    snprintf(s->told, sizeof s->told, "%s, %" PRId64 " tokens by %s, %" PRId64 " of them learned%s",
             tn_count_text(c.rows, "row", what, sizeof what), c.tokens, tokenizer, c.learned,
             where);
}

/* Those of a tokenizer; NULL: each token is a byte. */
static int fill_bytes(tn_context *ctx, const tn_model *m, tn_tokenizer *t, Source *s)
{
    int64_t vocab, context;
    tn_model_shape(m, &vocab, &context);
    if (s->bytes || !(s->bytes = malloc((size_t)vocab * sizeof *s->bytes)))
        return s->bytes ? 0 : tn_context_fail(ctx, TN_CODE_FAIL, "out of memory");
    s->nid = vocab;
    for (int64_t i = 0; !t && i < vocab; i++)
        s->bytes[i] = 1;
    return t ? tn_tokenizer_bytes(t, vocab, s->bytes) : 0;
}

int source_count_bytes(tn_context *ctx, const tn_model *m, Source *s)
{
    char path[CHECKPOINT_PATH];
    tn_tokenizer *t;
    if (s->bytes || source_is_text(s))
        return 0;
    if (!strcmp(s->type, "byte"))
        return fill_bytes(ctx, m, NULL, s);
    const char *from = find_tokenizer(s, m, path);
    if (!from || tn_tokenizer_open(ctx, from, &t)) /* ids alone: nobody says what they are */
        return 0;
    int code = fill_bytes(ctx, m, t, s);
    tn_tokenizer_free(t);
    return code;
}

int source_tokenize(tn_context *ctx, const tn_model *m, Source *s)
{
    char path[CHECKPOINT_PATH];
    const char *from = find_tokenizer(s, m, path);
    TokenizingLine p = {.s = s, .start = wall_sec()};
    tn_tokenizer *t;
    int64_t context;
    from = from ? from : "bytes";
    int made = 0, code = tn_tokenizer_open(ctx, from, &t);
    if (code)
        return code;
    tn_text_options o = {.file = s->file,
                         .keep = s->keep,
                         .between = find_end(m, t),
                         .holds = s->holds,
                         .chat = source_chat_folder(m, s->tokenizer),
                         .seq = s->seq,
                         .val_fraction = s->val_fraction,
                         .progress = show_progress,
                         .progress_arg = &p,
                         .warn = show_warning,
                         .warn_arg = &p};
    tn_model_shape(m, &o.vocab, &context);
    code = tn_data_tokenize(s->files, t, &o, &s->data, &made);
    if (code)
        s->data = s->files;
    if (p.told && s->progress)
        line_clear(log_of(s));
    s->made = made != 0;
    if (!code)
        tell_tokens(s, from, made);
    if (!code)
        code = fill_bytes(ctx, m, t, s);
    tn_tokenizer_free(t);
    return code;
}

void source_tell(const Source *s)
{
    if (*s->told)
        fprintf(log_of(s), "data: %s\n", s->told);
}

void source_drop(Source *s)
{
    if (s->data != s->files)
        tn_data_free(s->data);
    tn_data_free(s->files);
    free(s->bytes);
    s->bytes = NULL;
    s->data = s->files = NULL;
}
