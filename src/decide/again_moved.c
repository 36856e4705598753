/* The search where collectives run beside computing: one frontier of plans that do not depend on
 * the limit, which picks from it.
 *
 * A choice is as good as the bytes are many in which its collectives are moved, so the frontier is
 * of pairs of both (PlanFor's room), each planned as without a limit. Its entries are choices of
 * the front that is planned with less effort, words of --recompute, which gather parameters again
 * where that is hidden, and places of a ladder on which collectives take no time: as a short step
 * tells, fewer bytes from one to the next, and more seconds. An entry that surely fits leaves out
 * those that only have less room than it.
 *
 * From the first entry that fits, and the next one before it that is faster, the search goes on to
 * half of the blocks in which the two differ as in the one, the rest as in the other, and so on
 * between the two next to the limit. A choice faster than the first of the two is not taken where
 * it fits. So two limits with the same two entries have the same choices between, and where they
 * part the smaller one takes nothing that is faster than what the larger one has. Slower entries
 * that fit are planned too where the short step may err so far that they are the faster ones; if it
 * errs further, a larger limit could be slower.
 *
 * In large steps both are corners of the convex curve of seconds over bytes; other entries that
 * seem no slower than what is found, but for noise, are planned beside it.
 *
 * Plans of small steps, and of those without a short one, say what a choice needs. In large steps
 * the short one tells it of entries, and of a half the mean of the two; the whole is planned where
 * that is near the limit, and in the end, together with what was found before if that may be
 * better; if it does not fit, the search goes on between the two. Its addresses are sought within
 * the limit alone, so that what it then needs depends on the limit, but neither its seconds nor
 * whether it fits. The short one tells too what the choice takes with each collective alone.
 */
#include "again.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How many places of a front are entries, and how many plans are made between two choices: in small
 * steps, whose plans take little time, more. */
enum { PLACES_LARGE = 5, PLACES_SMALL = 9 };
enum { MOST_LARGE = 4, MOST_SMALL = 7 };

/* How often a search goes on where what it found was told to fit and does not. */
enum { MOST_MISTOLD = 2 };

/* The share of the seconds between two choices that is worth another plan. */
#define ENOUGH 0.01

bool again_moves(const Decider *d)
{
    const DecideTask *t = d->task;
    return d->g->mesh && t->ordered && t->to.overlap && !t->to.quick &&
           device_is_host(t->to.device);
}

typedef struct Moved {
    Decider *d, *e; /* of the whole step, of that which stands for it */
    bool small;     /* plans of the whole step take little time */
    Front f;        /* its entries, of e */
    bool *bent;     /* by entry: it is slower than mixtures of others in as many bytes seem to be */
    Planned *whole; /* by entry, of d; need 0: not planned yet */
    int from;       /* the entry from which on was chosen */
} Moved;

/* ---- what is told ---- */

/* Whether bytes and seconds of the whole step are told by the short one, and by what lies on either
 * side, until a choice is taken. */
static bool is_told(const Moved *m)
{
    return !m->small && m->d != m->e;
}

/* Whether a choice with so many bytes, as they are told, fits: 1: surely; -1: hardly; 0: only a
 * plan says it. The whole step may need up to a percent less than is told, but its addresses waste
 * that. An entry is planned where it may just fit, as words by hand are entries; a half is not. */
static int told_fit(const Moved *m, int64_t need, bool entry)
{
    enum { SURE = 70, NEAR = 300 }; /* parts of the limit */
    const int64_t memory = m->d->task->memory, near = memory / NEAR;
    const int64_t most = entry ? memory + near : memory - near;
    return !is_told(m) ? 0 : need > most ? -1 : need < memory - memory / SURE;
}

/* ---- the frontier ---- */

/* The share by which the seconds of a short step may be off from one entry to another, and that by
 * which an entry may seem to be slower than mixtures of others. */
static double noise_of(const Moved *m)
{
    return m->d == m->e ? 0 : m->small ? 0.08 : 0.014;
}

static double spread_of(const Moved *m)
{
    return m->small ? 0.05 : 0.015;
}

static int compare_need(const void *x, const void *y)
{
    const Planned *p = x, *q = y;
    if (p->need != q->need)
        return p->need > q->need ? -1 : 1;
    return (p->sec > q->sec) - (p->sec < q->sec);
}

/* The least seconds in so many bytes by those that need no more, and by mixtures of two. */
static double least_within(const Front *f, int64_t nbytes)
{
    double least = INFINITY;
    for (int k = 0; k < f->n; k++) {
        const Planned *y = &f->x[k];
        least = y->need <= nbytes ? MIN(least, y->sec) : least;
        for (int i = 0; i < f->n && y->need < nbytes; i++) {
            const Planned *x = &f->x[i];
            const double part = (double)(nbytes - y->need) / (double)(x->need - y->need);
            if (x->need > nbytes)
                least = MIN(least, y->sec + part * (x->sec - y->sec));
        }
    }
    return least;
}

/* Sorts by bytes downward, and leaves out what is slower than others and mixtures of them by more
 * than a share of the seconds. */
static Front close_frontier(Arena *a, const Front *f, double share)
{
    Front to = {0};
    qsort(f->x, (size_t)f->n, sizeof *f->x, compare_need);
    for (int i = 0; i < f->n; i++) {
        const Planned *x = &f->x[i];
        const bool first = !i || x[-1].need > x->need;
        if (first && x->sec <= (1 + share) * least_within(f, x->need))
            front_add(a, &to, *x);
    }
    return to;
}

static void add_planned(Decider *e, Front *f, Planned x)
{
    plan_full(e, &x);
    front_add(e->keep, f, x);
}

static void add_entry(Decider *e, Front *f, const Level *level, const char *word, int room)
{
    add_planned(e, f, (Planned){.level = level, .word = word, .room = room});
}

/* Adds what a word has computed again, with all gathered parameters kept. */
static void add_kept(Decider *e, Front *f, const Level *word)
{
    Level *level = NEWN(e->keep, Level, e->v.n);
    for (int i = 0; i < e->v.n; i++)
        level[i] = e->v.gather[i] ? SAVED : word[i];
    add_planned(e, f, (Planned){.level = level, .room = ROOM_USUAL, .prefer = true});
}

/* Adds the choices at a few places of a front, evenly by bytes. */
static void add_places(const Moved *m, Front *f, const Front *of)
{
    Decider *e = m->e;
    const int places = m->small ? PLACES_SMALL : PLACES_LARGE;
    const int64_t most = of->x[0].need, range = most - of->x[of->n - 1].need;
    for (int i = 0, at = 0, last = -1; i < places; i++, last = at) {
        while (at < of->n - 1 && of->x[at].need > most - range * i / (places - 1))
            at++;
        if (at == last)
            continue;
        if (m->small)
            add_entry(e, f, of->x[at].level, of->x[at].word, ROOM_LITTLE);
        add_entry(e, f, of->x[at].level, of->x[at].word, ROOM_USUAL);
    }
}

/* The ladder for the forward's end with all gathers of parameters made again, where collectives
 * take no time, as computing hides them. */
static Ladder ladder_hidden(Decider *d)
{
    int64_t *weight = NEWN(d->keep, int64_t, d->step->nvalue);
    for (const Node *n = d->step->first; n; n = n->next)
        for (int k = 0; k < n->nout; k++)
            weight[n->out[k]->id] =
                map_find(&d->gathers, n->out[0]->name) ? 0 : type_nbytes(&n->out[k]->type);
    Ladder l = ladder_new(d->keep, d->step, d->o.prices, d->blocks.of, weight, true);
    l.base = levels_gathers(d);
    return l;
}

/* Adds the choices at places of that ladder. */
static void add_hidden(Decider *e, Front *f)
{
    enum { PARTS = 16 };
    const Ladder l = ladder_hidden(e);
    int *place = NEWN(e->keep, int, l.n + 1), n = l.n ? ladder_joined(e, &l, PARTS, place) : 0;
    for (int i = 0; i < n; i++)
        add_entry(e, f, levels_of_steps(e, &l, place[i]), NULL, ROOM_USUAL);
}

/* Adds the entry of the fewest bytes with none to move collectives in. */
static void add_lowest(const Moved *m, Front *f)
{
    Planned low = {.need = INT64_MAX};
    for (int i = 0; i < f->n; i++)
        low = f->x[i].need < low.need ? f->x[i] : low;
    if (f->n && told_fit(m, low.need, true) <= 0)
        add_entry(m->e, f, low.level, low.word, ROOM_NONE);
}

/* Adds what a word has computed again, with less room where it may not fit otherwise, and with all
 * gathered parameters kept. */
static void add_word(const Moved *m, Front *f, const char *word, bool gathers)
{
    Decider *e = m->e;
    const Level *level = levels_of_word(e, word);
    if (!level)
        return;
    add_entry(e, f, level, word, ROOM_USUAL);
    if (told_fit(m, f->n ? f->x[f->n - 1].need : INT64_MAX, true) <= 0)
        add_entry(e, f, level, word, m->small ? ROOM_LITTLE : ROOM_HALF);
    if (gathers)
        add_kept(e, f, level);
}

static Front make_frontier(const Moved *m)
{
    Decider *e = m->e;
    static const char *const words[] = {"selective", "full"};
    const Front front = again_front(e);
    Front f = {0};
    if (front.n)
        add_places(m, &f, &front);
    const Level *gathers = levels_gathers(e);
    if (gathers)
        add_entry(e, &f, gathers, NULL, ROOM_USUAL);
    for (int i = 0; i < LEN(words); i++)
        add_word(m, &f, words[i], gathers);
    add_hidden(e, &f);
    add_lowest(m, &f);
    f = close_frontier(e->keep, &f, spread_of(m));
    for (int i = 0; i < front.n; i++)
        PUSH(e->r->a, e->r->front, e->r->nfront, e->r->capfront, front.x[i]);
    return f;
}

/* ---- the search ---- */

/* Entry i as a choice for the whole step, which is not planned. */
static Planned told_of(const Moved *m, int i)
{
    return m->d == m->e ? m->f.x[i] : again_whole(m->d, m->e, &m->f.x[i]);
}

static const Planned *whole_of(Moved *m, int i)
{
    Planned *x = &m->whole[i];
    if (!x->need) {
        *x = told_of(m, i);
        plan_full(m->d, x);
    }
    return x;
}

/* Entries that need far too much are not planned. The last one is, as nothing lies behind it. */
static bool entry_fits(Moved *m, int i)
{
    const Planned *x = &m->f.x[i];
    const int fit = told_fit(m, x->need, true);
    if (again_far(m->d, x) || (fit < 0 && i < m->f.n - 1))
        return false;
    return fit > 0 || plan_fits(m->d, whole_of(m, i));
}

/* The first entry that fits; -1: none does. */
static int find_first(Moved *m)
{
    int i = 0;
    while (i < m->f.n && !entry_fits(m, i))
        i++;
    while (0 < i && i < m->f.n && entry_fits(m, i - 1))
        i--;
    return i < m->f.n ? i : -1;
}

/* Entry i as it is told, or planned. */
static Planned entry_of(Moved *m, int i)
{
    return is_told(m) && !m->whole[i].need ? told_of(m, i) : *whole_of(m, i);
}

/* Entry i's seconds as they are told, or as x, which is that entry, takes. */
static double told_sec(const Moved *m, int i, const Planned *x)
{
    return is_told(m) ? m->f.x[i].sec : x->sec;
}

/* A search between two choices. */
typedef struct Between {
    Pair p;
    Planned before[(MOST_MISTOLD + 1) * MOST_SMALL]; /* what was p.high before */
    int nbefore;
    double floor; /* the least seconds of what may be taken, as a larger limit has no fewer */
    bool worth;   /* a first plan between them is worth its time */
} Between;

/* The choice between two: half of the levels, and of the room. need -1: there is none. */
static Planned middle_of(const Moved *m, const Pair *p, bool second)
{
    const int rooms = p->low.room + p->high.room;
    Planned x = {.level = levels_middle(m->d, p, second),
                 .room = rooms / 2,
                 .need = (p->low.need + p->high.need) / 2,
                 .sec = (p->low.sec + p->high.sec) / 2};
    if (!x.level) {
        x.level = p->high.level;
        if (second || x.room == p->low.room || x.room == p->high.room)
            x.need = -1;
    }
    return x;
}

/* Puts the choice between the two in the place of one of them; false: it does not lie between. */
static bool take_middle(Moved *m, Between *b, bool second)
{
    Pair *p = &b->p;
    Planned x = middle_of(m, p, second);
    if (x.need < 0)
        return false;
    const int fit = told_fit(m, x.need, false);
    if (!fit)
        plan_full(m->d, &x);
    if (x.need < 0 || x.need >= p->low.need || x.sec >= p->high.sec)
        return false;
    if (x.sec >= b->floor && (fit ? fit > 0 : plan_fits(m->d, &x))) {
        b->before[b->nbefore++] = p->high;
        p->high = x;
    } else {
        p->low = x;
        b->floor = MAX(b->floor, x.sec);
    }
    return true;
}

static bool is_worth(double low, double high)
{
    return low < (1 - ENOUGH) * high;
}

static void search_between(Moved *m, Between *b)
{
    const int most = m->small ? MOST_SMALL : MOST_LARGE;
    b->floor = b->p.low.sec;
    for (int n = 0, second = 0; n < most && (n ? is_worth(b->floor, b->p.high.sec) : b->worth);
         n++) {
        if (take_middle(m, b, second))
            second = 0;
        else if (second++)
            return;
    }
}

/* Plans what was found. Where that does not fit, as it was told to, the search goes on between it
 * and what was found before. */
static Planned plan_high(Moved *m, Between *b)
{
    Planned x = b->p.high;
    plan_full(m->d, &x);
    for (int i = 0; i < MOST_MISTOLD && b->nbefore && !plan_fits(m->d, &x); i++) {
        const Planned low = x;
        x = b->before[--b->nbefore];
        b->p = (Pair){.low = low, .high = x};
        if (low.need > x.need && low.sec < x.sec)
            search_between(m, b);
        x = b->p.high;
        plan_full(m->d, &x);
    }
    return x;
}

/* The same, and what was found before as long as that may be better. */
static Planned plan_found(Moved *m, Between *b)
{
    Planned best = plan_high(m, b);
    for (int i = b->nbefore - 1; i >= 0; i--) {
        Planned x = b->before[i];
        if (plan_fits(m->d, &best) && best.sec < x.sec)
            break;
        plan_full(m->d, &x);
        best = planned_better(m->d, best, x);
    }
    return best;
}

/* Seconds for a byte from entry i to k, which needs more. */
static double slope(const Moved *m, int i, int k)
{
    const Planned *x = &m->f.x[i], *y = &m->f.x[k];
    return (y->sec - x->sec) / (double)(y->need - x->need);
}

/* Fills which entries lie on no corner of the convex curve of seconds over bytes; of small steps,
 * whose entries are all planned where they matter, none. */
static void find_bent(Moved *m)
{
    int *corner = NEWN(m->d->keep, int, m->f.n), n = 0;
    m->bent = NEWN(m->d->keep, bool, m->f.n);
    for (int i = m->f.n - 1; i >= 0 && !m->small; i--) {
        const Planned *x = &m->f.x[i];
        m->bent[i] = true;
        if (n && x->sec >= m->f.x[corner[n - 1]].sec)
            continue;
        while (n > 1 && slope(m, corner[n - 2], corner[n - 1]) >= slope(m, corner[n - 2], i))
            n--;
        corner[n++] = i;
    }
    for (int i = 0; i < n; i++)
        m->bent[corner[i]] = false;
}

/* Whether entry i only has less room than one from `from` on. */
static bool has_less_room(const Moved *m, int from, int i)
{
    const Planned *x = &m->f.x[i];
    bool less = false;
    for (int k = from; k < i; k++) {
        const Planned *y = &m->f.x[k];
        less |= x->word && y->word ? !strcmp(x->word, y->word) : x->level == y->level;
    }
    return less;
}

/* Plans entry i for the whole step as far as it may be faster than x, which fits or does not. */
static Planned whole_below(Moved *m, int i, const Planned *x)
{
    if (m->whole[i].need)
        return m->whole[i];
    Planned y = told_of(m, i);
    plan_below(m->d, &y, plan_fits(m->d, x) ? x->sec : 0);
    if (!y.loose)
        m->whole[i] = y;
    return y;
}

/* Whether entry i, which is no corner, may be faster than x after all. */
static bool may_be_faster(const Moved *m, int i, const Planned *x)
{
    const bool known = m->whole[i].need != 0;
    return m->bent[i] && (known || !has_less_room(m, 0, i)) &&
           m->f.x[i].sec * (1 - noise_of(m)) < x->sec;
}

/* The number of the fastest entry that fits, of the first and of those behind it that may be. */
static int find_fastest(Moved *m, int first)
{
    int best = first;
    for (int i = first + 1; i < m->f.n; i++) {
        const double most = (1 + noise_of(m)) * m->f.x[first].sec;
        if (m->f.x[i].sec > most || has_less_room(m, first, i) || !entry_fits(m, i))
            continue;
        const Planned *x = whole_of(m, best);
        const Planned y = whole_below(m, i, x);
        best = planned_first(m->d, x, &y) ? best : i;
    }
    return best;
}

/* The number of the first corner from that entry on. */
static int find_corner(const Moved *m, int first)
{
    while (m->bent[first])
        first++;
    return first;
}

/* Whether a choice between entries i and k may be faster than k, as the short step tells. */
static bool may_gain(const Moved *m, int i, int k)
{
    const Pair p = {.low = m->f.x[i], .high = m->f.x[k]};
    Planned x = {.level = levels_middle(m->e, &p, false), .room = (p.low.room + p.high.room) / 2};
    if (!x.level)
        return true;
    plan_full(m->e, &x);
    return x.need < 0 || x.sec * (1 - noise_of(m)) < p.high.sec;
}

/* Chooses from the first entry that fits on, and among those that are no corners and may be faster.
 */
static Planned choose_from(Moved *m, int first)
{
    m->from = m->small ? find_fastest(m, first) : find_corner(m, first);
    Between b = {.p.high = entry_of(m, m->from)};
    for (int i = first - 1; i >= 0 && !b.p.low.need; i--) {
        const Planned x = m->bent[i] ? b.p.high : entry_of(m, i);
        if (x.sec >= b.p.high.sec)
            continue;
        b.p.low = x;
        b.worth = is_worth(told_sec(m, i, &x), told_sec(m, m->from, &b.p.high)) &&
                  (!is_told(m) || may_gain(m, i, m->from));
    }
    if (b.p.low.need > 0)
        search_between(m, &b);
    Planned best = plan_found(m, &b);
    for (int i = first; i < m->f.n; i++)
        if (!plan_fits(m->d, &best) || (may_be_faster(m, i, &best) && entry_fits(m, i)))
            best = planned_better(m->d, best, whole_below(m, i, &best));
    return best;
}

/* The times of its seconds that the short step takes with each collective alone, by the entry from
 * which on was chosen; 0: the whole step is to be planned to know. */
static double tell_apart(const Moved *m)
{
    const Decider *e = m->e;
    if (!is_told(m) || !m->d->task->joins || !e->o.bucket || strcmp(e->o.bucket, "block") != 0)
        return 0;
    Decider alone = *e;
    alone.o.bucket = "off";
    alone.known = NEW(e->keep, AgainKnown);
    alone.known->of.a = e->keep;
    Planned x = m->f.x[m->from];
    plan_full(&alone, &x);
    return x.need < 0 ? 0 : x.sec / m->f.x[m->from].sec;
}

bool again_search_moved(Decider *d)
{
    if (d->task->memory <= NO_MEMORY) /* nothing fits */
        return false;
    Decider *e = again_shorter(d);
    Moved m = {.d = d, .e = e ? e : d};
    m.small = !is_long(d);
    m.e->r->nfront = 0;
    m.f = make_frontier(&m);
    m.whole = NEWN(d->keep, Planned, m.f.n);
    find_bent(&m);
    const int first = find_first(&m);
    const Planned best = first >= 0 ? choose_from(&m, first) : (Planned){.need = -1};
    if (!plan_fits(d, &best)) {
        m.e->r->nfront = 0; /* another search fills it */
        return false;
    }
    if (e)
        again_take_front(d, e);
    d->r->chosen = best;
    d->r->apart = tell_apart(&m);
    return true;
}
