/* Names chosen by shell patterns: * stands for any text, ? for one character, [...] for one of
 * some, as fnmatch(3) has it, over the whole name. */
#include "base.h"

#include <fnmatch.h>

bool globs_match(const Globs *p, const char *name)
{
    for (int i = 0; i < p->count; i++)
        if (!fnmatch(p->pattern[i], name, 0))
            return true;
    return false;
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
        const char *near = glob_nearest(p->pattern[i], name, count);
        if (!count)
            fail(arena_ctx(a), TN_USAGE, "%s \"%s\": there are no parameters", what, p->pattern[i]);
        fail(arena_ctx(a), TN_USAGE, "%s \"%s\": matches no parameter%s \"%s\"", what,
             p->pattern[i], near ? "; the nearest is" : ", such as", near ? near : name[0]);
    }
}
