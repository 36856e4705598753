/* Reads "model" and "added_tokens" of a tokenizer.json into tables: tokens by id, merges by pair,
 * scores, whole words by their bytes, and tries of the added tokens.
 *
 * Where the pre-tokenizer is ByteLevel, the model's strings are in the alphabet of byte-level BPE:
 * each byte is one printable character, itself where Latin-1 has a visible one, else U+0100 and
 * following in order (Radford et al., GPT-2's encoder.py). Ids are those that Hugging Face assigns
 * when it loads the file; a file that gives an added token another id, about which Hugging Face
 * only warns, is refused. */
#include "tokenizer.h"

#include <jansson.h>
#include <string.h>
#include <stdlib.h>

enum { ALPHABET = 0x100 + 68, NO_BYTE = -1 };

typedef struct Load {
    Tokenizer *t;
    Arena *a, *tmp;
    const char *where;
    Map ids;              /* token's text -> index + 1 in t->token */
    short byte[ALPHABET]; /* by character */
    Buf scratch;
    double *score;              /* Unigram: by index */
    const char **left, **right; /* the texts of merges */
    int nmerge;
} Load;

/* ---- JSON ---- */

Json json_item(Json j, const char *key, size_t i)
{
    json_t *array = json_object_get(j.object, key), *item = json_array_get(array, i);
    if (!json_is_object(item))
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected an array of objects", j.where, key);
    return (Json){j.a, arena_printf(j.a, "%s: \"%s\"[%zu]", j.where, key, i), item};
}

size_t json_count(Json j, const char *key)
{
    json_t *array = json_object_get(j.object, key);
    if (array && !json_is_null(array) && !json_is_array(array))
        fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\": expected an array", j.where, key);
    return json_array_size(array);
}

void json_check_keys(Json j, const char *known)
{
    for (const char *key = json_next(j, NULL); key; key = json_next(j, key)) {
        bool found = false;
        size_t n = strlen(key);
        for (const char *k = known; *k && !found; k += strcspn(k, "|"), k += *k == '|')
            found = strcspn(k, "|") == n && !strncmp(k, key, n);
        if (!found)
            fail(arena_ctx(j.a), TN_FAIL, "%s: key \"%s\" is not supported", j.where, key);
    }
}

/* ---- the alphabet ---- */

static void fill_alphabet(Load *l)
{
    int next = 0x100;
    memset(l->byte, 0xff, sizeof l->byte);
    for (int b = 0; b < 256; b++) {
        bool visible = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        l->byte[visible ? b : next++] = (short)b;
    }
}

/* The bytes that a token's text stands for, in out; false where it is not of the alphabet. */
static bool decode_text(const Load *l, const char *text, char *out, uint32_t *count)
{
    int n;
    for (*count = 0; *text; text += n) {
        uint32_t c = char_at(text, &n);
        if (c >= ALPHABET || l->byte[c] == NO_BYTE)
            return false;
        out[(*count)++] = (char)l->byte[c];
    }
    return true;
}

/* ---- tables ---- */

static uint64_t table_size(size_t count)
{
    uint64_t size = 16;
    while (size < count * 2)
        size *= 2;
    return size;
}

uint64_t merge_slot(const Tokenizer *t, uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32) & t->bpe.merge_mask;
    while (t->bpe.merge[h].id != NO_TOKEN && t->bpe.merge[h].pair != pair)
        h = (h + 1) & t->bpe.merge_mask;
    return h;
}

uint64_t whole_slot(const Tokenizer *t, const char *bytes, size_t n)
{
    uint64_t h = hash_bytes(bytes, n, 0) & t->bpe.whole_mask;
    while (t->bpe.whole[h].bytes &&
           (t->bpe.whole[h].n != n || memcmp(t->bpe.whole[h].bytes, bytes, n)))
        h = (h + 1) & t->bpe.whole_mask;
    return h;
}

/* ---- tokens ---- */

static int find_text(const Load *l, const char *text)
{
    return (int)(intptr_t)map_find(&l->ids, text) - 1;
}

static void add_token(Load *l, const char *text, uint32_t id, bool verbatim)
{
    Tokenizer *t = l->t;
    VocabEntry *x = &t->token[t->ntoken];
    size_t n = strlen(text);
    char *bytes = arena_alloc(l->a, n + 1);
    bool decoded = !verbatim && t->byte_level && decode_text(l, text, bytes, &x->n);
    if (!decoded) {
        memcpy(bytes, text, n);
        x->n = (uint32_t)n;
    }
    x->bytes = bytes;
    x->id = id;
    t->longest = MAX(t->longest, n);
    if ((decoded || (!verbatim && !t->byte_level)) && t->bpe.whole)
        t->bpe.whole[whole_slot(t, bytes, x->n)] = *x;
    t->ntoken++;
    map_put(&l->ids, text, (void *)(intptr_t)t->ntoken);
}

static void fill_vocab(Load *l, Json model)
{
    Json vocab = json_get_object(model, "vocab");
    uint64_t size = table_size(json_object_size(vocab.object));
    if (json_find_bool(model, "ignore_merges", false))
        l->t->bpe.whole = NEWN(l->a, VocabEntry, size);
    l->t->bpe.whole_mask = size - 1;
    for (const char *text = json_next(vocab, NULL); text; text = json_next(vocab, text)) {
        int64_t id = json_get_int(vocab, text, 0, NO_TOKEN - 1);
        if (!*text)
            fail(l->t->ctx, TN_FAIL, "%s: a token has no text", vocab.where);
        add_token(l, text, (uint32_t)id, false);
    }
    if (!l->t->ntoken)
        fail(l->t->ctx, TN_FAIL, "%s: has no tokens", vocab.where);
}

/* The tokens that are one byte. */
static void fill_symbols(Load *l)
{
    for (int c = 0; c < ALPHABET; c++) {
        char text[3] = {(char)c};
        if (c >= 0x80) {
            text[0] = (char)(0xc0 | c >> 6);
            text[1] = (char)(0x80 | (c & 0x3f));
        }
        int i = l->byte[c] == NO_BYTE ? -1 : find_text(l, text);
        if (l->byte[c] != NO_BYTE)
            l->t->symbol[l->byte[c]] = i < 0 ? NO_TOKEN : l->t->token[i].id;
    }
}

static uint32_t find_id(const Load *l, const char *text)
{
    int i = find_text(l, text);
    return i < 0 ? NO_TOKEN : l->t->token[i].id;
}

/* The tokens that stand for one byte, "<0x0A>", and those of one character. */
static void fill_letters(Load *l)
{
    Tokenizer *t = l->t;
    for (int b = 0; b < 256; b++)
        t->symbol[b] = find_id(l, arena_printf(l->tmp, "<0x%02X>", b));
    t->letter = NEWN(l->a, uint32_t *, 0x1100);
    for (int i = 0; i < t->ntoken; i++) {
        int n;
        uint32_t c = char_at(t->token[i].bytes, &n), **page = &t->letter[c >> 8];
        if ((uint32_t)n != t->token[i].n)
            continue;
        if (!*page) {
            *page = NEWN(l->a, uint32_t, 256);
            memset(*page, 0xff, 256 * sizeof **page);
        }
        (*page)[c & 0xff] = t->token[i].id;
    }
}

/* ---- scores ---- */

/* The number as Hugging Face's parser (serde_json) makes it of the shortest decimal that stands for
 * x: the digits as one integer, times or by a power of ten, each rounded. It may be off in the last
 * bit, which decides between segmentations that are otherwise equal. */
static double round_as_serde(double x)
{
    char text[40], digits[40] = {0};
    int n = 0, exponent = 0;
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, x);
        if (strtod(text, NULL) == x)
            break;
    }
    char *e = strchr(text, 'e');
    for (const char *s = text; s < e; s++)
        if (*s >= '0' && *s <= '9')
            digits[n++] = *s;
    exponent = atoi(e + 1) + 1 - n;
    while (n > 1 && digits[n - 1] == '0') {
        digits[--n] = 0;
        exponent++;
    }
    double y = (double)strtoull(digits, NULL, 10);
    snprintf(digits, sizeof digits, "1e%d", MIN(abs(exponent), 308));
    double power = strtod(digits, NULL);
    y = exponent < 0 ? y / power : y * power;
    return x < 0 ? -y : y;
}

/* Each token is ["text", score]; its place is its id. */
static void fill_scores(Load *l, Json model)
{
    const json_t *vocab = json_object_get(model.object, "vocab");
    for (size_t i = 0; i < json_array_size(vocab); i++) {
        const json_t *item = json_array_get(vocab, i), *score = json_array_get(item, 1);
        const char *text = json_string_value(json_array_get(item, 0));
        if (!text || !json_is_number(score) || json_array_size(item) != 2)
            fail(l->t->ctx, TN_FAIL, "%s: \"vocab\"[%zu]: expected [\"text\", score]", model.where,
                 i);
        if (!*text)
            fail(l->t->ctx, TN_FAIL, "%s: \"vocab\"[%zu]: a token has no text", model.where, i);
        add_token(l, text, (uint32_t)i, false);
        l->score[i] = round_as_serde(json_number_value(score));
    }
    if (!l->t->ntoken)
        fail(l->t->ctx, TN_FAIL, "%s: has no tokens", model.where);
}

/* ---- merges ---- */

static uint32_t get_id(const Load *l, const char *text, size_t rank)
{
    uint32_t id = find_id(l, text);
    if (id == NO_TOKEN)
        fail(l->t->ctx, TN_FAIL, "%s: \"merges\"[%zu]: \"%s\" is not in the vocabulary", l->where,
             rank, text);
    return id;
}

/* Whether a token can stand for what is not its text: a byte, or what is unknown. */
static bool stands_for(const Load *l, const char *text, uint32_t id)
{
    return id == l->t->unk || (!strncmp(text, "<0x", 3) && strlen(text) == 6);
}

static void add_merge(Load *l, const char *left, const char *right, size_t i, uint32_t rank)
{
    uint32_t x = get_id(l, left, i), y = get_id(l, right, i);
    uint64_t pair = (uint64_t)x << 32 | y;
    l->t->bpe.no_cuts = l->t->bpe.no_cuts || stands_for(l, left, x) || stands_for(l, right, y);
    l->left[l->nmerge] = left;
    l->right[l->nmerge++] = right;
    l->scratch.len = 0;
    buf_add(&l->scratch, left);
    buf_add(&l->scratch, right);
    l->t->bpe.merge[merge_slot(l->t, pair)] = (Merge){pair, rank, get_id(l, l->scratch.text, i)};
}

/* A merge is "a b" or ["a", "b"]. */
static void read_merge(Load *l, const json_t *m, size_t i, uint32_t rank)
{
    const char *left = json_string_value(json_array_get(m, 0));
    const char *right = json_string_value(json_array_get(m, 1));
    const char *line = json_string_value(m), *space = line ? strchr(line, ' ') : NULL;
    if (space && !strchr(space + 1, ' ')) {
        left = arena_strndup(l->tmp, line, (size_t)(space - line));
        right = space + 1;
    } else if (!left || !right || json_array_size(m) != 2) {
        fail(l->t->ctx, TN_FAIL, "%s: \"merges\"[%zu]: expected \"a b\" or [\"a\", \"b\"]",
             l->where, i);
    }
    add_merge(l, left, right, i, rank);
}

static void fill_merges(Load *l, Json model)
{
    const json_t *merges = json_object_get(model.object, "merges");
    size_t count = json_count(model, "merges"), size = table_size(count);
    if (!merges)
        fail(l->t->ctx, TN_FAIL, "%s: key \"merges\" is missing", model.where);
    uint32_t rank = 0;
    l->left = NEWN(l->tmp, const char *, count);
    l->right = NEWN(l->tmp, const char *, count);
    l->t->bpe.merge = NEWN(l->a, Merge, size);
    l->t->bpe.merge_mask = size - 1;
    for (size_t i = 0; i < size; i++)
        l->t->bpe.merge[i].id = NO_TOKEN;
    for (size_t i = 0; i < count; i++) {
        const json_t *m = json_array_get(merges, i);
        const char *line = json_string_value(m);
        if (!line || strncmp(line, "#version", 8)) /* what merges.txt begins with */
            read_merge(l, m, i, rank++);
    }
    if (!l->t->byte_level)
        bpe_fill_joint(l->t, l->a, l->nmerge, l->left, l->right);
}

/* ---- added tokens ---- */

/* The child of a node, made where it is missing. */
static int grow_trie(Arena *a, Finder *f, int node, unsigned char byte)
{
    int child = f->node[node].child;
    while (child && f->node[child].byte != byte)
        child = f->node[child].sibling;
    if (child)
        return child;
    child = f->nnode;
    PUSH(a, f->node, f->nnode, f->capnode,
         ((struct TrieNode){.byte = byte, .sibling = f->node[node].child}));
    f->node[node].child = child;
    return child;
}

static void add_found(Load *l, Finder **finder, const char *content, const Added *added)
{
    Finder *f = *finder;
    int node = 0;
    if (!f) {
        f = *finder = NEW(l->a, Finder);
        PUSH(l->a, f->node, f->nnode, f->capnode, (struct TrieNode){0});
    }
    for (const char *s = content; *s; s++)
        node = grow_trie(l->a, f, node, (unsigned char)*s);
    if (f->node[node].added)
        fail(l->t->ctx, TN_FAIL, "%s: two added tokens are found as \"%s\"", l->where, content);
    PUSH(l->a, f->added, f->count, f->cap, *added);
    f->node[node].added = f->count;
    f->start[(unsigned char)*content] = true;
    f->lstrip = f->lstrip || added->lstrip;
}

/* The id that Hugging Face gives: the vocabulary's, or the next one. */
static uint32_t give_id(Load *l, const char *content, int64_t nvocab, int64_t *most)
{
    int i = find_text(l, content);
    int64_t id = i >= 0 ? l->t->token[i].id : MAX(nvocab, *most + 1);
    *most = MAX(*most, id);
    return (uint32_t)id;
}

static void read_added(Load *l, Json j, int64_t nvocab, int64_t *most)
{
    Tokenizer *t = l->t;
    json_check_keys(j, "id|content|single_word|lstrip|rstrip|normalized|special");
    const char *content = json_get_string(j, "content");
    int64_t wanted = json_get_int(j, "id", 0, NO_TOKEN - 1);
    json_get_bool(j, "special"); /* means something in decoding only */
    if (!*content)
        fail(t->ctx, TN_FAIL, "%s: a token has no text", j.where);
    uint32_t id = give_id(l, content, nvocab, most);
    if (id != wanted)
        fail(t->ctx, TN_FAIL, "%s: \"%s\": expected id %u, as Hugging Face gives it, found %lld",
             j.where, content, id, (long long)wanted);
    Added x = {id, json_get_bool(j, "single_word"), json_get_bool(j, "lstrip"),
               json_get_bool(j, "rstrip")};
    if (find_text(l, content) <
        0) /* else it may be of the alphabet, and is then a symbol's bytes */
        add_token(l, content, id, true);
    int index = find_text(l, content);
    bool normalized = json_get_bool(j, "normalized");
    if (normalized)
        content = normal_text(l->a, t->normal, t->nnormal, content);
    if (normalized && !t->byte_level)
        t->token[index].shown = content;
    if (!*content)
        fail(t->ctx, TN_FAIL, "%s: nothing is left of the token's text by the normalizer", j.where);
    add_found(l, normalized ? &t->normalized : &t->verbatim, content, &x);
    if (x.single_word && !t->word_char)
        t->word_char = regex_new_plain(l->a, j.where,
                                       "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]");
}

static void fill_added(Load *l, Json root)
{
    int64_t nvocab = l->t->ntoken, most = -1;
    size_t count = json_count(root, "added_tokens");
    for (size_t i = 0; i < count; i++)
        read_added(l, json_item(root, "added_tokens", i), nvocab, &most);
}

/* ---- all of it ---- */

static int by_id(const void *x, const void *y)
{
    uint32_t a = ((const VocabEntry *)x)->id, b = ((const VocabEntry *)y)->id;
    return a < b ? -1 : a > b;
}

static void sort_tokens(Load *l)
{
    Tokenizer *t = l->t;
    qsort(t->token, (size_t)t->ntoken, sizeof *t->token, by_id);
    for (int i = 1; i < t->ntoken; i++)
        if (t->token[i].id == t->token[i - 1].id)
            fail(t->ctx, TN_FAIL, "%s: two tokens have the id %u", l->where, t->token[i].id);
}

/* Settings of the model that change tokens: those that only this value is supported of. */
static void check_bpe(Json model)
{
    static const char *const off[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    Ctx *ctx = arena_ctx(model.a);
    json_check_keys(model, "type|dropout|unk_token|continuing_subword_prefix|end_of_word_suffix|"
                           "fuse_unk|byte_fallback|ignore_merges|vocab|merges");
    for (int i = 0; i < LEN(off); i++)
        if (*json_find_string(model, off[i], ""))
            fail(ctx, TN_FAIL, "%s: \"%s\" is not supported", model.where, off[i]);
    if (json_find_real(model, "dropout", 0) != 0)
        fail(ctx, TN_FAIL, "%s: \"dropout\" is not supported", model.where);
}

/* Refuses a treatment of unknown characters where a byte has no token. */
static void check_unknown(const Load *l, Json model)
{
    bool fallback = json_find_bool(model, "byte_fallback", false);
    for (int b = 0; b < 256; b++)
        if (l->t->symbol[b] == NO_TOKEN && (json_has(model, "unk_token") || fallback))
            fail(l->t->ctx, TN_FAIL, "%s: \"%s\" is not supported where a byte (%d) has no token",
                 model.where, fallback ? "byte_fallback" : "unk_token", b);
}

static void read_unknown(Load *l, Json model)
{
    Tokenizer *t = l->t;
    const char *unk = json_find_string(model, "unk_token", NULL);
    t->unk = unk ? find_id(l, unk) : NO_TOKEN;
    if (unk && t->unk == NO_TOKEN)
        fail(t->ctx, TN_FAIL, "%s: \"unk_token\": \"%s\" is not in the vocabulary", model.where,
             unk);
    t->fuse_unk = json_find_bool(model, "fuse_unk", false);
    t->byte_fallback = json_find_bool(model, "byte_fallback", false);
}

static void fill_bpe(Load *l, Json model)
{
    check_bpe(model);
    fill_vocab(l, model);
    l->t->unk = NO_TOKEN;
    if (l->t->byte_level) {
        fill_symbols(l);
        check_unknown(l, model);
    } else {
        fill_letters(l);
        read_unknown(l, model);
    }
    fill_merges(l, model);
}

static void fill_unigram(Load *l, Json model)
{
    Tokenizer *t = l->t;
    json_check_keys(model, "type|unk_id|vocab|byte_fallback");
    if (t->byte_level)
        fail(t->ctx, TN_FAIL, "%s: type \"Unigram\" is not supported after ByteLevel", model.where);
    l->score = NEWN(l->tmp, double, json_count(model, "vocab"));
    fill_scores(l, model);
    fill_letters(l);
    t->unk = (uint32_t)json_find_int(model, "unk_id", 0, t->ntoken - 1, NO_TOKEN);
    t->byte_fallback = json_find_bool(model, "byte_fallback", false);
    t->trie = trie_new(l->a, l->tmp, t->ntoken, t->token, l->score);
}

/* Objects or arrays: items under a key. */
static size_t count_tokens(Json model)
{
    const json_t *vocab = json_object_get(model.object, "vocab");
    return json_is_array(vocab) ? json_array_size(vocab) : json_object_size(vocab);
}

void vocab_fill(Tokenizer *t, Arena *a, Arena *tmp, Json root)
{
    Json model = json_get_object(root, "model");
    Load *l = NEW(tmp, Load);
    *l = (Load){.t = t, .a = a, .tmp = tmp, .where = root.where, .ids.a = tmp, .scratch.a = tmp};
    const char *type = json_find_string(model, "type", "BPE");
    bool unigram = !strcmp(type, "Unigram");
    if (strcmp(type, "BPE") && !unigram)
        fail(t->ctx, TN_FAIL, "%s: expected type \"BPE\" or \"Unigram\", found \"%s\"", model.where,
             type);
    fill_alphabet(l);
    size_t most = count_tokens(model) + json_count(root, "added_tokens");
    if (most > INT32_MAX / 4)
        fail(t->ctx, TN_FAIL, "%s: %zu tokens are too many", root.where, most);
    t->token = NEWN(a, VocabEntry, most);
    if (unigram)
        fill_unigram(l, model);
    else
        fill_bpe(l, model);
    fill_added(l, root);
    sort_tokens(l);
}
