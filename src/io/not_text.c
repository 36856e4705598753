/* not_text: files that are no text, but hold some: compressed, in tables, in JSON, in other
 * encodings. Taken as text, their braces, commas and codes would be learned. They are recognised by
 * what they begin with, JSON and tables also by their name; without one, only where nothing else is
 * likely. The message has the command that makes text of them. Constant: only the first bytes are
 * looked at. */
#include "io.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ROWS_BY_PANDAS(read)                                                             \
    "python3 -c 'import pandas, sys; pandas." read "(sys.argv[1]).to_json(sys.argv[2], " \
    "orient=\"records\", lines=True, force_ascii=False)' IN ROWS"

static const struct {
    int at, len;
    const char *magic, *what, *how;
} kinds[] = {
    {0, 3, "\x1f\x8b\x08", "gzip, compressed", "gzip -dc IN >OUT"},
    {0, 4, "\x28\xb5\x2f\xfd", "zstd, compressed", "zstd -dc IN >OUT"},
    {0, 6, "\xfd\x37zXZ\0", "xz, compressed", "xz -dc IN >OUT"},
    {4, 6, "1AY&SY", "bzip2, compressed", "bzip2 -dc IN >OUT"},
    {0, 4, "\x04\x22\x4d\x18", "lz4, compressed", "lz4 -dc IN >OUT"},
    {0, 6, "7z\xbc\xaf\x27\x1c", "a 7z archive", "7z x -so IN >OUT"},
    {0, 4, "PK\3\4", "a zip archive, or what is kept in one (docx, epub, npz, PyTorch's weights)",
     "unzip -p IN >OUT   # pandoc -t plain IN -o OUT where it is a document"},
    {257, 5, "ustar", "a tar archive", "tar -xOf IN >OUT"},
    {0, 4, "PAR1", "parquet, a table", ROWS_BY_PANDAS("read_parquet")},
    {0, 6, "ARROW1", "arrow, a table", ROWS_BY_PANDAS("read_feather")},
    {0, 4, "\xff\xff\xff\xff", "an arrow stream, a table",
     "python3 -c 'import datasets, sys; print(*datasets.Dataset.from_file(sys.argv[1])[\"text\"], "
     "sep=\"\\n\")' IN >OUT"},
    {0, 16, "SQLite format 3\0", "an SQLite database", "sqlite3 IN 'select text from TABLE' >OUT"},
    {0, 5, "%PDF-", "PDF", "pdftotext IN OUT"},
    {0, 5, "{\\rtf", "RTF", "pandoc -t plain IN -o OUT"},
    {0, 8, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document",
     "soffice --headless --convert-to txt IN"},
    {0, 4, "\xff\xfe\0\0", "text in UTF-32", "iconv -f UTF-32 -t UTF-8 IN >OUT"},
    {0, 2, "\xff\xfe", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 IN >OUT"},
    {0, 2, "\xfe\xff", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 IN >OUT"},
    {0, 6, "\x93NUMPY", "a NumPy array",
     "python3 -c 'import numpy, sys; numpy.load(sys.argv[1]).astype(\"<u4\").tofile(sys.argv[2])' "
     "IN OUT   # token ids: --token-type u32"},
    {0, 8, "\x89HDF\r\n\x1a\n", "HDF5", "h5dump -d DATASET IN >OUT"},
    {0, 4, "GGUF", "a model of llama.cpp: weights, no text", NULL},
    {0, 23, "version https://git-lfs", "a pointer of Git LFS: the file itself is not here",
     "git lfs pull"},
};

/* A file by its first bytes. */
typedef struct FileHead {
    Arena *a;
    const char *path, *s;
    size_t n;
} FileHead;

/* A command that makes text: a line in which IN is the file, OUT what it would be called as text,
 * ROWS as JSON Lines, ARG a word of its own. */
typedef struct How {
    const char *line, *arg;
    RecordForm form; /* as which records can be read of it; FORM_TEXT: none can */
    char separator;
} How;

static bool has_suffix(const FileHead *h, const char *suffix)
{
    size_t n = strlen(h->path), k = strlen(suffix);
    return n > k && !strcasecmp(h->path + n - k, suffix);
}

/* A file that is called JSON holds records, also where its beginning is damaged. */
static RecordForm form_by_name(const FileHead *h)
{
    bool lines = has_suffix(h, ".jsonl") || has_suffix(h, ".ndjson");
    return lines ? FORM_LINES : has_suffix(h, ".json") ? FORM_OBJECTS : FORM_TEXT;
}

/* ---- commands ---- */

/* A word as a shell reads it, in quotes. */
static const char *quoted(Arena *a, const char *text)
{
    Buf b = {.a = a};
    buf_printf(&b, "'");
    for (; *text; text++)
        buf_printf(&b, *text == '\'' ? "'\\''" : "%c", *text);
    buf_printf(&b, "'");
    return b.text;
}

/* The same, in quotes where it needs them. */
static const char *shell_word(Arena *a, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+=@%-";
    return *text && !text[strspn(text, plain)] ? text : quoted(a, text);
}

/* A text in double quotes, as jq and Python read it; NULL where it is not UTF-8. */
static const char *string_literal(Arena *a, const char *text, size_t n)
{
    json_t *o = json_stringn(text, n);
    char *literal = o ? json_dumps(o, JSON_ENCODE_ANY) : NULL;
    const char *copy = literal ? arena_strdup(a, literal) : NULL;
    free(literal);
    json_decref(o);
    return copy;
}

/* The path with another end, as text or as JSON Lines. */
static const char *text_path(const FileHead *h, bool rows)
{
    const char *slash = strrchr(h->path, '/'), *name = slash ? slash + 1 : h->path;
    const char *dot = strrchr(name, '.');
    int stem = dot && dot > name ? (int)(dot - h->path) : (int)strlen(h->path);
    const char *own = arena_strndup(h->a, h->path, (size_t)stem);
    if (stem - (name - h->path) > 4 && !strcasecmp(own + stem - 4, ".txt")) /* NAME.txt.gz */
        return own;
    bool text = dot && !strcasecmp(dot, ".txt");
    if (rows)
        return arena_printf(h->a, "%s.jsonl", own);
    return arena_printf(h->a, text ? "%s.utf8.txt" : "%s.txt", own);
}

/* A command with IN, OUT, ROWS and ARG as they are: what stands for them is not looked at again. */
static const char *command(const FileHead *h, const How *how)
{
    bool standard = !strcmp(h->path, "standard input");
    const struct {
        const char *word, *text;
    } words[] = {{"IN", standard ? "FILE" : shell_word(h->a, h->path)},
                 {"OUT", standard ? "FILE.txt" : shell_word(h->a, text_path(h, false))},
                 {"ROWS", standard ? "FILE.jsonl" : shell_word(h->a, text_path(h, true))},
                 {"ARG", how->arg ? how->arg : ""}};
    Buf b = {.a = h->a};
    for (const char *s = how->line; *s;) {
        int k = 0;
        while (k < LEN(words) && strncmp(s, words[k].word, strlen(words[k].word)) != 0)
            k++;
        if (k < LEN(words))
            buf_add(&b, words[k].text);
        else
            buf_addn(&b, s, 1);
        s += k < LEN(words) ? strlen(words[k].word) : 1;
    }
    return b.text;
}

/* ---- JSON ---- */

/* How much text a value has: that of all elements, or of the member that has most. */
static size_t text_length(const json_t *v)
{
    size_t sum = json_is_string(v) ? json_string_length(v) : 0;
    for (size_t i = 0; i < json_array_size(v); i++)
        sum += text_length(json_array_get(v, i));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)v, key, value) sum = MAX(sum, text_length(value));
    return sum;
}

/* The key of the value with most text; NULL: there is no text. */
static const char *longest_text(const json_t *o)
{
    const char *best = NULL, *key;
    size_t most = 0;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)o, key, value)
    {
        size_t n = text_length(value);
        if (n && n >= most) {
            most = n;
            best = key;
        }
    }
    return best;
}

static bool has_text(const json_t *o, const char *key)
{
    return json_is_string(json_object_get(o, key));
}

/* A member, as jq says it. */
static const char *jq_key(Arena *a, const char *key)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    bool is_plain = *key && !isdigit((unsigned char)*key) && !key[strspn(key, plain)];
    return is_plain ? arena_printf(a, ".%s", key)
                    : arena_printf(a, ".[%s]", string_literal(a, key, strlen(key)));
}

static const char *jq_of(Arena *a, const json_t *v, int depth);

static const char *jq_of_object(Arena *a, const json_t *o, int depth)
{
    const char *key = has_text(o, "text") ? "text" : has_text(o, "content") ? "content" : NULL;
    if (key)
        return jq_key(a, key);
    if (json_is_array(json_object_get(o, "messages")))
        return ".messages[].content";
    if (json_is_array(json_object_get(o, "conversations")))
        return ".conversations[].value";
    if (has_text(o, "instruction") && has_text(o, "output"))
        return ".instruction, .output";
    if (has_text(o, "prompt") && has_text(o, "completion"))
        return ".prompt, .completion";
    key = longest_text(o);
    if (!key)
        return ".. | strings";
    const json_t *value = json_object_get(o, key);
    const char *name = jq_key(a, key), *rest = jq_of(a, value, depth + 1);
    if (json_is_string(value))
        return name;
    return arena_printf(a, "%s%s%s", name, *rest == '.' && rest[1] == '[' ? "" : " | ",
                        *rest == '.' && rest[1] == '[' ? rest + 1 : rest);
}

/* The filter of jq that gives the text of values such as this one. */
static const char *jq_of(Arena *a, const json_t *v, int depth)
{
    enum { MOST_DEPTH = 8 };
    if (json_is_string(v))
        return ".";
    if (depth > MOST_DEPTH || (!json_is_object(v) && !json_is_array(v)))
        return ".. | strings";
    if (json_is_object(v))
        return jq_of_object(a, v, depth);
    size_t n = json_array_size(v), nested = 0, text = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        nested += json_is_object(x) || json_is_array(x);
        text += json_is_string(x);
    }
    if (nested && nested == n)
        return arena_printf(a, ".[] | %s", jq_of(a, json_array_get(v, 0), depth + 1));
    return nested ? ".. | strings" : text && text < n ? ".[] | strings" : ".[]";
}

static size_t skip_blanks(const FileHead *h, size_t at)
{
    while (at < h->n && isspace((unsigned char)h->s[at]))
        at++;
    return at;
}

/* Whether an object begins there: {"KEY": */
static bool is_object(const FileHead *h, size_t at)
{
    if (at >= h->n || h->s[at] != '{')
        return false;
    at = skip_blanks(h, at + 1);
    if (at >= h->n || h->s[at] != '"')
        return false;
    for (at++; at < h->n && h->s[at] != '"'; at++)
        at += h->s[at] == '\\';
    size_t colon = skip_blanks(h, at + 1);
    return colon < h->n && h->s[colon] == ':';
}

/* The value that begins at *at, which moves behind it. NULL: none does; *cut: it may go on behind
 * what is looked at. */
static json_t *read_value(const FileHead *h, size_t *at, bool *cut)
{
    enum { CHARACTER = 4 }; /* the bytes of one, which may be cut too */
    json_error_t e = {0};
    json_t *v = json_loadb(h->s + *at, h->n - *at, JSON_DISABLE_EOF_CHECK | JSON_DECODE_ANY, &e);
    *cut = !v && (json_error_code(&e) == json_error_premature_end_of_input ||
                  (size_t)e.position + CHARACTER > h->n - *at);
    *at += v ? (size_t)e.position : 0;
    return v;
}

/* The first part of a value that is cut, ended by what is missing in its last string, or after its
 * last member. NULL: it makes no value. */
static json_t *mend_value(const FileHead *h, size_t at)
{
    enum { MOST_DEPTH = 64 };
    char open[MOST_DEPTH];
    int depth = 0, end_depth = 0;
    size_t end = 0, blank = 0, begin = at;
    bool string = false;
    for (; at < h->n && depth < MOST_DEPTH; at++) {
        char c = h->s[at];
        if (string && c == '\\') {
            at++;
        } else if (c == '"') {
            string = !string;
            blank = 0;
        } else if (string) {
            blank = c == ' ' ? at : blank;
        } else if (c == '{' || c == '[') {
            open[depth++] = c == '{' ? '}' : ']';
        } else if (c == '}' || c == ']' || c == ',') {
            depth -= c != ',' && depth > 0;
            end = at + (c != ',');
            end_depth = depth;
        }
    }
    json_t *v = NULL;
    for (int i = 0; i < 2 && !v; i++) { /* in the string, which may be a key; else before it */
        size_t to = i ? end : blank;
        if (!to || (!i && !string))
            continue;
        Buf b = {.a = h->a};
        buf_addn(&b, h->s + begin, to - begin);
        buf_add(&b, i ? "" : "\"");
        for (int k = i ? end_depth : depth; k--;)
            buf_addn(&b, &open[k], 1);
        v = json_loadb(b.text, b.len, JSON_DISABLE_EOF_CHECK | JSON_DECODE_ANY, NULL);
    }
    return v;
}

/* What JSON it is, by the first value and what is after it; NULL: none. Without a name that says
 * so, it is where that value is an object which is alone, before another, or longer than is looked
 * at, or an array of them. */
static const char *json_kind(const FileHead *h, size_t at, const json_t *v, size_t end, bool cut)
{
    enum { LEAST_CUT = 4096 };
    const RecordForm called = form_by_name(h);
    bool named = called != FORM_TEXT, lines = called == FORM_LINES, list = h->s[at] == '[';
    bool object = is_object(h, at), objects = list && is_object(h, skip_blanks(h, at + 1));
    size_t next = skip_blanks(h, end), line = end;
    while (line < h->n && (h->s[line] == ' ' || h->s[line] == '\t' || h->s[line] == '\r'))
        line++;
    bool ends = v && (line >= h->n || h->s[line] == '\n');
    bool alone = v && next == h->n, another = v && is_object(h, next);
    bool sure = alone || another || (cut && h->n >= LEAST_CUT);
    bool by_name = object || objects || (strchr("[\"", h->s[at]) && (ends || cut));
    if (!(named && by_name) && !objects && !(object && sure))
        return NULL;
    if (list && !lines)
        return "a JSON array";
    if (another && !lines &&
        (memchr(h->s + at, '\n', end - at) || !memchr(h->s + end, '\n', next - end)))
        return "JSON, object after object";
    return lines || another ? "JSON Lines" : "JSON";
}

static const char *find_json(const FileHead *h, How *how)
{
    size_t at = skip_blanks(h, h->n >= 3 && !memcmp(h->s, "\xef\xbb\xbf", 3) ? 3 : 0);
    if (at >= h->n || !strchr("{[\"", h->s[at]) || !h->s[at])
        return NULL;
    size_t end = at;
    bool cut;
    json_t *v = read_value(h, &end, &cut);
    const char *what = json_kind(h, at, v, end, cut);
    if (what) {
        v = v ? v : mend_value(h, at);
        *how = (How){.line = "jq -r ARG IN >OUT",
                     .arg = quoted(h->a, v ? jq_of(h->a, v, 0) : ".. | strings"),
                     .form = !strcmp(what, "JSON Lines")     ? FORM_LINES
                             : !strcmp(what, "a JSON array") ? FORM_ARRAY
                                                             : FORM_OBJECTS};
    }
    json_decref(v);
    return what;
}

/* ---- tables ---- */

enum { MOST_COLUMNS = 64, MOST_RECORDS = 50, LEAST_RECORDS = 4, LONG_NAME = 40 };

/* A text without its quotes. */
typedef struct Cell {
    const char *s;
    size_t n;
} Cell;

/* The first records of a file by one separator. */
typedef struct CellTable {
    char separator;
    int columns, records;        /* of the first one; all that end */
    bool even;                   /* all have as many columns */
    bool again;                  /* a cell of the first one is another's in its column */
    Cell first[MOST_COLUMNS];    /* cells */
    size_t length[MOST_COLUMNS]; /* of all others' cells */
} CellTable;

static Cell make_cell(const char *s, const char *end)
{
    while (end > s && (end[-1] == '\r' || end[-1] == '\n'))
        end--;
    bool quotes = end - s >= 2 && *s == '"' && end[-1] == '"';
    return (Cell){s + quotes, (size_t)(end - s) - 2 * quotes};
}

/* The columns of the record at *at, which moves behind it, and their cells; 0 where it does not
 * end. */
static int read_record(const FileHead *h, size_t *at, char separator, Cell *cell)
{
    bool quoted = false;
    int n = 0;
    for (size_t begin = *at; *at < h->n; ++*at) {
        char c = h->s[*at];
        quoted ^= c == '"';
        if (quoted || (c != '\n' && c != separator))
            continue;
        if (n < MOST_COLUMNS)
            cell[n] = make_cell(h->s + begin, h->s + *at);
        n++;
        begin = *at + 1;
        if (c == '\n') {
            ++*at;
            return n;
        }
    }
    return 0;
}

static CellTable *read_table(const FileHead *h, char separator)
{
    CellTable *t = NEW(h->a, CellTable);
    Cell cell[MOST_COLUMNS];
    size_t at = h->n >= 3 && !memcmp(h->s, "\xef\xbb\xbf", 3) ? 3 : 0;
    *t = (CellTable){.separator = separator, .even = true};
    for (int n; t->records < MOST_RECORDS && (n = read_record(h, &at, separator, cell));
         t->records++) {
        if (!t->records) {
            t->columns = n;
            memcpy(t->first, cell, sizeof cell[0] * (size_t)MIN(n, MOST_COLUMNS));
            continue;
        }
        t->even &= n == t->columns;
        for (int i = 0; i < MIN(MIN(n, t->columns), MOST_COLUMNS); i++) {
            const Cell *first = &t->first[i];
            t->length[i] += cell[i].n;
            t->again |= first->n == cell[i].n && !memcmp(first->s, cell[i].s, first->n);
        }
    }
    return t;
}

/* Whether it may be a column's name, which begins with no blank, as prose would, and no number. */
static bool is_name(const Cell *c)
{
    for (size_t i = 0; i < c->n; i++) {
        unsigned char x = (unsigned char)c->s[i];
        bool letter = isalpha(x) || x == '_' || x >= 0x80;
        if (!letter && !(i && (isdigit(x) || x == '-' || x == ' ')))
            return false;
    }
    return c->n && c->n <= LONG_NAME;
}

static bool is_text(const Cell *c)
{
    return c->n == 4 && !strncasecmp(c->s, "text", 4);
}

/* The column that has the text: "text", else the one of most bytes. */
static int text_column(const CellTable *t)
{
    int best = 0, n = MIN(t->columns, MOST_COLUMNS);
    for (int i = 0; i < n; i++)
        best = t->length[i] > t->length[best] ? i : best;
    for (int i = 0; i < n; i++)
        if (is_text(&t->first[i]))
            return i;
    return best;
}

/* Whether the first record is names: none comes again, and that of the texts is much shorter. */
static bool has_header(const CellTable *t)
{
    for (int i = 0; i < MIN(t->columns, MOST_COLUMNS); i++)
        if (!is_name(&t->first[i]))
            return false;
    int k = text_column(t);
    const Cell *name = &t->first[k];
    return t->columns &&
           (is_text(name) || (!t->again && t->records > 1 &&
                              2 * name->n * (size_t)(t->records - 1) <= t->length[k]));
}

/* Without a name that says so: a tab is in many texts, two are in few. */
static bool is_table(const CellTable *t)
{
    return t->even && t->records >= LEAST_RECORDS && t->columns >= (t->separator == '\t' ? 3 : 2) &&
           has_header(t);
}

static const CellTable *find_separator(const FileHead *h)
{
    static const char separators[] = ",;\t";
    bool tsv = has_suffix(h, ".tsv"), csv = has_suffix(h, ".csv");
    const CellTable *best = NULL;
    for (const char *s = separators; *s; s++) {
        const CellTable *t = read_table(h, *s);
        if (tsv ? *s == '\t' : !csv && is_table(t))
            return t;
        if (csv && (!best || (t->columns > 1 && t->even > (best->columns > 1 && best->even)) ||
                    (t->even == best->even && t->columns > best->columns)))
            best = t;
    }
    return best;
}

/* By its name, or without one by its number. */
static const char *find_table(const FileHead *h, How *how)
{
    const CellTable *t = find_separator(h);
    if (!t)
        return NULL;
    int k = text_column(t);
    bool marked = h->s[0] == '\xef'; /* which Python takes as part of the first name */
    const char *name = has_header(t) && !(marked && !k)
                           ? string_literal(h->a, t->first[k].s, t->first[k].n)
                           : NULL;
    const char *delimiter = t->separator == ','   ? ""
                            : t->separator == ';' ? ", delimiter=\";\""
                                                  : ", delimiter=\"\\t\"";
    const char *line =
        name
            ? arena_printf(h->a,
                           "import csv, sys; [print(r[%s]) for r in csv.DictReader(sys.stdin%s)]",
                           name, delimiter)
            : arena_printf(
                  h->a,
                  "import csv, sys; [print(r[%d]) for r in csv.reader(sys.stdin%s) if len(r) > %d]",
                  k, delimiter, k);
    *how = (How){"python3 -c ARG <IN >OUT", quoted(h->a, line), FORM_TABLE, t->separator};
    return t->separator == '\t' ? "TSV, a table" : "CSV, a table";
}

/* ---- all of them ---- */

/* Weights: the length of a JSON object, and that object. */
static bool is_safetensors(const FileHead *h)
{
    static const char zeros[4];
    return h->n > 10 && !memcmp(h->s + 4, zeros, 4) && h->s[8] == '{' && h->s[9] == '"';
}

/* Text in UTF-16 without a mark: nearly every other byte is 0, and those between are letters. */
static const char *find_utf16(const FileHead *h)
{
    size_t n = MIN(h->n, (size_t)4096) / 2, low = 0, high = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char x = (unsigned char)h->s[2 * i], y = (unsigned char)h->s[2 * i + 1];
        low += !y && (isprint(x) || isspace(x));
        high += !x && (isprint(y) || isspace(y));
    }
    return n < 8 ? NULL : low > n * 19 / 20 ? "UTF-16LE" : high > n * 19 / 20 ? "UTF-16BE" : NULL;
}

static const char *find_kind(const FileHead *h, How *how)
{
    for (int i = 0; i < LEN(kinds); i++)
        if (h->n >= (size_t)(kinds[i].at + kinds[i].len) &&
            !memcmp(h->s + kinds[i].at, kinds[i].magic, (size_t)kinds[i].len)) {
            how->line = kinds[i].how;
            return kinds[i].what;
        }
    const char *utf16 = find_utf16(h);
    if (utf16) {
        *how = (How){.line = "iconv -f ARG -t UTF-8 IN >OUT", .arg = utf16};
        return "text in UTF-16";
    }
    if (is_safetensors(h))
        return "safetensors: a model's weights, no text; their folder is named as the model";
    const char *what = find_json(h, how);
    return what ? what : find_table(h, how);
}

_Noreturn static void refuse(const FileHead *h, const char *what, const How *how,
                             const char *otherwise)
{
    fail(arena_ctx(h->a), TN_FAIL, "%s: expected text, found %s%s%s%s%s", h->path, what,
         how->line ? "\n  text of it makes: " : "", how->line ? command(h, how) : "",
         otherwise ? "\n  " : "", otherwise ? otherwise : "");
}

void foreign_check(Arena *a, const char *path, const char *head, size_t n, const char *otherwise)
{
    const FileHead h = {a, path, head, n};
    How how = {0};
    const char *what = find_kind(&h, &how);
    if (what)
        refuse(&h, what, &how, otherwise);
}

RecordForm foreign_form(Arena *a, const char *path, const char *head, size_t n, char *separator,
                        const char **as_text)
{
    const FileHead h = {a, path, head, n};
    How how = {0};
    const char *what = find_kind(&h, &how);
    if (what && how.form == FORM_TEXT)
        refuse(&h, what, &how, FOREIGN_AS_TOKENS);
    *separator = how.separator;
    *as_text = what ? command(&h, &how) : NULL;
    return how.form ? how.form : form_by_name(&h);
}
