/* Shared by the files of the tokenizer; io.h has what others use. */
#ifndef TENON_TOKENIZER_H
#define TENON_TOKENIZER_H

#include "io.h"

enum {
    MAX_WORD = 1 << 20, /* bytes of a pre-token */
    MAX_FEED = 1 << 16, /* bytes of text handled at once */
    MAX_SPLITS = 16,    /* pre-tokenizers in sequence */
    MAX_GROWTH = 64,    /* bytes that normalizers or decoders make of each that they are given, */
    MAX_MORE = 4096,    /* and so many beside, */
    MAX_MADE = 12 << 20 /* and at once; Unicode's own forms make 11 at most, of U+FDFA */
};
#define NO_TOKEN UINT32_MAX

/* ---- tokenizer_regex.c ---- */

typedef struct Regex Regex;
typedef enum { FOUND_NONE, FOUND_PART, FOUND_ALL } Found;

/* A pattern as Oniguruma reads it, in its arena; fails naming `where` and what is not supported. */
Regex *regex_new(Arena *a, const char *where, const char *pattern);
/* A pattern in PCRE2's own syntax. */
Regex *regex_new_plain(Arena *a, const char *where, const char *pattern);

/* The first match that begins at `at` or later, at [*lo, *hi). With `open` more text may follow
 * text[n]: then what is found does not depend on it, and FOUND_PART says that a match that begins
 * at *lo does. One thread at a time. */
Found regex_find(const Regex *r, const char *text, size_t n, size_t at, bool open, size_t *lo,
                 size_t *hi);

/* ---- tokenizer_normal.c: normalizers ---- */

typedef struct Charsmap Charsmap; /* tokenizer_charsmap.c */

/* One normalizer of the sequence. */
typedef struct Normal {
    /* Appends to `out` what becomes of s[0..n), a stretch's text or more of it: `begun` says that
     * there is output of the stretch already, `end` that it ends here. Returns the bytes that it is
     * done with, all where it ends; what follows cannot change what became of them. */
    size_t (*run)(const struct Normal *f, Buf *out, Buf *scratch, const char *s, size_t n,
                  bool begun, bool end);
    const char *beyond;  /* what is said where it makes too much */
    bool moves;          /* the text that is left may begin later than the text did */
    const char *content; /* Prepend, Replace: what is put there */
    const char *literal; /* Replace: what is looked for; NULL: regex */
    Regex *regex;
    size_t nliteral;
    bool left, right; /* Strip */
    bool composes, compatible;
    const Charsmap *map;
} Normal;

/* The normalizer that a JSON object describes; false where the type is another. */
bool normal_read(Arena *a, Json j, const char *type, Normal *f);
/* Normalizes a whole text by n normalizers, one after the other. */
const char *normal_text(Arena *a, const Normal *f, int n, const char *text);

/* ---- tokenizer_charsmap.c: SentencePiece's map of characters ---- */

Charsmap *charsmap_new(Arena *a, const char *where, const char *base64);
/* As Normal.run. */
size_t charsmap_run(const Charsmap *m, Buf *out, const char *s, size_t n, bool end);

/* ---- tokenizer_vocab.c ---- */

typedef struct VocabEntry {
    const char *bytes;
    uint32_t n, id;
    const char *shown; /* what it is decoded as where that is something else; else NULL */
} VocabEntry;

/* A token that is found in the text before the pre-tokenizer sees it. */
typedef struct Added {
    uint32_t id;
    bool single_word, lstrip, rstrip;
} Added;

/* All such tokens of one kind, their contents in a trie. */
typedef struct Finder {
    Added *added;
    int count, cap;
    struct TrieNode {
        int child, sibling; /* nodes; 0: none */
        int added;          /* index + 1 of the token that ends here; 0: none */
        unsigned char byte;
    } * node; /* node 0 is the root */
    int nnode, capnode;
    bool start[256]; /* bytes with which a token begins */
    bool lstrip;     /* of any */
} Finder;

typedef struct Merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank, id;
} Merge;

/* How text is cut before the model sees it. */
typedef struct Split {
    enum { SPLIT_NONE, SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_PREVIOUS, SPLIT_METASPACE } how;
    Regex *regex;
    enum { PREFIX_NEVER, PREFIX_ALWAYS, PREFIX_FIRST } prefix; /* FIRST: at a text's beginning */
    const char *mark;                                          /* METASPACE: what a space becomes */
    bool cuts; /* METASPACE: each mark begins a word */
} Split;

/* A step of decoding tokens; see tokenizer_decode.c. */
typedef struct Decoding {
    enum {
        DECODE_REPLACE,
        DECODE_BYTES,
        DECODE_FUSE,
        DECODE_STRIP,
        DECODE_METASPACE,
        DECODE_JOIN
    } how;
    const char *text, *content; /* REPLACE, METASPACE: text becomes content; STRIP: text */
    int64_t start;              /* STRIP: how many of it at most */
    bool drops;                 /* METASPACE: it becomes nothing in the first token */
} Decoding;

typedef struct Trie Trie; /* tokenizer_unigram.c */

/* The merges of BPE, in tables of open addressing: see tokenizer_bpe.c. */
typedef struct BpeMerges {
    Merge *merge; /* id NO_TOKEN: empty */
    uint64_t merge_mask;
    uint64_t *joint; /* bits by hash: which characters merges join */
    uint64_t joint_mask;
    bool no_cuts;      /* nothing is known of what merges join */
    VocabEntry *whole; /* where a word that is a token is not merged: tokens by bytes; else NULL */
    uint64_t whole_mask;
} BpeMerges;

/* The ids that --add-special adds. */
typedef struct SpecialIds {
    int nbefore, nafter;
    uint32_t before[16], after[16];
    const char *post; /* why it cannot; NULL: it can */
} SpecialIds;

struct Tokenizer {
    Ctx *ctx;
    const char *path;
    bool bytes;      /* ids are bytes: of what follows there are tokens alone */
    bool byte_level; /* each byte is a symbol; else each character is */

    int ntoken;
    VocabEntry *token;    /* by id */
    uint32_t symbol[256]; /* by byte; of characters: the tokens that stand for a byte */
    uint32_t **letter;    /* tokens of one character, by code point, in pages of 256; or NULL */
    bool byte_fallback, fuse_unk;
    uint32_t unk; /* NO_TOKEN: none */
    BpeMerges bpe;
    Trie *trie;     /* of Unigram; else NULL */
    size_t longest; /* bytes of a token */

    Finder *verbatim, *normalized; /* NULL: none */
    Regex *word_char;              /* \w, where a token wants to be a single word */
    int nnormal, nsplit, ndecoding;
    Normal normal[MAX_SPLITS];
    Split split[MAX_SPLITS];
    Decoding decoding[MAX_SPLITS];

    SpecialIds special;
};

/* Fills tokens, merges and added tokens from the root object of a tokenizer.json. What is needed
 * only now lives in tmp; t->byte_level and t->normal must be known. */
void vocab_fill(Tokenizer *t, Arena *a, Arena *tmp, Json root);

uint64_t merge_slot(const Tokenizer *t, uint64_t pair);
uint64_t whole_slot(const Tokenizer *t, const char *bytes, size_t n);
Json json_item(Json j, const char *key, size_t i); /* object i of the array under key */
size_t json_count(Json j, const char *key);        /* items of the array under key; 0: absent */
/* Fails where the object has a key that is not in the list "a|b|c". */
void json_check_keys(Json j, const char *known);

/* ---- tokenizer_steps.c: normalizer, pre_tokenizer, decoder ---- */

/* Fills t->normal, t->split, t->decoding and t->byte_level from the root object. */
void steps_fill(Tokenizer *t, Arena *a, Json root);
/* Item i of a Sequence; sequences in sequences are few. */
Json step_item(Json j, const char *key, size_t i, int depth);
bool json_get_bool(Json j, const char *key);

/* ---- tokenizer_cache.c: the ids of short words ---- */

typedef struct Cache Cache;

Cache *cache_new(Arena *a);
/* How many ids a word has, *id; 0: it is not there. */
size_t cache_find(const Cache *c, uint64_t hash, const char *word, size_t n, const uint32_t **id);
void cache_put(Cache *c, uint64_t hash, const char *word, size_t n, const uint32_t *id, size_t nid);

/* ---- tokenizer_bpe.c ---- */

typedef struct Bpe Bpe;

Bpe *bpe_new(Arena *a, const Tokenizer *t);
/* The ids of a word, or of as much of it as what follows cannot change. `begin` says that the word
 * begins at text[0], `end` that it ends at text[n]; *count ids are at *id, valid until the next
 * call. Returns the bytes they stand for: all where the word ends. */
size_t bpe_encode(Bpe *b, const char *text, size_t n, bool begin, bool end, const uint32_t **id,
                  size_t *count);
/* Fills t->joint from the texts of the merges' parts. */
void bpe_fill_joint(Tokenizer *t, Arena *a, int count, const char *const *left,
                    const char *const *right);

/* ---- tokenizer_unigram.c ---- */

Trie *trie_new(Arena *a, Arena *tmp, int count, const VocabEntry *token, const double *score);

typedef struct Unigram Unigram;

Unigram *unigram_new(Arena *a, const Tokenizer *t);
/* As bpe_encode. */
size_t unigram_encode(Unigram *u, const char *text, size_t n, bool begin, bool end,
                      const uint32_t **id, size_t *count);

/* ---- tokenizer_text.c ---- */

bool space_char(uint32_t c); /* Unicode's White_Space */
/* The character at s, valid UTF-8; *n is its bytes. */
uint32_t char_at(const char *s, int *n);
size_t char_before(const char *s, size_t at); /* where the character before s[at] begins */

/* Appends n bytes to b with each invalid sequence replaced by U+FFFD, as Unicode's chapter 3.9 and
 * Python's errors="replace" do; *bad counts them, the first is at s[*first]. Unless `last`, an
 * unfinished character at the end is left; returns how many bytes are. */
size_t text_repair(Buf *b, const char *s, size_t n, bool last, int64_t *bad, size_t *first);

/* Appends a text in the form NFC, NFD, NFKC or NFKD to b; scratch is memory for it. */
void text_normalize(Buf *b, Buf *scratch, const char *s, size_t n, bool composes, bool compatible);
/* The largest place > 0 at which a text can be cut without changing these forms, or 0. */
size_t text_cut(const char *s, size_t n);
int char_bytes(char first); /* of the character that begins with this byte */

/* ---- tokenizer_file.c: output ---- */

typedef struct Writer {
    Ctx *ctx;
    const char *path;
    char *aside; /* NULL where path is written directly */
    int fd, n;
    unsigned char buffer[MAX_FEED];
} Writer;

/* A file that is written aside ("-", a device, a pipe: directly); the arena removes what is left.
 */
Writer *writer_open(Arena *a, const char *path);
/* One without a name, in the folder for temporary files; it is gone with its last descriptor. */
Writer *writer_aside(Arena *a);
void writer_put(Writer *w, const char *bytes, size_t n);
void writer_flush(Writer *w);
void writer_close(Writer *w); /* flushes, syncs and renames */

#endif
