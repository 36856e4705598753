/* io: files from outside: JSON, safetensors, training data, tokenizers. Sections name the file that
 * implements them. A handle belongs to the arena that is given to the function that opens it. */
#ifndef TENON_IO_H
#define TENON_IO_H

#include "../op/op.h"

/* ---- json.c: one object of a JSON document, read by key ---- */

struct json_t; /* jansson's */

typedef struct Json {
    Arena *a;
    const char *where;     /* "FILE", or "FILE: outer key", for messages */
    struct json_t *object; /* borrowed; NULL where an optional object is absent */
} Json;

/* The document of a file, whose root must be an object without duplicate keys. */
Json json_read(Arena *a, const char *path);
/* The same from a callback that fills a buffer and returns how many bytes (0: end, -1: error). */
Json json_stream(Arena *a, size_t (*next)(void *buffer, size_t size, void *data), void *data,
                 const char *where);

bool json_has(Json j, const char *key);   /* present and not null */
bool json_given(Json j, const char *key); /* present, if only null */
/* The key after `key` (which came from here) in the order of the file; of NULL the first. */
const char *json_next(Json j, const char *key);

/* get: must be there; find: the fallback where it is absent or null. Both fail with file, key,
 * what was expected and what was found. Integers must lie in [lo, hi]. */
int64_t json_get_int(Json j, const char *key, int64_t lo, int64_t hi);
int64_t json_find_int(Json j, const char *key, int64_t lo, int64_t hi, int64_t fallback);
double json_get_real(Json j, const char *key);
double json_find_real(Json j, const char *key, double fallback);
bool json_find_bool(Json j, const char *key, bool fallback);
const char *json_get_string(Json j, const char *key);
const char *json_find_string(Json j, const char *key, const char *fallback);
Json json_get_object(Json j, const char *key);
Json json_find_object(Json j, const char *key); /* .object is NULL where absent */
/* An array of integers in [0, INT64_MAX]; returns their number, at most `most`. */
int json_get_ints(Json j, const char *key, int most, int64_t *out);
/* String number i of an array of strings, or NULL after the last. */
const char *json_string_at(Json j, const char *key, int i);
/* The value as it stands in the document, shortened, for messages. */
const char *json_text(Json j, const char *key);

/* Whether key is there and says anything but null, false or an empty list or object. */
bool json_is_set(Json j, const char *key);

/* ---- crc32c.c ---- */

/* Sums of pieces: from 0; moved by the n bytes that follow a piece, they add up by ^. */
uint32_t crc32c_add(uint32_t sum, const void *data, int64_t n);
uint32_t crc32c_move(uint32_t sum, int64_t n);
uint32_t crc32c_end(uint32_t sum, int64_t n); /* the checksum of n bytes of that sum */

/* ---- json_sum.c ---- */

/* A JSON object's text with its checksum as the first key, `crc32c`, which it must not have. */
const char *json_add_sum(Arena *a, const char *object);
/* Fails where a file with such a checksum has other bytes than it says; any other passes. */
void json_check_sum(Arena *a, const char *path);

/* ---- safetensors.c ---- */

typedef struct TensorEntry {
    const char *name;
    Type type;
    int file;      /* index into TensorFile.file */
    int64_t begin; /* position of the first byte in that file */
    bool summed;   /* the header has its checksum */
    uint32_t sum;
} TensorEntry;

/* One file, or all files of a Hugging Face folder, with checked headers. Data is not read yet. */
typedef struct TensorFile {
    Arena *a;
    const char *path; /* as opened, for messages */
    int nfile, capfile;
    struct TensorPart {
        const char *path;
        int fd;
        int64_t nbytes;
    } * file;
    int count, cap;
    TensorEntry *entry; /* by file, then by position */
    Map names;          /* name -> index + 1 */
} TensorFile;

/* Opens a .safetensors file, a program of torch.export.save with its weights and constants, or of a
 * folder model.safetensors or what its model.safetensors.index.json lists, and checks everything
 * but the numbers. */
TensorFile *tensors_open(Arena *a, const char *path);
/* Closes the files before the arena ends: what is known of the tensors stays, their numbers cannot
 * be read any more. */
void tensors_close(TensorFile *f);
/* exported_weights.c: adds the tensors of an archive of torch.export.save, which is file `file` of
 * f. */
void tensors_read_exported(TensorFile *f, int file, const Zip *zip);
/* Names of weights of such an archive that have the bytes of another, as tied parameters do: each
 * is a key, the first name with these bytes its value. Weights that PyTorch pickled tell nothing.
 */
Map exported_tied(Arena *a, const Zip *zip);
const TensorEntry *tensors_find(const TensorFile *f, const char *name); /* NULL where absent */
const TensorEntry *tensors_get(const TensorFile *f, const char *name);

/* Reads a tensor to dst as `want`, row-major. Without lossy, fails where not every value of the
 * stored dtype exists in `want`; with it, floats are rounded to nearest (but never to infinity)
 * and integers to floats. A float never becomes an integer. */
void tensors_read(const TensorFile *f, const TensorEntry *e, DType want, bool lossy, void *dst);
/* The same of elements [first, first + n). */
void tensors_read_part(const TensorFile *f, const TensorEntry *e, DType want, bool lossy,
                       int64_t first, int64_t n, void *dst);
/* Fails where a tensor's bytes do not have the checksum that the header says; looks at tensors
 * first, first + stride and so on. */
void tensors_verify(const TensorFile *f, int64_t first, int64_t stride);
/* Whether two tensors have the same type and bytes. */
bool tensors_same(const TensorFile *f, const TensorEntry *s, const TensorEntry *t);

extern const char *const tensors_dtype_name[NDTYPE]; /* as headers have it */
#define TENSORS_SUM "crc32c " /* before a tensor's name: its checksum's key in the metadata */

/* ---- safetensors_write.c ---- */

typedef struct TensorOut {
    const char *name;
    Type type;
    const void *data; /* row-major, type_nbytes(&type) bytes; or the writer's own */
} TensorOut;

/* Writes a .safetensors file ("-": standard output) aside, syncs it and renames it to path; where
 * it fails, path is as before and nothing is left aside. */
void tensors_write(Ctx *ctx, const char *path, int n, const TensorOut *t);

/* The places of tensors in a file. */
typedef struct TensorLayout {
    Buf header; /* what comes before them */
    int n;
    int *order;     /* of the tensors in the file */
    int64_t *begin; /* by tensor: its first byte in the file, how many it has, */
    int64_t *size;
    int64_t *digits; /* and where its checksum stands in the header; NULL: there are none */
    int64_t nbytes;  /* of the file */
} TensorLayout;

/* Fails where two tensors have one name. summed: the header has a checksum of each. */
TensorLayout tensors_layout(Arena *a, const char *path, int n, const TensorOut *t, bool summed);

typedef struct TensorWriter TensorWriter;

/* The steps of tensors_write, with the bytes of tensors put one by one, wherever in the file they
 * belong; but in their order where tensors_in_order says so: the file is a pipe, or standard
 * output. What is not ended goes with the arena. shared: others may join by the process's number,
 * each puts some of the bytes, and all sync before any of them checks that what it put is in the
 * file. */
TensorWriter *tensors_begin(Arena *a, const char *path, const TensorLayout *l, bool shared);
TensorWriter *tensors_join(Arena *a, const char *path, const TensorLayout *l, int64_t pid);
bool tensors_in_order(const TensorWriter *w);
void tensors_put(TensorWriter *w, int64_t at, const void *data, int64_t n); /* of one tensor */
/* The sums of what was put, by tensor. */
const uint32_t *tensors_sums(const TensorWriter *w);
/* Writes the checksums into the header, by the one that began a file that is renamed; sum: by
 * tensor, of all that was put. */
void tensors_seal(TensorWriter *w, const uint32_t *sum);
void tensors_sync(TensorWriter *w);
void tensors_check(TensorWriter *w);
void tensors_end(TensorWriter *w); /* by the one that began; all have synced */

/* The files of a folder's weights: model.safetensors; where the tensors have more than `most` bytes
 * (0: any), Hugging Face's shards model-00001-of-0000N.safetensors, each with as many as fit (or
 * one that does not). Then model.safetensors.index.json, by which readers find them, is written
 * last. */
typedef struct TensorShard {
    const char *path;
    int n;
    const TensorOut *t;
} TensorShard;

TensorShard *tensors_shards(Arena *a, const char *folder, int64_t most, int n, const TensorOut *t,
                            int *count);
void tensors_write_index(Arena *a, const char *folder, int64_t most, int n, const TensorOut *t);

/* Bytes of files on disk, each in blocks of its own; not rounded: the largest. */
typedef struct FileSizes {
    int64_t block, nbytes, largest;
} FileSizes;

void sizes_add(FileSizes *s, int64_t nbytes); /* one more file */
/* The bytes of a file of tensors; adds the files of a folder's weights, with checksums. */
int64_t tensors_size(Arena *a, int n, const TensorOut *t, bool summed);
void tensors_folder_sizes(Arena *a, int64_t most, int n, const TensorOut *t, FileSizes *sizes);

/* ---- data.c: files of tokens ---- */

typedef enum { TOKEN_AUTO, TOKEN_BYTE, TOKEN_U16, TOKEN_U32 } TokenType;

typedef struct DataOptions {
    TokenType type;      /* AUTO: llm.c shards by their header, every other file is bytes */
    double val_fraction; /* of all tokens, at the end; 0 to 1 */
    int64_t vocab;       /* tokens must lie below it; 0: any */
} DataOptions;

typedef struct DataFile {
    const char *path;
    int fd;                      /* of standard input; -1: opened for each read */
    int width;                   /* bytes of a token */
    int64_t begin, nbytes;       /* position of the first token; size when opened */
    int64_t first, ntoken;       /* place in the sequence */
    int64_t changed;             /* nanoseconds since 1970 */
    uint64_t inode, fingerprint; /* fingerprint: of 16 blocks, from the first byte to the last */
    bool text;                   /* nine tenths of these are characters of UTF-8 text */
} DataFile;

/* Counts of the documents of a file of rows. */
typedef struct RowCounts {
    int64_t rows, tokens, learned;
    int64_t cut, lost; /* rows that were longer, tokens that they had more */
    int64_t left_out;  /* documents of which nothing is learned */
} RowCounts;

/* Rows, and the documents that share each (data_pack.c). */
typedef struct RowPack {
    int64_t nrow;
    int64_t *begin;    /* nrow + 1: where each row's documents begin, and the end */
    int64_t *document; /* rows of the file */
} RowPack;

/* Sets that are mixed by weights (data_mix.c). */
typedef struct DataMix {
    int n;
    struct DataSet **part;
    int64_t *share; /* of the rows of a period */
} DataMix;

/* The tokens of all files in order, as one sequence: [0, ntrain) to train on, then nval. Each
 * row of a file of rows is a window; the last ones are held out. */
typedef struct DataSet {
    Ctx *ctx;
    int64_t ntoken, ntrain, nval, nbytes;
    int64_t vocab;
    int64_t document; /* the token after which another document begins; -1: there is none */
    int count, cap;
    DataFile *file;
    const char *made_of; /* the texts of a file of their tokens; NULL: it was given */
    bool in_order;       /* epochs are not shuffled */
    const int64_t *row;  /* nrow rows of each batch to train on that are given; NULL: all */
    int64_t nrow;
    int64_t index; /* of a file of rows: byte at which its index begins; 0: it is none */
    int64_t held;  /* rows that are held out */
    RowCounts rows;
    const RowPack *pack[2]; /* of rows to train on, and held out; NULL: a document has its own */
    int64_t pack_seq;       /* places of such a row */
    const DataMix *mix;     /* it is one of others; NULL: it has files of its own */
} DataSet;

/* Room for one row: the starts are filled where there are any. */
typedef struct DataRow {
    int64_t T, *ids, *labels, *starts;
} DataRow;

/* foreign_check of all files, which are of bytes. */
void data_check_text(Arena *tmp, const DataSet *s);
/* Whether of a block at most a tenth of the bytes are no characters of UTF-8 text. */
bool text_like(const char *block, int64_t n);

/* "auto", "byte", "u16", "u32" to a TokenType, or -1. */
int token_type_parse(const char *name);
/* Bytes of a token; of AUTO, of a file that is no shard. */
int token_width(TokenType type);

/* Opens files; a path that does not exist is a glob pattern, whose matches come sorted. */
DataSet *data_open(Arena *a, int npath, const char *const *path, const DataOptions *o);
/* The same of one open file, of which it keeps a descriptor; title: its name for messages. */
DataSet *data_open_fd(Arena *a, int fd, const char *title, const DataOptions *o);
void data_set_document(DataSet *s, int64_t token);

/* ---- data_read.c: what they hold ---- */

/* n bytes of an open file; fails where there are fewer. */
void data_pread(Ctx *ctx, const DataFile *f, int fd, void *dst, int64_t n, int64_t at);
/* Tokens [at, at + n) of a file; where `last` is not NULL, the last of them goes there. Fails where
 * the file is no longer what was opened, or a token not in the vocabulary. */
void data_read(const DataSet *s, const DataFile *f, int64_t at, int64_t n, int64_t *out,
               int64_t *last);
/* Bytes [at, at + n) of a file, which must be what was opened. */
void data_bytes(const DataSet *s, const DataFile *f, int64_t at, int64_t n, char *out);
/* Tokens [at, at + n) of the sequence. */
void data_tokens(const DataSet *s, int64_t at, int64_t n, int64_t *out);

/* ---- data_batch.c: windows and their order ---- */

/* How many windows of T labels (some are shorter) there are to train on in an epoch, or to validate
 * with, and how many labels they have together. Fails where none to train on would be full. */
int64_t data_windows(const DataSet *s, bool val, int64_t T, int64_t *nlabel);

/* The place of i in a permutation of [0, n), n < 2^62; streams of different uses differ. */
enum { DATA_ORDER, DATA_MIX };
int64_t data_permute(uint64_t seed, int use, uint32_t epoch, int64_t n, int64_t i);

/* Rows that are given of a batch of B. */
int64_t data_rows(const DataSet *s, int64_t B);
/* Fills ids and labels [B, T] of a step (from 1): numbers (step - 1) B and so on of the windows in
 * the order of their epochs, a function of seed and step alone. labels[t] is the token after
 * ids[t], -100 where there is none. Of s->row only these rows are read and filled; beyond B, ids
 * are 0 and labels -100. starts, which may be NULL where documents do not share rows: of each place
 * the first of its document, of padding its own. Allocates nothing. */
void data_train_batch(const DataSet *s, uint64_t seed, uint32_t step, int64_t B, DataRow to);

/* Windows first, first + stride, ... of the validation part, in its order; beyond its end, ids are
 * 0 and labels -100. Returns the number of labels that count. */
int64_t data_val_batch(const DataSet *s, int64_t first, int64_t stride, int64_t B, DataRow to);

/* ---- data_rows.c: files of rows ---- */

/* Takes the one file of a set, of u32, as one of rows: fails where it is none. */
void data_take_rows(DataSet *s, double val_fraction);
int64_t data_rows_windows(const DataSet *s, bool val, int64_t *nlabel);
/* Row k of those to train on or held out; returns how many labels count. */
int64_t data_row(const DataSet *s, bool val, int64_t k, const DataRow *to);
/* Row k of the file, as many places of it as there are, at most T; returns how many labels count.
 */
int64_t data_document(const DataSet *s, int64_t k, int64_t T, int64_t *ids, int64_t *labels,
                      int64_t *places);
void data_pad(const DataRow *to, int64_t from); /* its places from there on */
/* The places of rows [first, first + n) of the file in rows of T. */
int32_t *data_row_places(Arena *a, const DataSet *s, int64_t first, int64_t n, int64_t T);

/* ---- data_mix.c: several sources ---- */

/* A set that takes rows of each of n others, which stay, in proportion to their weights. */
DataSet *data_mix(Arena *a, Arena *tmp, int n, DataSet *const *part, const double *weight);
/* A copy of a set, and of those that it mixes, whose errors are ctx's. */
DataSet *data_mix_copy(Arena *a, const DataSet *s, Ctx *ctx);
/* The source of row *at of a run, of which it then is the number among that source's. */
int data_mix_row(const DataMix *m, uint64_t seed, int64_t *at);

/* ---- data_pack.c: rows that documents share ---- */

/* From here on documents share rows of T places; fails where s has no file of rows. */
void data_pack(Arena *a, Arena *tmp, DataSet *s, int64_t T);
int64_t data_packed_row(const DataSet *s, bool val, int64_t k, const DataRow *to);

/* ---- data_reader.c: a thread that reads ahead ---- */

typedef struct DataReader DataReader;

/* Starts to read the batches of `step` and those after it; the arena ends it. */
DataReader *data_reader_start(Arena *a, const DataSet *s, uint64_t seed, uint32_t step, int64_t B,
                              int64_t T);
/* The batch of a step, waiting for it; false where it is not the next in order, or could not be
 * read: then data_train_batch has it, or says why not. */
bool data_reader_take(DataReader *r, uint64_t seed, uint32_t step, int64_t B, DataRow to);
bool data_reader_full(DataReader *r); /* whether as many batches are there as are read ahead */

/* ---- tokenizer.c: text to ids and back ---- */

typedef struct Tokenizer Tokenizer; /* does not change once it is open; one thread at a time */

/* "bytes" (the ids are the bytes), a tokenizer.json, or a folder with one. Fails naming what in the
 * file is not supported. */
Tokenizer *tokenizer_open(Arena *a, const char *path);
/* A tokenizer.json's text. */
Tokenizer *tokenizer_parse(Arena *a, const char *text, size_t n, const char *where);
int64_t tokenizer_limit(const Tokenizer *t); /* all ids lie below it */
int64_t tokenizer_find(const Tokenizer *t,
                       const char *text); /* id of the token of this text, or -1 */
/* The bytes of a token as the model has it, *n of them; NULL where no token has the id. What it
 * adds to a text may be something else: see decoder_put. */
const char *tokenizer_bytes(const Tokenizer *t, int64_t id, size_t *n);
/* The same as decoders take it: of an added token, its text as the normalizer leaves it. */
const char *tokenizer_shown(const Tokenizer *t, int64_t id, size_t *n);

/* ---- tokenizer_stream.c ---- */

typedef struct Encoder Encoder;

/* Gives ids to put as they are known. */
Encoder *encoder_new(Arena *a, const Tokenizer *t,
                     void (*put)(void *arg, const uint32_t *id, size_t n), void *arg);
void encoder_begin(Encoder *e, const char *where); /* a new text; where: its name for messages */
void encoder_feed(Encoder *e, const char *text, size_t n);
void encoder_end(Encoder *e);
/* Tells, once for all texts so far, which are empty and what is not UTF-8 and became U+FFFD: how
 * many places, and the first one's text and byte. */
void encoder_tell(const Encoder *e, Arena *a, void (*warn)(void *arg, const char *message),
                  void *arg);
/* The special tokens that the tokenizer puts before or after a text. */
void encoder_put_special(Encoder *e, bool after);

/* ---- tokenizer_decode.c ---- */

typedef struct Decoder Decoder;

Decoder *decoder_new(Arena *a, const Tokenizer *t);
void decoder_begin(Decoder *d); /* a new text */
/* Appends what one more token adds to the text; false where no token has the id. */
bool decoder_put(Decoder *d, int64_t id, Buf *to);
void decoder_end(Decoder *d, Buf *to); /* the rest: bytes that no token followed */
/* The bytes that a token adds to a text, not as its first; -1: no token has the id. */
int64_t decoder_bytes(Decoder *d, int64_t id, Buf *tmp);

/* ---- text.c: texts as data ---- */

/* The forms of files: plain texts; texts in records, or compressed; prompts and answers, or chats;
 * texts in records, each of which is to be rows of its own, which data_holds does not find. */
typedef enum { HOLDS_PLAIN, HOLDS_TEXTS, HOLDS_ROWS, HOLDS_TEXT_ROWS } DataHolds;

INLINE bool holds_rows(DataHolds holds)
{
    return holds >= HOLDS_ROWS;
}

/* Finds the form of files of bytes by the first record of each; fails where they are neither text
 * nor records, or hold both texts and what becomes rows. */
DataHolds data_holds(Arena *tmp, const DataSet *s);

typedef struct TextOptions {
    const char *path;    /* the token file; NULL: one without a name */
    DataHolds holds;     /* what the texts are; of ROWS the file has rows */
    const char *chat;    /* ROWS: folder with the template of chats; NULL: there is none */
    int64_t seq;         /* ROWS: labels of a row at most */
    bool keep;           /* fail where it is there, made of other texts or by another tokenizer */
    int64_t between;     /* the id between two texts; -1: none */
    double val_fraction; /* as DataOptions */
    int64_t vocab;
    bool (*progress)(void *arg, int64_t done, int64_t total); /* bytes; false stops; may be NULL */
    void *arg;
    void (*warn)(void *arg, const char *message); /* may be NULL */
    void *warn_arg;
} TextOptions;

/* The ids of all files of `text`, bytes, in a token file, opened. Where o->path has been made from
 * the same texts by the same tokenizer it is taken as it is: *made says which. What is needed only
 * now lives in tmp. */
DataSet *data_tokenize(Arena *a, Arena *tmp, const DataSet *text, const Tokenizer *t,
                       const TextOptions *o, bool *made);

/* ---- not_text.c ---- */

/* The ways to take a file that is no text. */
#define FOREIGN_AS_TOKENS \
    "--token-type u16 or u32 takes it as token ids, byte its bytes as they are"

/* Fails where a file's first n bytes, or its name, say that it is no text but holds some, as
 * compressed files, tables and JSON do: with the command that makes text of it, and another line.
 */
void foreign_check(Arena *a, const char *path, const char *head, size_t n, const char *otherwise);

/* The form of a text file's records. */
typedef enum { FORM_TEXT, FORM_LINES, FORM_OBJECTS, FORM_ARRAY, FORM_TABLE } RecordForm;

/* The form by the same signs, of a table with its separator, and the command that makes text of it;
 * fails where there is none but it is no text. */
RecordForm foreign_form(Arena *a, const char *path, const char *head, size_t n, char *separator,
                        const char **as_text);

/* ---- tokenizer_file.c ---- */

typedef struct TokenizeOptions {
    TokenType type;  /* AUTO: U16 where it holds every id, else U32 */
    bool special;    /* with the special tokens before and after each text */
    const char *end; /* token after each text; NULL: none */
    bool (*progress)(void *arg, int64_t done,
                     int64_t total); /* bytes; total 0: unknown; false stops */
    void *arg;
    void (*warn)(void *arg, const char *message); /* may be NULL */
    void *warn_arg;
} TokenizeOptions;

/* Writes the ids of text files ("-": standard input), one after the other, to output ("-": standard
 * output), aside first, then renamed. Returns their number; *type is what was written. Fails where
 * there is none; warns of empty texts, and of what is not UTF-8 (which bytes need not be). */
int64_t tokenize_files(Arena *a, const Tokenizer *t, int n, const char *const *path,
                       const char *output, const TokenizeOptions *o, TokenType *type);
/* Writes the text of a token file likewise. */
int64_t detokenize_file(Arena *a, const Tokenizer *t, const char *path, const char *output,
                        const TokenizeOptions *o);

#endif
