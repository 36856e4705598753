/* A map from strings to pointers: open addressing with linear probing; deletion shifts the cluster
 * back. Also the nearest name to a misspelled one. */
#include "base.h"

#include <string.h>

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed)
{
    const unsigned char *s = p;
    uint64_t h = seed ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ (h >> 29);
}

static int slot(const Map *m, const char *key)
{
    uint64_t h = hash_bytes(key, strlen(key), 0);
    int i = (int)(h & (uint64_t)(m->cap - 1));
    while (m->key[i] && strcmp(m->key[i], key))
        i = (i + 1) & (m->cap - 1);
    return i;
}

void *map_find(const Map *m, const char *key)
{
    if (!m->cap)
        return NULL;
    int i = slot(m, key);
    return m->key[i] ? m->val[i] : NULL;
}

static void grow(Map *m)
{
    Map bigger = {.a = m->a, .cap = m->cap ? m->cap * 2 : 16};
    bigger.key = NEWN(m->a, const char *, bigger.cap);
    bigger.val = NEWN(m->a, void *, bigger.cap);
    for (int i = 0; i < m->cap; i++)
        if (m->key[i])
            map_put(&bigger, m->key[i], m->val[i]);
    *m = bigger;
}

void map_put(Map *m, const char *key, void *val)
{
    if (m->count * 2 >= m->cap)
        grow(m);
    int i = slot(m, key);
    if (!m->key[i])
        m->count++;
    m->key[i] = key;
    m->val[i] = val;
}

void map_del(Map *m, const char *key)
{
    if (!m->cap)
        return;
    int i = slot(m, key);
    if (!m->key[i])
        return;
    m->key[i] = NULL;
    m->count--;
    for (int j = (i + 1) & (m->cap - 1); m->key[j]; j = (j + 1) & (m->cap - 1)) {
        const char *k = m->key[j];
        void *v = m->val[j];
        m->key[j] = NULL;
        int s = slot(m, k);
        m->key[s] = k;
        m->val[s] = v;
    }
}

static bool is_wild(char c)
{
    return c == '*' || c == '?';
}

/* Rows of Damerau and Levenshtein's table (optimal string alignment), the latest first. */
int edit_distance(const char *s, const char *t, bool wild)
{
    enum { LONGEST = 200 };
    int row[3][LONGEST + 1];
    int ns = (int)strlen(s), nt = (int)strlen(t);
    if (ns > LONGEST || nt > LONGEST)
        return LONGEST;
    for (int j = 0; j <= nt; j++)
        row[0][j] = j;
    for (int i = 1; i <= ns; i++) {
        int *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        char c = s[i - 1];
        bool any = wild && c == '*';
        now[0] = last[0] + !any;
        for (int j = 1; j <= nt; j++) {
            bool same = c == t[j - 1] || (wild && c == '?');
            now[j] = MIN(last[j], now[j - 1]) + !any;
            if (!any)
                now[j] = MIN(now[j], last[j - 1] + !same);
            if (!any && i > 1 && j > 1 && c == t[j - 2] && s[i - 2] == t[j - 1])
                now[j] = MIN(now[j], before[j - 2] + 1);
        }
    }
    return row[ns % 3][nt];
}

int near_edits(const char *word, bool wild)
{
    int letters = 0;
    for (; *word; word++)
        letters += !wild || !is_wild(*word);
    return MIN((letters + 2) / 4, 2);
}

/* Whether one of the words that a name is made of begins like this one. */
static bool begins_part(const char *word, const char *name)
{
    size_t n = strlen(word);
    for (const char *at = n < 3 ? NULL : strstr(name, word); at; at = strstr(at + 1, word))
        if (at == name || strchr("-_.", at[-1]))
            return true;
    return false;
}

static const char *find_nearest(const char *word, const char *const *candidates, int n, bool wild)
{
    const char *best = NULL;
    int most = near_edits(word, wild), least = most + 1;
    for (int i = 0; i < n; i++) {
        if (!candidates[i])
            continue;
        int d = edit_distance(word, candidates[i], wild);
        if (d >= least)
            continue;
        least = d;
        best = candidates[i];
    }
    for (int i = 0; i < n && !best; i++)
        if (candidates[i] && begins_part(word, candidates[i]))
            best = candidates[i];
    return best;
}

const char *nearest(const char *word, const char *const *candidates, int n)
{
    return find_nearest(word, candidates, n, false);
}

const char *glob_nearest(const char *pattern, const char *const *candidates, int n)
{
    return find_nearest(pattern, candidates, n, true);
}

const char *names_hint(const char *word, const char *const *candidates, int n, char *text,
                       size_t size)
{
    enum { SHOWN = 12 };
    const char *near = nearest(word, candidates, n);
    int at = 0, shown = MIN(n, SHOWN);
    *text = 0;
    if (near)
        at = snprintf(text, size, "; the nearest is \"%.100s\"", near);
    for (int i = 0; i < shown && (size_t)at + 200 < size; i++)
        at += snprintf(text + at, size - (size_t)at, "%s%.100s", i ? ", " : "; there are ",
                       candidates[i]);
    if (n > shown)
        snprintf(text + at, size - (size_t)at, " and %d more", n - shown);
    return text;
}
