/* Single changes of the choices on a front, which does not depend on the limit: so what they find
 * serves every limit, and a larger one is never slower for it.
 *
 * A change computes one part again, or one or two no longer, or that one in the place of these; on
 * a device with two memories a part may leave. A part is a value; in a short step it is what equal
 * blocks have alike, which changes in all of them.
 *
 * The bytes and the seconds of its values alone foretell what a changed choice may come to. Each
 * choice on the front in turn has that change planned, with less effort, that would be the most
 * seconds below the front. A better one joins the front, and is changed in turn. The search ends
 * where no change seems to be better, or after so many plans. */
#include "again.h"

#include <string.h>

enum {
    MOST_PARTS = 64,
    CHANGED = 3, /* parts at once, at most */
    MOST_PLANS = 100,
    MOST_SHORT = 24,      /* of a short step, on whose front little more is found */
    MOST_NODES = 1 << 16, /* of all plans together */
};

typedef struct ChangedParts {
    int n;
    int *of; /* by number of a value */
    double sec[MOST_PARTS];
    double nbytes[MOST_PARTS];
    bool may[MOST_PARTS]; /* they can go to the host's memory */
} ChangedParts;

/* A choice that differs from another in a few parts. */
typedef struct PartChange {
    int part[CHANGED]; /* -1: none */
    Level to[CHANGED];
    double nbytes, sec; /* that it may need and take */
} PartChange;

/* The changes of a choice that seem better than the front and are not planned yet. */
typedef struct PartChanges {
    const Planned *from;
    PartChange *x;
    int n, cap;
} PartChanges;

typedef struct NearSearch {
    Decider *d;
    Front *f;
    ChangedParts p;
    PartChanges **of; /* choices that were on the front */
    int n, cap;
    Map asked;                        /* by the set, as text */
    int missed[MOST_PARTS][AWAY + 1]; /* how many changes with that one were not better */
    int left;                         /* plans */
} NearSearch;

/* ---- parts ---- */

/* The name of value i's part, which equal values of equal blocks share. */
static const char *part_name(const Decider *d, int i)
{
    const Twin *t = d->s ? map_find(&d->s->node, d->v.name[i]) : NULL;
    return t ? t->name[0] : d->v.name[i];
}

/* For how many values of the whole step value i stands. */
static int weight_of(const Decider *d, int i)
{
    const Twin *t = d->s ? map_find(&d->s->node, d->v.name[i]) : NULL;
    for (int k = 0; t && k < SHORT_KEPT; k++)
        if (!strcmp(t->name[k], d->v.name[i]))
            return d->s->weight[k];
    return 1;
}

/* False: there are too many. */
static bool find_parts(const Decider *d, ChangedParts *p)
{
    Map number = {.a = d->keep};
    p->of = NEWN(d->keep, int, d->v.n);
    for (int i = 0; i < d->v.n; i++) {
        const char *name = part_name(d, i);
        intptr_t k = (intptr_t)map_find(&number, name);
        if (!k && p->n == MOST_PARTS)
            return false;
        if (!k)
            map_put(&number, name, (void *)(k = ++p->n));
        const int weight = weight_of(d, i);
        p->of[i] = (int)k - 1;
        p->sec[k - 1] += weight * d->v.sec[i];
        p->nbytes[k - 1] += weight * (double)d->v.nbytes[i];
        p->may[k - 1] |= d->v.may[i];
    }
    return true;
}

/* Fills the level of each part in x: of its first value. */
static void read_levels(const NearSearch *s, const Planned *x, Level *level)
{
    for (int i = s->d->v.n - 1; i >= 0; i--)
        level[s->p.of[i]] = level_at(x, i);
}

/* ---- what a change may come to ---- */

/* The seconds of the fastest on the front that needs so many bytes at most; the slowest's, where
 * none does. In a short step a mixture of that and the one before it takes the bytes that are left.
 */
static double front_sec(const NearSearch *s, double nbytes)
{
    const Front *f = s->f;
    int low = 0, high = f->n - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if ((double)f->x[middle].need <= nbytes)
            high = middle;
        else
            low = middle + 1;
    }
    const Planned *x = &f->x[high];
    if (!s->d->s || !high || (double)x->need > nbytes)
        return x->sec;
    const double part = (nbytes - (double)x->need) / (double)(x[-1].need - x->need);
    return x->sec + part * (x[-1].sec - x->sec);
}

static double gain_of(const NearSearch *s, const PartChange *c)
{
    return front_sec(s, c->nbytes) - c->sec;
}

/* The bytes of a part that are alive at x's peak; of all of it, where that is not known. */
static double alive_bytes(const NearSearch *s, const Planned *x, int part)
{
    double nbytes = 0;
    if (!x->alive)
        return s->p.nbytes[part];
    for (int i = 0; i < s->d->v.n; i++)
        nbytes += s->p.of[i] == part ? (double)x->alive[i] : 0;
    return nbytes;
}

/* The change with one part more, as the k'th. */
static PartChange with_part(const NearSearch *s, const PartChanges *of, PartChange c, int k,
                            int part, Level was, Level level)
{
    c.part[k] = part;
    c.to[k] = level;
    c.sec += level == AGAIN ? s->p.sec[part] : 0;
    c.sec -= was == AGAIN ? s->p.sec[part] : 0;
    if (was == SAVED)
        c.nbytes -= alive_bytes(s, of->from, part);
    else if (level == SAVED)
        c.nbytes += s->p.nbytes[part];
    return c;
}

static void list_change(const NearSearch *s, PartChanges *to, PartChange c)
{
    enum { LEAST = 1 << 20 }; /* this part of a step's seconds is none */
    if (gain_of(s, &c) > to->from->sec / LEAST)
        PUSH(s->d->keep, to->x, to->n, to->cap, c);
}

/* Lists what c, whose k parts are saved from then on, becomes with one part more, and more. */
static void list_parts(const NearSearch *s, PartChanges *to, PartChange c, int k,
                       const Level *level)
{
    const int last = k ? c.part[k - 1] : -1;
    for (int i = 0; i < s->p.n; i++) {
        if (level[i] == SAVED) {
            list_change(s, to, with_part(s, to, c, k, i, SAVED, AGAIN));
            if (s->p.may[i] && !k)
                list_change(s, to, with_part(s, to, c, k, i, SAVED, AWAY));
        } else if (i > last && k < CHANGED - 1) {
            PartChange x = with_part(s, to, c, k, i, level[i], SAVED);
            list_parts(s, to, x, k + 1, level);
            if (!k && !s->d->s) /* alone it may take none, as where it is alive less is */
                x.nbytes = c.nbytes;
            list_change(s, to, x);
        }
        if (level[i] != SAVED && s->p.may[i] && !k)
            list_change(s, to,
                        with_part(s, to, c, k, i, level[i], level[i] == AWAY ? AGAIN : AWAY));
    }
}

static PartChanges *list_changes(const NearSearch *s, const Planned *x)
{
    Level level[MOST_PARTS];
    PartChanges *to = NEW(s->d->keep, PartChanges);
    Planned *from = NEW(s->d->keep, Planned);
    *from = *x;
    to->from = from;
    read_levels(s, x, level);
    PartChange none = {.nbytes = (double)x->need, .sec = x->sec};
    for (int k = 0; k < CHANGED; k++)
        none.part[k] = -1;
    list_parts(s, to, none, 0, level);
    return to;
}

static PartChanges *changes_of(NearSearch *s, const Planned *x)
{
    for (int i = 0; i < s->n; i++)
        if (s->of[i]->from->level == x->level && s->of[i]->from->prefer == x->prefer)
            return s->of[i];
    PUSH(s->d->keep, s->of, s->n, s->cap, list_changes(s, x));
    return s->of[s->n - 1];
}

/* ---- plans ---- */

static const Level *changed(const NearSearch *s, const Planned *from, const PartChange *c)
{
    const Decider *d = s->d;
    Level *level = NEWN(d->keep, Level, d->v.n);
    for (int i = 0; i < d->v.n; i++) {
        level[i] = level_at(from, i);
        for (int k = 0; k < LEN(c->part); k++)
            if (s->p.of[i] == c->part[k])
                level[i] = c->to[k];
    }
    return level;
}

/* How many changes were not better that have one of c's. */
static int count_missed(const NearSearch *s, const PartChange *c)
{
    int count = 0;
    for (int k = 0; k < CHANGED && c->part[k] >= 0; k++)
        count += s->missed[c->part[k]][c->to[k]];
    return count;
}

/* The change of most gain, less of those that missed; -1: none seems better than the front. */
static int find_best(const NearSearch *s, const PartChanges *list)
{
    double most = 0;
    int at = -1;
    for (int i = 0; i < list->n; i++) {
        const PartChange *c = &list->x[i];
        const double gain = gain_of(s, c) / (1 + count_missed(s, c));
        at = gain > most ? i : at;
        most = MAX(most, gain);
    }
    return at;
}

/* Plans the change of x that seems best and was not planned yet; false: there is none. */
static bool plan_best(NearSearch *s, const Planned *x, Front *to)
{
    Decider *d = s->d;
    PartChanges *list = changes_of(s, x);
    for (int at; (at = find_best(s, list)) >= 0;) {
        const PartChange c = list->x[at];
        list->x[at] = list->x[--list->n];
        const Level *level = changed(s, list->from, &c);
        char *key = NEWN(d->keep, char, d->v.n + 1);
        for (int i = 0; i < d->v.n; i++)
            key[i] = (char)('0' + level[i]);
        if (map_find(&s->asked, key))
            continue;
        map_put(&s->asked, key, d);
        s->left--;
        const Planned y = plan_quick(d, level, NULL);
        front_add(d->keep, to, y);
        const bool better = y.need >= 0 && y.sec < front_sec(s, (double)y.need);
        for (int k = 0; k < CHANGED && c.part[k] >= 0 && !better; k++)
            s->missed[c.part[k]][c.to[k]]++;
        return true;
    }
    return false;
}

void front_improve(Decider *d, Front *f)
{
    NearSearch s = {.d = d, .f = f, .asked.a = d->keep};
    s.left = MIN(d->s ? MOST_SHORT : MOST_PLANS, MOST_NODES / MAX(d->g->nnode, 1));
    if (!find_parts(d, &s.p))
        return;
    for (bool any = true; any && s.left > 0;) {
        Front found = {0};
        any = false;
        for (int i = 0; i < f->n && s.left > 0; i++)
            any |= plan_best(&s, &f->x[i], &found);
        for (int i = 0; i < found.n; i++)
            front_add(d->keep, f, found.x[i]);
        front_close(f);
    }
}
