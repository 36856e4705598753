/* Open addressing with linear probing; deletion shifts the cluster back. */
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

int edit_distance(const char *s, const char *t)
{
    int row[64];
    int ns = (int)strlen(s), nt = (int)strlen(t);
    if (ns >= LEN(row) || nt >= LEN(row))
        return 64;
    for (int j = 0; j <= nt; j++)
        row[j] = j;
    for (int i = 1; i <= ns; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nt; j++) {
            int above = row[j];
            int change = diagonal + (s[i - 1] != t[j - 1]);
            row[j] = MIN(change, MIN(above, row[j - 1]) + 1);
            diagonal = above;
        }
    }
    return row[nt];
}

const char *nearest(const char *word, const char *const *candidates, int n)
{
    const char *best = NULL;
    int least = (int)strlen(word) / 2 + 2;
    for (int i = 0; i < n; i++) {
        int d = edit_distance(word, candidates[i]);
        if (d < least) {
            least = d;
            best = candidates[i];
        }
    }
    return best;
}
