/* Names chosen by shell patterns: * stands for any text, ? for one character, [...] for one of
 * some, as fnmatch(3) has it, over the whole name. */
#include "base.h"

#include <fnmatch.h>
#include <limits.h>
#include <string.h>

bool globs_match(const Globs *p, const char *name)
{
    for (int i = 0; i < p->count; i++)
        if (!fnmatch(p->pattern[i], name, 0))
            return true;
    return false;
}

/* Edits of a name that make the pattern match it, where * matches any text and ? any character;
 * row[j] is what the pattern so far takes to match the first j characters. */
static int distance(const char *pattern, const char *name, int *row)
{
    int n = (int)strlen(name);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (; *pattern; pattern++) {
        int diagonal = row[0];
        row[0] += *pattern != '*';
        for (int j = 1; j <= n; j++) {
            int above = row[j], change = diagonal + (*pattern != '?' && *pattern != name[j - 1]);
            if (*pattern == '*')
                row[j] = MIN(above, row[j - 1]);
            else
                row[j] = MIN(change, MIN(above, row[j - 1]) + 1);
            diagonal = above;
        }
    }
    return row[n];
}

const char *glob_nearest(Arena *a, const char *pattern, const char *const *name, int count)
{
    const char *best = NULL;
    int least = INT_MAX;
    for (int i = 0; i < count; i++) {
        int d = distance(pattern, name[i], NEWN(a, int, strlen(name[i]) + 1));
        if (d < least) {
            least = d;
            best = name[i];
        }
    }
    return best;
}

void globs_check(Arena *a, const Globs *p, const char *what, const char *const *name, int count)
{
    for (int i = 0; i < p->count; i++) {
        Globs one = {&p->pattern[i], 1};
        bool found = false;
        for (int k = 0; k < count && !found; k++)
            found = globs_match(&one, name[k]);
        if (found)
            continue;
        const char *near = glob_nearest(a, p->pattern[i], name, count);
        fail(arena_ctx(a), TN_USAGE, "%s \"%s\": matches no parameter%s%s%s", what, p->pattern[i],
             near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "");
    }
}
