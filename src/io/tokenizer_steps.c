/* Reads the parts of a tokenizer.json before and after the model into tables: normalizer,
 * pre_tokenizer, decoder. Every type and key that is not known is refused by name. */
#include "tokenizer.h"

#include <jansson.h>
#include <string.h>

_Noreturn static void refuse_type(Json j, const char *type)
{
    fail(arena_ctx(j.a), TN_FAIL, "%s: type \"%s\" is not supported", j.where, type);
}

Json step_item(Json j, const char *key, size_t i, int depth)
{
    if (depth > 3)
        fail(arena_ctx(j.a), TN_FAIL, "%s: sequences nested as deep as this are not supported",
             j.where);
    return json_item(j, key, i);
}

bool json_get_bool(Json j, const char *key)
{
    if (!json_has(j, key))
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\" is missing", j.where, key);
    return json_find_bool(j, key, false);
}

static void check_room(Json j, int count, const char *what)
{
    if (count == MAX_SPLITS)
        fail(arena_ctx(j.a), TN_FAIL, "%s: more than %d %s are not supported", j.where, MAX_SPLITS,
             what);
}

/* ---- normalizer ---- */

static void read_normalizer(Tokenizer *t, Arena *a, Json j, int depth)
{
    const char *type = json_get_string(j, "type");
    if (!strcmp(type, "Sequence")) {
        json_check_keys(j, "type|normalizers");
        for (size_t i = 0; i < json_count(j, "normalizers"); i++)
            read_normalizer(t, a, step_item(j, "normalizers", i, depth), depth + 1);
        return;
    }
    check_room(j, t->nnormal, "normalizers");
    if (!normal_read(a, j, type, &t->normal[t->nnormal]))
        refuse_type(j, type);
    t->nnormal++;
}

/* ---- pre_tokenizer ---- */

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

static const char *read_split(Json j, Split *s)
{
    json_check_keys(j, "type|pattern|behavior|invert");
    const char *behavior = json_get_string(j, "behavior");
    if (!strcmp(behavior, "Removed"))
        s->how = SPLIT_REMOVED;
    else if (!strcmp(behavior, "MergedWithPrevious"))
        s->how = SPLIT_PREVIOUS;
    else if (strcmp(behavior, "Isolated"))
        fail(arena_ctx(j.a), TN_FAIL, "%s: behavior \"%s\" is not supported", j.where, behavior);
    if (json_get_bool(j, "invert"))
        fail(arena_ctx(j.a), TN_FAIL, "%s: \"invert\" is not supported", j.where);
    Json pattern = json_get_object(j, "pattern");
    json_check_keys(pattern, "Regex|String");
    return json_has(pattern, "String") ? quote(j.a, json_get_string(pattern, "String"))
                                       : json_get_string(pattern, "Regex");
}

static const char *read_byte_level(Json j, Split *s)
{
    json_check_keys(j, "type|add_prefix_space|trim_offsets|use_regex");
    s->mark = " ";
    s->prefix = json_get_bool(j, "add_prefix_space") ? PREFIX_ALWAYS : PREFIX_NEVER;
    if (json_find_bool(j, "use_regex", true))
        return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    s->how = SPLIT_NONE;
    return NULL;
}

static const char *read_digits(Json j, Split *s)
{
    (void)s;
    json_check_keys(j, "type|individual_digits");
    return json_get_bool(j, "individual_digits") ? "\\p{N}" : "\\p{N}+";
}

static const char *read_whitespace(Json j, Split *s)
{
    json_check_keys(j, "type");
    s->how = SPLIT_REMOVED;
    return "\\s";
}

/* The character and whether it is put before a text. The older add_prefix_space, where it is there,
 * must agree: Hugging Face refuses such a file too. */
static const char *read_mark(Arena *a, Json j, int *prefix)
{
    static const char *const schemes[] = {
        [PREFIX_NEVER] = "never", [PREFIX_ALWAYS] = "always", [PREFIX_FIRST] = "first"};
    json_check_keys(j, "type|replacement|add_prefix_space|prepend_scheme|split|str_rep");
    const char *mark = json_get_string(j, "replacement");
    const char *scheme = json_find_string(j, "prepend_scheme", "always");
    if (!*mark || mark[char_bytes(*mark)])
        fail(arena_ctx(j.a), TN_FAIL, "%s: \"replacement\": expected one character, found \"%s\"",
             j.where, mark);
    for (*prefix = 0; *prefix < LEN(schemes) && strcmp(schemes[*prefix], scheme); ++*prefix)
        ;
    if (*prefix == LEN(schemes))
        fail(arena_ctx(j.a), TN_FAIL,
             "%s: \"prepend_scheme\": expected always, first or never, found \"%s\"", j.where,
             scheme);
    if (*prefix != PREFIX_NEVER && !json_find_bool(j, "add_prefix_space", true))
        fail(arena_ctx(j.a), TN_FAIL,
             "%s: \"add_prefix_space\": false needs \"prepend_scheme\": \"never\"", j.where);
    return arena_strdup(a, mark);
}

static const char *read_metaspace(Arena *a, Json j, Split *s)
{
    int prefix;
    s->how = SPLIT_METASPACE;
    s->mark = read_mark(a, j, &prefix);
    s->prefix = prefix;
    s->cuts = json_find_bool(j, "split", true);
    return NULL;
}

static void add_split(Tokenizer *t, Arena *a, Json j, const char *type)
{
    Split s = {.how = SPLIT_ISOLATED};
    const char *pattern = NULL;
    if (!strcmp(type, "ByteLevel"))
        pattern = read_byte_level(j, &s);
    else if (!strcmp(type, "Split"))
        pattern = read_split(j, &s);
    else if (!strcmp(type, "Digits"))
        pattern = read_digits(j, &s);
    else if (!strcmp(type, "WhitespaceSplit"))
        pattern = read_whitespace(j, &s);
    else if (!strcmp(type, "Metaspace"))
        pattern = read_metaspace(a, j, &s);
    else
        refuse_type(j, type);
    check_room(j, t->nsplit, "pre-tokenizers");
    s.regex = pattern ? regex_new(a, j.where, pattern) : NULL;
    t->split[t->nsplit++] = s;
    t->byte_level = !strcmp(type, "ByteLevel");
}

static void read_pre_tokenizer(Tokenizer *t, Arena *a, Json j, int depth)
{
    const char *type = json_get_string(j, "type");
    if (t->byte_level)
        fail(t->ctx, TN_FAIL, "%s: a pre-tokenizer after ByteLevel is not supported", j.where);
    if (strcmp(type, "Sequence")) {
        add_split(t, a, j, type);
        return;
    }
    json_check_keys(j, "type|pretokenizers");
    for (size_t i = 0; i < json_count(j, "pretokenizers"); i++)
        read_pre_tokenizer(t, a, step_item(j, "pretokenizers", i, depth), depth + 1);
}

/* Where a text begins must be known in its own bytes. */
static void check_first(const Tokenizer *t, Json root)
{
    int moves = 0, marks = 0, first = 0;
    for (int i = 0; i < t->nnormal; i++)
        moves += t->normal[i].moves;
    for (int i = 0; i < t->nsplit; i++) {
        marks += t->split[i].how == SPLIT_METASPACE;
        first += t->split[i].prefix == PREFIX_FIRST;
    }
    if (marks > 1)
        fail(t->ctx, TN_FAIL, "%s: \"pre_tokenizer\": more than one Metaspace is not supported",
             root.where);
    if (marks && t->byte_level)
        fail(t->ctx, TN_FAIL, "%s: \"pre_tokenizer\": Metaspace before ByteLevel is not supported",
             root.where);
    if (moves && first)
        fail(t->ctx, TN_FAIL,
             "%s: \"prepend_scheme\": \"first\" is not supported after a normalizer that can "
             "remove a text's first character",
             root.where);
}

/* ---- decoder ---- */

static Decoding read_decode_replace(Arena *a, Json j)
{
    json_check_keys(j, "type|pattern|content");
    Json pattern = json_get_object(j, "pattern");
    json_check_keys(pattern, "String");
    const char *text = json_get_string(pattern, "String");
    if (!*text)
        fail(arena_ctx(j.a), TN_FAIL, "%s: an empty pattern is not supported", j.where);
    return (Decoding){.how = DECODE_REPLACE,
                      .text = arena_strdup(a, text),
                      .content = arena_strdup(a, json_get_string(j, "content"))};
}

static Decoding read_decode_strip(Arena *a, Json j)
{
    json_check_keys(j, "type|content|start|stop");
    Decoding d = {.how = DECODE_STRIP,
                  .text = arena_strdup(a, json_get_string(j, "content")),
                  .start = json_get_int(j, "start", 0, INT32_MAX)};
    if (!*d.text || d.text[char_bytes(*d.text)])
        fail(arena_ctx(j.a), TN_FAIL, "%s: \"content\": expected one character, found \"%s\"",
             j.where, d.text);
    if (json_get_int(j, "stop", 0, INT32_MAX))
        fail(arena_ctx(j.a), TN_FAIL, "%s: \"stop\" other than 0 is not supported", j.where);
    return d;
}

static Decoding read_decode_metaspace(Arena *a, Json j)
{
    int prefix;
    Decoding d = {.how = DECODE_METASPACE, .text = read_mark(a, j, &prefix), .content = " "};
    d.drops = prefix != PREFIX_NEVER;
    return d;
}

static Decoding read_decode_plain(Json j, int how)
{
    json_check_keys(j, "type");
    return (Decoding){.how = how};
}

static void add_decoding(Tokenizer *t, Json j, Decoding d)
{
    check_room(j, t->ndecoding, "decoders");
    for (int i = 0; i < t->ndecoding; i++)
        if (t->decoding[i].how == DECODE_FUSE && d.how != DECODE_STRIP)
            fail(t->ctx, TN_FAIL, "%s: a decoder other than Strip after Fuse is not supported",
                 j.where);
    t->decoding[t->ndecoding++] = d;
}

static void read_decoder(Tokenizer *t, Arena *a, Json j, int depth)
{
    const char *type = json_get_string(j, "type");
    if (!strcmp(type, "Sequence")) {
        json_check_keys(j, "type|decoders");
        for (size_t i = 0; i < json_count(j, "decoders"); i++)
            read_decoder(t, a, step_item(j, "decoders", i, depth), depth + 1);
    } else if (!strcmp(type, "Replace")) {
        add_decoding(t, j, read_decode_replace(a, j));
    } else if (!strcmp(type, "Strip")) {
        add_decoding(t, j, read_decode_strip(a, j));
    } else if (!strcmp(type, "Metaspace")) {
        add_decoding(t, j, read_decode_metaspace(a, j));
    } else if (!strcmp(type, "ByteFallback")) {
        add_decoding(t, j, read_decode_plain(j, DECODE_BYTES));
    } else if (!strcmp(type, "Fuse")) {
        add_decoding(t, j, read_decode_plain(j, DECODE_FUSE));
    } else {
        refuse_type(j, type);
    }
}

/* Byte-level tokens are decoded as bytes whether the file says so or nothing. */
static void fill_decoder(Tokenizer *t, Arena *a, Json root)
{
    Json j = json_find_object(root, "decoder");
    if (t->byte_level && j.object && strcmp(json_get_string(j, "type"), "ByteLevel"))
        refuse_type(j, json_get_string(j, "type"));
    if (t->byte_level)
        return;
    if (j.object)
        read_decoder(t, a, j, 0);
    else
        t->decoding[t->ndecoding++] = (Decoding){.how = DECODE_JOIN};
}

void steps_fill(Tokenizer *t, Arena *a, Json root)
{
    Json normalizer = json_find_object(root, "normalizer");
    Json splits = json_find_object(root, "pre_tokenizer");
    if (normalizer.object)
        read_normalizer(t, a, normalizer, 0);
    if (splits.object)
        read_pre_tokenizer(t, a, splits, 0);
    check_first(t, root);
    fill_decoder(t, a, root);
}
