/* Folders and files of test_fault, by plain calls and the shell. */
#define _GNU_SOURCE
#include "fault_files.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *top_folder(void)
{
    static char top[64];
    if (*top)
        return top;
    snprintf(top, sizeof top, "%s/tenon_fault_XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    CHECK(mkdtemp(top));
    return top;
}

const char *path_in(const char *folder, const char *name)
{
    static char text[8][600];
    static int turn;
    char *s = text[turn++ % 8];
    snprintf(s, sizeof text[0], "%s/%s/%s", top_folder(), folder, name);
    return s;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

void remove_all(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void shell(const char *format, ...)
{
    char command[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    CHECK(!system(command));
}

void begin_folder(const char *folder, const char *before)
{
    remove_all(path_in(folder, ""));
    if (before)
        shell("cp -a %s %s", path_in(before, ""), path_in(folder, ""));
    else
        CHECK(!mkdir(path_in(folder, ""), 0700));
}

char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *text = calloc(1, 1 << 20);
    CHECK(text);
    *n = fread(text, 1, (1 << 20) - 1, f);
    CHECK(*n < (1 << 20) - 1);
    fclose(f);
    return text;
}

/* Without the line of a key. */
static size_t cut_line(char *text, size_t n, const char *key)
{
    char *line = strstr(text, key);
    char *end = line ? strchr(line, '\n') : NULL;
    if (!end)
        return n;
    memmove(line, end, (size_t)(text + n - end));
    return n - (size_t)(end - line);
}

bool same_file(const char *path, const char *other)
{
    size_t n = 0, m = 0;
    char *s = read_all(path, &n), *t = read_all(other, &m);
    if (s && t && strstr(path, "state.json")) {
        static const char *const own[] = {" \"crc32c\"", " \"elapsed_sec\"",
                                          " \"run\""}; /* of each run */
        for (int i = 0; i < LEN(own); i++) {
            n = cut_line(s, n, own[i]);
            m = cut_line(t, m, own[i]);
        }
    }
    bool same = s && t && n == m && !memcmp(s, t, n);
    free(s);
    free(t);
    return same;
}

void put_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
}
