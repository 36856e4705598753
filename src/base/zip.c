/* Zip archives whose members are stored as they are (PKWARE's APPNOTE, zip64 included): where each
 * member is, and that its bytes are those of its checksum (CRC-32, eight bytes at a time). Linear
 * in the bytes that are read. */
#include "base.h"

#include <string.h>

enum { END = 22, END64 = 56, LOCATOR = 20, ENTRY = 46, LOCAL = 30, MOST_COMMENT = 0xffff };
enum { STORED = 0, SPAN = 1 << 16, ZIP64 = 1 };

static _Noreturn void refuse(const Zip *z, const char *what, const char *found)
{
    fail(arena_ctx(z->a), TN_FAIL, "%s: a zip archive: expected %s, found %s", z->file, what,
         found);
}

static uint64_t number(const char *p, int nbytes)
{
    uint64_t x = 0;
    for (int i = nbytes - 1; i >= 0; i--)
        x = x << 8 | (unsigned char)p[i];
    return x;
}

static void get(const Zip *z, char *to, int64_t n, int64_t at)
{
    if (at < 0 || n > z->nbytes - at)
        refuse(z, "a whole archive", "a shorter one");
    z->read(z->from, to, n, at);
}

/* The table of the checksum by byte, and by how many zeros come after it. */
static void crc_table(uint32_t t[8][256])
{
    for (uint32_t i = 0; i < 256; i++) {
        t[0][i] = i;
        for (int bit = 0; bit < 8; bit++)
            t[0][i] = t[0][i] >> 1 ^ (t[0][i] & 1 ? 0xedb88320u : 0);
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 255];
}

static uint32_t crc_add(const uint32_t t[8][256], uint32_t crc, const char *p, int64_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t x = number(p, 8) ^ crc;
        crc = 0;
        for (int k = 0; k < 8; k++)
            crc ^= t[7 - k][x >> 8 * k & 255];
    }
    for (; n > 0; n--, p++)
        crc = crc >> 8 ^ t[0][(crc ^ (unsigned char)*p) & 255];
    return crc;
}

/* The record at the end, which says where the list of members is: its place. */
static int64_t find_end(const Zip *z, char end[END])
{
    int64_t n = MIN(z->nbytes, END + MOST_COMMENT);
    char *tail = arena_alloc(z->a, (size_t)MAX(n, 1));
    get(z, tail, n, z->nbytes - n);
    for (int64_t at = n - END; at >= 0; at--)
        if (!memcmp(tail + at, "PK\5\6", 4)) {
            memcpy(end, tail + at, END);
            return z->nbytes - n + at;
        }
    fail(arena_ctx(z->a), TN_FAIL, "%s: expected the end of a zip archive, found none", z->file);
}

/* Where the list of members is, and how many there are. */
static int64_t find_list(const Zip *z, uint64_t *count)
{
    char end[END], locator[LOCATOR], end64[END64];
    int64_t at = find_end(z, end);
    *count = number(end + 10, 2);
    if (at >= LOCATOR) {
        get(z, locator, LOCATOR, at - LOCATOR);
        if (!memcmp(locator, "PK\6\7", 4)) {
            get(z, end64, END64, (int64_t)number(locator + 8, 8));
            *count = number(end64 + 32, 8);
            return (int64_t)number(end64 + 48, 8);
        }
    }
    return (int64_t)number(end + 16, 4);
}

/* Reads numbers that have no room before a member's extra fields from these: the size of what is
 * packed, of what is stored, and the place, in this order, those that are needed. */
static void read_zip64(const Zip *z, ZipMember *m, const char *extra, int64_t n)
{
    int64_t packed = -1, *want[] = {&m->nbytes, &packed, &m->at};
    for (int64_t at = 0; at + 4 <= n; at += 4 + (int64_t)number(extra + at + 2, 2)) {
        int64_t stop = MIN(n, at + 4 + (int64_t)number(extra + at + 2, 2)), from = at + 4;
        if (number(extra + at, 2) != ZIP64)
            continue;
        for (int i = 0; i < LEN(want); i++)
            if ((i == 1 ? m->packed64 : *want[i] == UINT32_MAX) && from + 8 <= stop) {
                *want[i] = (int64_t)number(extra + from, 8);
                from += 8;
            }
    }
    if (m->nbytes < 0 || m->at < 0)
        refuse(z, "a whole archive", "a member outside of it");
}

bool zip_begins(const char *data)
{
    return !memcmp(data, "PK\3\4", ZIP_BEGINS);
}

Zip *zip_open(Arena *a, const char *file, int64_t nbytes,
              void (*read)(void *, void *, int64_t, int64_t), void *from)
{
    Zip *z = NEW(a, Zip);
    *z = (Zip){.a = a, .file = file, .nbytes = nbytes, .read = read, .from = from};
    uint64_t count;
    for (int64_t at = find_list(z, &count); count; count--) {
        char entry[ENTRY];
        get(z, entry, ENTRY, at);
        if (memcmp(entry, "PK\1\2", 4))
            refuse(z, "a list of members", "something else");
        int64_t n = (int64_t)number(entry + 28, 2), extra = (int64_t)number(entry + 30, 2);
        char *text = arena_alloc(a, (size_t)(n + extra + 1));
        get(z, text, n + extra, at + ENTRY);
        ZipMember m = {.name = arena_strndup(a, text, (size_t)n),
                       .at = (int64_t)number(entry + 42, 4),
                       .nbytes = (int64_t)number(entry + 24, 4),
                       .crc = (uint32_t)number(entry + 16, 4),
                       .stored = number(entry + 10, 2) == STORED,
                       .packed64 = number(entry + 20, 4) == UINT32_MAX};
        read_zip64(z, &m, text + n, extra);
        PUSH(a, z->member, z->count, z->cap, m);
        at += ENTRY + n + extra + (int64_t)number(entry + 32, 2);
    }
    return z;
}

int64_t zip_data(const Zip *z, const ZipMember *m)
{
    char local[LOCAL], span[SPAN];
    if (!m->stored)
        refuse(z, "members that are stored", "a compressed one");
    get(z, local, LOCAL, m->at);
    int64_t at = m->at + LOCAL + (int64_t)number(local + 26, 2) + (int64_t)number(local + 28, 2);
    uint32_t t[8][256], crc = UINT32_MAX;
    crc_table(t);
    for (int64_t done = 0, n; done < m->nbytes; done += n) {
        n = MIN(m->nbytes - done, (int64_t)SPAN);
        get(z, span, n, at + done);
        crc = crc_add((const uint32_t(*)[256])t, crc, span, n);
    }
    if (~crc != m->crc)
        refuse(z, arena_printf(z->a, "%s with the checksum %08x", m->name, m->crc),
               arena_printf(z->a, "%08x: the file is damaged", ~crc));
    return at;
}
