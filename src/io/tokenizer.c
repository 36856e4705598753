/* Tokenizers: text to ids and back, as Hugging Face's tokenizers 0.23 do it for byte-level BPE.
 *
 * Of a tokenizer.json this reads the parts that GPT-2, Llama 3, Qwen and their like have:
 *
 *     normalizer      null, NFC
 *     pre_tokenizer   a sequence of Split (Regex or String, Isolated) and Digits, ByteLevel last
 *     model           BPE
 *     decoder         ByteLevel
 *     post_processor  anything; special tokens are added on demand, from a template of one sequence
 *
 * Everything else is refused by name: a setting that is not read could change tokens. An id's text
 * is its bytes; an added token's is its content as written. */
#include "tokenizer.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

/* ---- normalizer, pre_tokenizer ---- */

_Noreturn static void refuse_type(Json j, const char *type)
{
    fail(arena_ctx(j.a), TN_FAIL, "%s: type \"%s\" is not supported", j.where, type);
}

/* Item i of a Sequence; sequences in sequences are few. */
static Json item_of(Json j, const char *key, size_t i, int depth)
{
    if (depth > 3)
        fail(arena_ctx(j.a), TN_FAIL, "%s: sequences nested as deep as this are not supported",
             j.where);
    return json_item(j, key, i);
}

static void read_normalizer(Tokenizer *t, Json j, int depth)
{
    const char *type = json_get_string(j, "type");
    if (!strcmp(type, "NFC")) {
        json_check_keys(j, "type");
        t->nfc = true;
    } else if (!strcmp(type, "Sequence")) {
        json_check_keys(j, "type|normalizers");
        for (size_t i = 0; i < json_count(j, "normalizers"); i++)
            read_normalizer(t, item_of(j, "normalizers", i, depth), depth + 1);
    } else {
        refuse_type(j, type);
    }
}

static bool get_bool(Json j, const char *key)
{
    if (!json_has(j, key))
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\" is missing", j.where, key);
    return json_find_bool(j, key, false);
}

/* A literal text as a pattern. */
static const char *quote(Arena *a, const char *text)
{
    Buf b = {.a = a};
    buf_add(&b, "");
    for (; *text; text++) {
        if (strchr("\\^$.|?*+()[]{}", *text))
            buf_add(&b, "\\");
        buf_addn(&b, text, 1);
    }
    return b.text;
}

static const char *read_split(Json j)
{
    json_check_keys(j, "type|pattern|behavior|invert");
    const char *behavior = json_get_string(j, "behavior");
    if (strcmp(behavior, "Isolated"))
        fail(arena_ctx(j.a), TN_FAIL, "%s: behavior \"%s\" is not supported", j.where, behavior);
    if (get_bool(j, "invert"))
        fail(arena_ctx(j.a), TN_FAIL, "%s: \"invert\" is not supported", j.where);
    Json pattern = json_get_object(j, "pattern");
    json_check_keys(pattern, "Regex|String");
    return json_has(pattern, "String") ? quote(j.a, json_get_string(pattern, "String"))
                                       : json_get_string(pattern, "Regex");
}

static const char *read_byte_level(Json j, bool *prefix)
{
    json_check_keys(j, "type|add_prefix_space|trim_offsets|use_regex");
    *prefix = get_bool(j, "add_prefix_space");
    if (!json_find_bool(j, "use_regex", true))
        return NULL;
    return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
}

static const char *read_digits(Json j)
{
    json_check_keys(j, "type|individual_digits");
    return get_bool(j, "individual_digits") ? "\\p{N}" : "\\p{N}+";
}

/* Says whether it was ByteLevel, after which the text is no text any more. */
static bool read_pre_tokenizer(Tokenizer *t, Arena *a, Json j, int depth)
{
    const char *type = json_get_string(j, "type"), *pattern = NULL;
    bool prefix = false, last = false;
    if (!strcmp(type, "Sequence")) {
        json_check_keys(j, "type|pretokenizers");
        for (size_t i = 0; i < json_count(j, "pretokenizers"); i++) {
            Json item = item_of(j, "pretokenizers", i, depth);
            if (last)
                fail(t->ctx, TN_FAIL, "%s: a pre-tokenizer after ByteLevel is not supported",
                     item.where);
            last = read_pre_tokenizer(t, a, item, depth + 1);
        }
        return last;
    }
    if (!strcmp(type, "ByteLevel"))
        pattern = read_byte_level(j, &prefix);
    else if (!strcmp(type, "Split"))
        pattern = read_split(j);
    else if (!strcmp(type, "Digits"))
        pattern = read_digits(j);
    else
        refuse_type(j, type);
    if (t->nsplit == MAX_SPLITS)
        fail(t->ctx, TN_FAIL, "%s: more than %d pre-tokenizers are not supported", j.where,
             MAX_SPLITS);
    Regex *regex = pattern ? regex_new(a, j.where, pattern) : NULL;
    t->split[t->nsplit++] = (struct Split){regex, prefix};
    return !strcmp(type, "ByteLevel");
}

/* ---- decoder, post_processor ---- */

static void check_decoder(Json j)
{
    const char *type = j.object ? json_get_string(j, "type") : "ByteLevel";
    if (strcmp(type, "ByteLevel"))
        refuse_type(j, type);
}

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
    int64_t id[LEN(t->before)];
    Json all = json_get_object(j, "special_tokens"), token = json_get_object(all, name);
    int n = json_get_ints(token, "ids", LEN(id), id);
    for (int i = 0; i < n; i++)
        add_special(j, name, id[i], after ? t->after : t->before, after ? &t->nafter : &t->nbefore,
                    LEN(t->before));
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
    add_special(j, "cls", json_integer_value(cls), t->before, &t->nbefore, LEN(t->before));
    add_special(j, "sep", json_integer_value(sep), t->after, &t->nafter, LEN(t->after));
}

static void read_post_processor(Tokenizer *t, Arena *a, Json j, int depth)
{
    const char *type = json_get_string(j, "type");
    bool adds = !strcmp(type, "TemplateProcessing") || !strcmp(type, "RobertaProcessing") ||
                !strcmp(type, "BertProcessing");
    if (!strcmp(type, "Sequence"))
        for (size_t i = 0; i < json_count(j, "processors"); i++)
            read_post_processor(t, a, item_of(j, "processors", i, depth), depth + 1);
    else if (adds && (t->nbefore || t->nafter))
        t->post = "more than one post_processor that adds them is not supported";
    else if (!strcmp(type, "TemplateProcessing"))
        read_template(t, j);
    else if (adds)
        read_roberta(t, j);
    else if (strcmp(type, "ByteLevel"))
        t->post = arena_printf(a, "post_processor of type \"%s\" is not supported", type);
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
    for (int i = 0; i < t->nbefore + t->nafter; i++) {
        uint32_t id = i < t->nbefore ? t->before[i] : t->after[i - t->nbefore];
        if (!tokenizer_bytes(t, id, &n))
            fail(t->ctx, TN_FAIL, "%s: \"post_processor\": no token has the id %u", t->path, id);
    }
}

static void fill(Tokenizer *t, Arena *a, Arena *tmp, Json root)
{
    Json normalizer = json_find_object(root, "normalizer");
    Json post = json_find_object(root, "post_processor");
    check_root(t, root);
    if (normalizer.object)
        read_normalizer(t, normalizer, 0);
    if (!read_pre_tokenizer(t, a, json_get_object(root, "pre_tokenizer"), 0))
        fail(t->ctx, TN_FAIL, "%s: \"pre_tokenizer\": expected a ByteLevel at its end", root.where);
    check_decoder(json_find_object(root, "decoder"));
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
        t->token[i] = (VocabEntry){&all[i], 1, (uint32_t)i};
    }
    return t;
}

Tokenizer *tokenizer_open(Arena *a, const char *path)
{
    struct stat st;
    if (!strcmp(path, "bytes"))
        return new_bytes(a);
    Arena **tmp = new_tmp(a);
    if (!stat(path, &st) && S_ISDIR(st.st_mode))
        path = arena_printf(*tmp, "%s/tokenizer.json", path);
    return finish(a, tmp, json_read(*tmp, path));
}

typedef struct Text {
    const char *at;
    size_t left;
} Text;

static size_t next_text(void *buffer, size_t size, void *data)
{
    Text *x = data;
    size_t n = MIN(size, x->left);
    memcpy(buffer, x->at, n);
    x->at += n;
    x->left -= n;
    return n;
}

Tokenizer *tokenizer_parse(Arena *a, const char *text, size_t n, const char *where)
{
    Arena **tmp = new_tmp(a);
    Text x = {text, n};
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

int64_t tokenizer_find(const Tokenizer *t, const char *text)
{
    size_t n = strlen(text);
    for (int i = 0; i < t->ntoken; i++)
        if (t->token[i].n == n && !memcmp(t->token[i].bytes, text, n))
            return t->token[i].id;
    return -1;
}
