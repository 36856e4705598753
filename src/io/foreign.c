/* foreign: files that are no text, but hold some: compressed, in tables, in JSON, in other
 * encodings. Taken as text, their braces, commas and codes would be learned. They are recognised by
 * what they begin with; tables of commas by their records, or by their name. The message has the
 * command that makes text of them. Constant: only the first bytes are looked at. */
#include "io.h"

#include <ctype.h>
#include <jansson.h>
#include <string.h>
#include <strings.h>

/* In commands IN is the file, OUT what it would be called as text. */
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
    {0, 4, "PAR1", "parquet, a table",
     "python3 -c 'import pandas, sys; print(*pandas.read_parquet(sys.argv[1])[\"text\"], "
     "sep=\"\\n\")' IN >OUT"},
    {0, 6, "ARROW1", "arrow, a table",
     "python3 -c 'import pandas, sys; print(*pandas.read_feather(sys.argv[1])[\"text\"], "
     "sep=\"\\n\")' IN >OUT"},
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
     "IN "
     "OUT   # token ids: --token-type u32"},
    {0, 8, "\x89HDF\r\n\x1a\n", "HDF5", "h5dump -d DATASET IN >OUT"},
    {0, 4, "GGUF", "a model of llama.cpp: weights, no text", NULL},
    {0, 23, "version https://git-lfs", "a pointer of Git LFS: the file itself is not here",
     "git lfs pull"},
};

/* A file by its first bytes. */
typedef struct Head {
    Arena *a;
    const char *path, *s;
    size_t n;
} Head;

static bool has_suffix(const Head *h, const char *suffix)
{
    size_t n = strlen(h->path), k = strlen(suffix);
    return n > k && !strcasecmp(h->path + n - k, suffix);
}

/* ---- commands ---- */

/* A word as a shell reads it. */
static const char *shell_word(Arena *a, const char *text)
{
    Buf b = {.a = a};
    if (*text &&
        !text[strspn(text,
                     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/+=@%-")])
        return text;
    buf_printf(&b, "'");
    for (; *text; text++)
        buf_printf(&b, *text == '\'' ? "'\\''" : "%c", *text);
    buf_printf(&b, "'");
    return b.text;
}

/* The path with another end. */
static const char *text_path(const Head *h)
{
    const char *slash = strrchr(h->path, '/'), *name = slash ? slash + 1 : h->path;
    const char *dot = strrchr(name, '.');
    int stem = dot && dot > name ? (int)(dot - h->path) : (int)strlen(h->path);
    bool text = dot && !strcasecmp(dot, ".txt");
    return arena_printf(h->a, text ? "%.*s.utf8.txt" : "%.*s.txt", stem, h->path);
}

/* A command with IN and OUT as they are. */
static const char *command(const Head *h, const char *how)
{
    bool standard = !strcmp(h->path, "standard input");
    const char *in = standard ? "FILE" : shell_word(h->a, h->path);
    const char *out = standard ? "FILE.txt" : shell_word(h->a, text_path(h));
    Buf b = {.a = h->a};
    buf_printf(&b, "%s", "");
    while (*how) {
        bool is_in = !strncmp(how, "IN", 2), is_out = !strncmp(how, "OUT", 3);
        if (is_in || is_out)
            buf_printf(&b, "%s", is_in ? in : out);
        else
            buf_printf(&b, "%c", *how);
        how += is_in ? 2 : is_out ? 3 : 1;
    }
    return b.text;
}

/* ---- JSON ---- */

/* The key of the longest text. */
static const char *longest_text(const json_t *o)
{
    const char *best = NULL, *key;
    size_t most = 0;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)o, key, value)
    {
        if (json_is_string(value) && json_string_length(value) >= most) {
            most = json_string_length(value);
            best = key;
        }
    }
    return best;
}

static bool has_text(const json_t *o, const char *key)
{
    return json_is_string(json_object_get(o, key));
}

/* What gives the text of an object such as this one, as jq says it. */
static const char *jq_of(Arena *a, const json_t *o)
{
    const char *key = has_text(o, "text") ? "text" : has_text(o, "content") ? "content" : NULL;
    if (key)
        return arena_printf(a, ".%s", key);
    if (json_is_array(json_object_get(o, "messages")))
        return ".messages[].content";
    if (json_is_array(json_object_get(o, "conversations")))
        return ".conversations[].value";
    if (has_text(o, "instruction") && has_text(o, "output"))
        return ".instruction, .output";
    if (has_text(o, "prompt") && has_text(o, "completion"))
        return ".prompt, .completion";
    key = longest_text(o);
    bool plain =
        key && strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") == strlen(key);
    return plain ? arena_printf(a, ".%s", key) : ".text";
}

static size_t skip_blanks(const Head *h, size_t at)
{
    while (at < h->n && isspace((unsigned char)h->s[at]))
        at++;
    return at;
}

/* Whether an object begins there: {"KEY": */
static bool is_object(const Head *h, size_t at)
{
    if (at >= h->n || h->s[at] != '{')
        return false;
    at = skip_blanks(h, at + 1);
    if (at >= h->n || h->s[at] != '"')
        return false;
    const char *end = memchr(h->s + at + 1, '"', h->n - at - 1);
    size_t colon = end ? skip_blanks(h, (size_t)(end - h->s) + 1) : h->n;
    return colon < h->n && h->s[colon] == ':';
}

/* One where a line ends behind each object, or where the first is longer than what is looked at. */
static bool is_lines(const Head *h, size_t at)
{
    const char *end = memchr(h->s + at, '\n', h->n - at);
    size_t next = end ? skip_blanks(h, (size_t)(end - h->s)) : h->n;
    json_t *o = end ? json_loadb(h->s + at, (size_t)(end - h->s) - at, 0, NULL) : NULL;
    bool whole = json_is_object(o), named = has_suffix(h, ".jsonl") || has_suffix(h, ".ndjson");
    json_decref(o);
    return named || (end ? whole && is_object(h, next) : h->n > 4096);
}

static const char *find_json(const Head *h, const char **how)
{
    size_t at = skip_blanks(h, h->n >= 3 && !memcmp(h->s, "\xef\xbb\xbf", 3) ? 3 : 0);
    bool list = at < h->n && h->s[at] == '[';
    size_t first = list ? skip_blanks(h, at + 1) : at;
    bool named = has_suffix(h, ".json"), object = is_object(h, first);
    if (!object && !(named && list && first < h->n && h->s[first] == '"'))
        return NULL;
    if (!list && !is_lines(h, at) && !named)
        return NULL;
    json_t *o =
        object ? json_loadb(h->s + first, h->n - first, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const char *jq = object ? jq_of(h->a, o) : "";
    *how = arena_printf(h->a, "jq -r '%s%s' IN >OUT", list ? (*jq ? ".[] | " : ".[]") : "", jq);
    json_decref(o);
    return list ? "a JSON array" : is_lines(h, at) ? "JSON Lines" : "JSON";
}

/* ---- tables of commas ---- */

/* The fields of the record at *at, which moves behind it; 0 where it does not end. */
static int record_fields(const Head *h, size_t *at, char separator)
{
    bool quoted = false;
    int fields = 1;
    for (; *at < h->n; ++*at) {
        char c = h->s[*at];
        quoted ^= c == '"';
        fields += !quoted && c == separator;
        if (!quoted && c == '\n') {
            ++*at;
            return fields;
        }
    }
    return 0;
}

/* Whether the first line is names alone, none of which begins with a blank, as prose would. */
static bool is_header(const Head *h, char separator)
{
    bool begins = true;
    for (size_t i = 0; i < h->n && h->s[i] != '\n'; i++) {
        char c = h->s[i];
        bool name = isalnum((unsigned char)c) || strchr("_\"-\r", c) || (!begins && c == ' ');
        if (c != separator && (!c || !name))
            return false;
        begins = c == separator;
    }
    return true;
}

static bool is_table(const Head *h, char separator)
{
    enum { LEAST = 4, MOST = 50 };
    size_t at = 0;
    int fields = record_fields(h, &at, separator), records = 1;
    if (fields < 2 || !is_header(h, separator))
        return false;
    for (int n; records < MOST && at < h->n && (n = record_fields(h, &at, separator)); records++)
        if (n != fields)
            return false;
    return records >= LEAST;
}

/* The name of the column that probably has the text: "text", else the last one. */
static const char *text_column(const Head *h, char separator)
{
    const char *end = memchr(h->s, '\n', h->n), *name = "text";
    size_t n = end ? (size_t)(end - h->s) : h->n;
    for (size_t i = 0; i < n;) {
        size_t k = i;
        while (k < n && h->s[k] != separator && h->s[k] != '\r')
            k++;
        if (k > i)
            name = arena_printf(h->a, "%.*s", (int)(k - i), h->s + i);
        if (!strcmp(name, "text") || !strcmp(name, "\"text\""))
            return "text";
        i = k + 1;
    }
    return strpbrk(name, "\"'\\") || strlen(name) > 40 ? "COLUMN" : name;
}

static const char *find_table(const Head *h, const char **how)
{
    bool tabs = has_suffix(h, ".tsv") || is_table(h, '\t');
    if (!tabs && !has_suffix(h, ".csv") && !is_table(h, ','))
        return NULL;
    *how = arena_printf(h->a,
                        "python3 -c 'import csv, sys; [print(r[\"%s\"]) for r in "
                        "csv.DictReader(sys.stdin%s)]' <IN >OUT",
                        text_column(h, tabs ? '\t' : ','), tabs ? ", delimiter=\"\\t\"" : "");
    return tabs ? "TSV, a table" : "CSV, a table";
}

/* ---- all of them ---- */

/* Weights: the length of a JSON object, and that object. */
static bool is_safetensors(const Head *h)
{
    static const char zeros[4];
    return h->n > 10 && !memcmp(h->s + 4, zeros, 4) && h->s[8] == '{' && h->s[9] == '"';
}

/* Text in UTF-16 without a mark: nearly every other byte is 0, and those between are letters. */
static const char *find_utf16(const Head *h)
{
    size_t n = MIN(h->n, (size_t)4096) / 2, low = 0, high = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char x = (unsigned char)h->s[2 * i], y = (unsigned char)h->s[2 * i + 1];
        low += !y && (isprint(x) || isspace(x));
        high += !x && (isprint(y) || isspace(y));
    }
    return n < 8 ? NULL : low > n * 19 / 20 ? "UTF-16LE" : high > n * 19 / 20 ? "UTF-16BE" : NULL;
}

static const char *find_kind(const Head *h, const char **how)
{
    for (int i = 0; i < LEN(kinds); i++)
        if (h->n >= (size_t)(kinds[i].at + kinds[i].len) &&
            !memcmp(h->s + kinds[i].at, kinds[i].magic, (size_t)kinds[i].len)) {
            *how = kinds[i].how;
            return kinds[i].what;
        }
    const char *utf16 = find_utf16(h);
    if (utf16) {
        *how = arena_printf(h->a, "iconv -f %s -t UTF-8 IN >OUT", utf16);
        return "text in UTF-16";
    }
    if (is_safetensors(h)) {
        *how = NULL;
        return "safetensors: a model's weights, no text; their folder is named as the model";
    }
    const char *what = find_json(h, how);
    return what ? what : find_table(h, how);
}

void foreign_check(Arena *a, const char *path, const char *head, size_t n, const char *otherwise)
{
    const Head h = {a, path, head, n};
    const char *how = NULL, *what = find_kind(&h, &how);
    if (what)
        fail(arena_ctx(a), TN_FAIL, "%s: expected text, found %s%s%s%s%s", path, what,
             how ? "\n  text of it makes: " : "", how ? command(&h, how) : "",
             otherwise ? "\n  " : "", otherwise ? otherwise : "");
}
