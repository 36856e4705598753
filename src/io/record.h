/* record: what data files hold beside plain text: records of JSON or CSV, perhaps compressed, with
 * the keys that people use, and chats that a template makes text of. Sections name the file that
 * implements them. */
#ifndef TENON_RECORD_H
#define TENON_RECORD_H

#include "../jinja/jinja.h"
#include "tokenizer.h"

/* ---- inflate.c: the bytes of a file, decompressed ---- */

typedef enum { IS_PLAIN, IS_GZIP, IS_ZSTD } Compression;
typedef struct ByteStream ByteStream;

Compression bytes_compression(const char *head, size_t n); /* by the first bytes of a file */
ByteStream *bytes_open(Arena *a, const DataSet *s, const DataFile *f);
/* The next bytes, at most `most`; 0 at the end. Fails where they are damaged. */
size_t bytes_next(ByteStream *b, char *to, size_t most);
int64_t bytes_done(const ByteStream *b);  /* bytes of the file that were read */
uint64_t bytes_hash(const ByteStream *b); /* of them */
Compression bytes_form(const ByteStream *b);
const char *bytes_libraries(void); /* a line for each library that this build has for it */

/* ---- record.c: one record after the other ---- */

typedef struct RecordReader {
    Ctx *ctx;
    Arena *a;
    const char *path;
    ByteStream *bytes;
    RecordForm form;
    char separator;
    const char *as_text; /* the command that makes text of it; NULL: there is none */
    Buf window;          /* decompressed; text before `at` is done with */
    size_t at;
    bool ended;           /* there is no more of it than the window has */
    bool begun;           /* of an array: its first item is behind */
    int64_t line;         /* of `at` */
    int64_t first;        /* line of the last record */
    struct json_t **slot; /* the last record, and what document_read has made of it */
    const char **column;  /* of a table */
    int ncolumn, capcolumn;
    Buf cell;
} RecordReader;

/* Reads a file of s; fails where it is no text and none of these forms. */
RecordReader *records_open(Arena *a, const DataSet *s, const DataFile *f);
/* JSON Lines in memory; where: their name for messages. */
RecordReader *records_of_text(Arena *a, const char *where, const char *text, size_t n);
/* The next record, an object, valid until the one after it; NULL at the end. Fails with file and
 * line. Not for FORM_TEXT. */
struct json_t *records_next(RecordReader *r);
_Noreturn void records_fail(const RecordReader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Makes a new value the last record, which the reader owns. */
struct json_t *records_keep(RecordReader *r, struct json_t *record);
/* More bytes in the window; false where there are none. */
bool records_fill(RecordReader *r);

/* ---- record_csv.c ---- */

struct json_t *csv_next(RecordReader *r);

/* ---- document.c: what a record is by its keys ---- */

typedef enum { DOCUMENT_TEXT, DOCUMENT_PAIR, DOCUMENT_CHAT } DocumentKind;

typedef struct Document {
    DocumentKind kind;
    const struct json_t *text;   /* TEXT, PAIR: a string, of PAIR the prompt, */
    const struct json_t *answer; /* and what is learned. A CHAT has both where it also is a PAIR */
    struct json_t *messages;     /* CHAT */
    const struct json_t *tools;  /* or NULL */
    int prompt;                  /* messages before what alone is learned; -1: all answers are */
} Document;

/* Reads a record, valid as long as it; fails with file and line. */
Document document_read(const RecordReader *r, struct json_t *record);

/* ---- chat.c: the template of a model's folder ---- */

typedef struct Chat Chat;

/* NULL where the folder has none. */
Chat *chat_open(Arena *a, const char *folder);
uint64_t chat_hash(const Chat *c); /* of all that a rendering depends on beside the chat */
/* The text of messages, with the parts that an assistant has said, of tags or of prefixes;
 * `prompt` as in Document. Fails where the template refuses the chat or rewrites earlier turns. */
JinjaText chat_render(const Chat *c, Arena *tmp, const Document *d);
/* The text up to where an assistant is to answer. */
JinjaText chat_prompt(const Chat *c, Arena *tmp, const Document *d);

/* ---- rows.c: documents as rows of tokens, of which some are learned ---- */

typedef struct RowMaker RowMaker;

/* Rows of at most T + 1 tokens; end: the id after what is no chat, -1: none. chat NULL: records are
 * no chats, as `why` says. */
RowMaker *rows_new(Arena *a, const Tokenizer *t, const Chat *chat, const char *why, int64_t T,
                   int64_t end);
/* The row of a record, of a text its rows one after the other: ids, with ROW_LEARNED where they
 * are; *count 0: nothing of it is learned. Valid until the next one. */
enum { ROW_LEARNED = 1 << 30 };
#define ROWS_MAGIC 0x3173776f722d6e74u /* the bytes "tn-rows1" */
const uint32_t *rows_make(RowMaker *m, const RecordReader *r, const Document *d, size_t *count);
const RowCounts *rows_counts(const RowMaker *m);
/* Writes the end of a file of rows, behind its ids: where they begin, and the counts. */
void rows_end(const RowMaker *m, Writer *w);
/* Why no row was made, where that is so. */
const char *rows_why_none(const RowMaker *m, Arena *a);
/* Warnings about what was encoded. */
void rows_tell(const RowMaker *m, Arena *a, void (*warn)(void *arg, const char *message),
               void *arg);

#endif
