/* What the files of the tokenizer share; io.h has what others use. */
#ifndef TENON_TOKENIZER_H
#define TENON_TOKENIZER_H

#include "io.h"

enum {
    MAX_WORD = 1 << 20, /* bytes of a pre-token */
    MAX_FEED = 1 << 16, /* bytes of text handled at once */
    MAX_SPLITS = 16,    /* pre-tokenizers in sequence */
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

/* ---- tokenizer_vocab.c ---- */

typedef struct VocabEntry {
    const char *bytes;
    uint32_t n, id;
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

struct Tokenizer {
    Ctx *ctx;
    const char *path;
    bool bytes; /* ids are bytes: of what follows there are tokens alone */

    int ntoken;
    VocabEntry *token; /* by id */
    uint32_t symbol[256];
    Merge *merge; /* open addressing; id NO_TOKEN: empty */
    uint64_t merge_mask;
    VocabEntry *whole; /* where a word that is a token is not merged: tokens by bytes; else NULL */
    uint64_t whole_mask;

    Finder *verbatim, *normalized; /* NULL: none */
    bool nfc;
    Regex *word_char; /* \w, where a token wants to be a single word */
    int nsplit;
    struct Split {
        Regex *regex; /* NULL: does not split */
        bool prefix;  /* a space goes before text that has none */
    } split[MAX_SPLITS];

    int nbefore, nafter; /* what --add-special adds */
    uint32_t before[16], after[16];
    const char *post; /* why it cannot; NULL: it can */
};

/* Fills tokens, merges and added tokens from the root object of a tokenizer.json. What is needed
 * only now lives in tmp; t->nfc must be known. */
void vocab_fill(Tokenizer *t, Arena *a, Arena *tmp, Json root);

uint64_t merge_slot(const Tokenizer *t, uint64_t pair);
uint64_t whole_slot(const Tokenizer *t, const char *bytes, size_t n);
Json json_item(Json j, const char *key, size_t i); /* object i of the array under key */
size_t json_count(Json j, const char *key);        /* items of the array under key; 0: absent */
/* Fails where the object has a key that is not in the list "a|b|c". */
void json_check_keys(Json j, const char *known);

/* ---- tokenizer_bpe.c ---- */

typedef struct Bpe Bpe;

Bpe *bpe_new(Arena *a, const Tokenizer *t);
/* The ids of a word; *id is valid until the next call. */
size_t bpe_encode(Bpe *b, const char *word, size_t n, const uint32_t **id);

/* ---- tokenizer_text.c ---- */

bool space_char(uint32_t c); /* Unicode's White_Space */
/* The character at s, valid UTF-8; *n is its bytes. */
uint32_t char_at(const char *s, int *n);
size_t char_before(const char *s, size_t at); /* where the character before s[at] begins */

/* Appends n bytes to b with each invalid sequence replaced by U+FFFD, as Unicode's chapter 3.9 and
 * Python's errors="replace" do. Unless `last`, an unfinished character at the end is left; returns
 * how many bytes are. */
size_t text_repair(Buf *b, const char *s, size_t n, bool last);

/* Appends the composed form NFC of a text to b; scratch is memory for it. */
void text_compose(Buf *b, Buf *scratch, const char *s, size_t n);
/* The largest place > 0 at which a text can be cut without changing its composed form, or 0. */
size_t text_cut(const char *s, size_t n);

/* ---- tokenizer_file.c: output ---- */

typedef struct Writer {
    Ctx *ctx;
    const char *path;
    char *aside; /* NULL where path is written directly */
    int fd, n;
    unsigned char buffer[MAX_FEED];
} Writer;

/* A file that is written aside ("-", a device, a pipe: directly); the arena removes what is left. */
Writer *writer_open(Arena *a, const char *path);
/* One without a name, in the folder for temporary files; it is gone with its last descriptor. */
Writer *writer_aside(Arena *a);
void writer_put(Writer *w, const char *bytes, size_t n);
void writer_flush(Writer *w);
void writer_close(Writer *w); /* flushes, syncs and renames */

#endif
