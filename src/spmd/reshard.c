/* reshard: from one form of a value, a cut for each mesh axis, to another.
 *
 * A step changes the cut of one mesh axis, or alike the cuts of several, over their flat group;
 * lowering.c says how a rank's tensor changes.
 *
 * Search: a state says for each mesh axis that differs whether its cut is still the first, gone, or
 * the last, and whether the value lies with strides, as a slice leaves it, so that a collective
 * copies it first. Steps lead to states of greater number, so that one walk over them finds the
 * cheapest sequence among all orders and flat groups; among equals the one with fewer steps, then
 * the first. Every form in between must be legal. Only if there is no such sequence, an axis may
 * become whole in between (a sum to a slice by all_reduce, a slice to another by all_gather). At
 * most 3^d forms for d axes, as a rule 2^d; without allocation.
 *
 * No steps lead to a partial form from another one, from partial log-sum-exps, which are merged by
 * their op, or from sums and maxima at once. */
#include "rewrite.h"

#include <string.h>

static const struct KindRow {
    int collective; /* -1: none */
    const char *op;
} kind_table[] = {
    [RESHARD_SLICE] = {-1, "slice"},
    [RESHARD_GATHER] = {ALL_GATHER, "all_gather_into_tensor"},
    [RESHARD_SCATTER] = {REDUCE_SCATTER, "reduce_scatter_tensor"},
    [RESHARD_REDUCE] = {ALL_REDUCE, "all_reduce"},
    [RESHARD_EXCHANGE] = {ALL_TO_ALL, "all_to_all_single"},
};

const char *reshard_name(ReshardKind k)
{
    return kind_table[k].op;
}

/* ---- prices ---- */

static double copied_sec(const Machine *machine, const Type *t)
{
    double nbytes = (double)type_nbytes(t);
    return cost_sec(machine, CLASS_MOVEMENT, t->dtype, &(Cost){.nread = nbytes, .nwrite = nbytes});
}

static void price(const Machine *machine, const Mesh *m, const Type *v, const Lowering *w,
                  ReshardStep *s)
{
    int k = kind_table[s->kind].collective;
    Type y = step_result(w, s);
    bool axes[MAX_MESH] = {0};
    s->nbytes = s->sec = 0;
    if (w->before)
        s->sec += copied_sec(machine, v);
    if (w->after)
        s->sec += copied_sec(machine, &y);
    s->copied = s->sec;
    if (k < 0)
        return;
    for (int i = 0; i < s->naxes; i++)
        axes[s->axes[i]] = true;
    s->nbytes = (double)MAX(type_nbytes(v), type_nbytes(&y));
    s->sec += collective_sec(machine, (CollectiveKind)k,
                             mesh_group(machine, m->size, m->naxes, axes), s->nbytes);
}

/* ---- steps ---- */

static int kind_between(const Cut *from, const Cut *to)
{
    if (cut_is_partial(*to) || from->kind == CUT_LOGSUMEXP)
        return -1;
    if (cut_is_partial(*from))
        return cut_slices(to) ? RESHARD_SCATTER : RESHARD_REDUCE;
    if (cut_slices(from))
        return cut_slices(to) ? RESHARD_EXCHANGE : RESHARD_GATHER;
    return RESHARD_SLICE;
}

/* Sorts the step's mesh axes, major first. */
static void sort_axes(ReshardStep *s)
{
    const Cut *form = cut_slices(&s->from[s->axes[0]]) ? s->from : s->to;
    for (int i = 1; i < s->naxes; i++)
        for (int j = i; j > 0 && form[s->axes[j]].outer < form[s->axes[j - 1]].outer; j--) {
            int d = s->axes[j];
            s->axes[j] = s->axes[j - 1];
            s->axes[j - 1] = d;
        }
}

/* Whether cuts of two mesh axes are as one of their flat group, d's being the minor. */
static bool joined(const Mesh *m, const Cut *form, int c, int d)
{
    return form[c].kind == form[d].kind &&
           (!cut_slices(&form[c]) ||
            (form[c].axis == form[d].axis && form[d].outer == form[c].outer * m->size[c]));
}

/* Whether an exchange is possible: within one axis the new cut must lie above or below the old. */
static bool exchanges(const Mesh *m, const Type *t, const ReshardStep *s)
{
    int64_t n = group_nranks(m, s->naxes, s->axes);
    const PartCut both[2] = {{.count = n}, {.count = n}};
    return cut_value_legal(t, 2, both, (Cut[]){s->from[s->axes[0]], s->to[s->axes[0]]});
}

/* The step of the mesh axes in which from and to differ; false: there is none. */
static bool step_between(const Mesh *m, const Type *t, ReshardStep *s)
{
    int kind = -1;
    s->naxes = 0;
    for (int d = 0; d < m->naxes; d++)
        if (!cut_equal(s->from[d], s->to[d])) {
            int k = kind_between(&s->from[d], &s->to[d]);
            if (k < 0 || (s->naxes && k != kind))
                return false;
            kind = k;
            s->axes[s->naxes++] = d;
        }
    s->kind = (ReshardKind)kind;
    if (kind != RESHARD_REDUCE)
        sort_axes(s);
    for (int i = 1; i < s->naxes; i++)
        if (!joined(m, s->from, s->axes[i - 1], s->axes[i]) ||
            !joined(m, s->to, s->axes[i - 1], s->axes[i]))
            return false;
    return kind != RESHARD_EXCHANGE || exchanges(m, t, s);
}

/* ---- search ---- */

/* How far a mesh axis has come; two bits for each make the code of a form. */
enum { FIRST, GONE, LAST, NCODE = 1 << 2 * MAX_MESH };

/* The form that a code stands for. */
typedef struct CodeForm {
    bool known, legal;
    Cut cut[MAX_MESH];
    Type local; /* a rank's part */
} CodeForm;

typedef struct ReshardSearch {
    const Machine *machine;
    const Mesh *m;
    const Type *t;
    const Cut *from, *to;
    int naxes, axes[MAX_MESH];              /* that differ */
    bool detours;                           /* through whole axes */
    CodeForm *form;                         /* by code */
    StepTable *steps;                       /* NULL: none are kept */
    int64_t number[MAX_MESH + 1][LAST + 1]; /* in it: parts of a form's, by axis and stage; then
                                               that of the axes that do not differ */
} ReshardSearch;

/* The cheapest steps to a state, by the last one. */
typedef struct Reached {
    bool reached;
    bool strided; /* so was the value before that step, */
    int before;   /* ... and this the code of its form */
    int nstep;
    double sec;
} Reached;

static bool is_cheaper(const Reached *x, const Reached *y)
{
    if (!x->reached || !y->reached)
        return x->reached;
    return x->sec < y->sec || (x->sec == y->sec && x->nstep < y->nstep);
}

static int stage_of(int code, int i)
{
    return code >> 2 * i & 3;
}

static void fill_form(const ReshardSearch *s, int code, Cut *form)
{
    memcpy(form, s->to, sizeof *form * (size_t)s->m->naxes);
    for (int i = 0; i < s->naxes; i++) {
        int stage = stage_of(code, i);
        if (stage == FIRST)
            form[s->axes[i]] = s->from[s->axes[i]];
        else if (stage == GONE)
            form[s->axes[i]] = (Cut){.kind = CUT_WHOLE};
    }
}

static bool form_legal(const ReshardSearch *s, const Cut *form)
{
    PartCut cuts[MAX_MESH] = {0};
    for (int d = 0; d < s->m->naxes; d++)
        cuts[d].count = s->m->size[d];
    return cut_value_legal(s->t, s->m->naxes, cuts, form);
}

static const CodeForm *form_of(const ReshardSearch *s, int code)
{
    CodeForm *y = &s->form[code];
    if (!y->known) {
        y->known = true;
        fill_form(s, code, y->cut);
        y->legal = form_legal(s, y->cut);
        if (y->legal)
            y->local = cut_local_type(s->t, s->m, y->cut);
    }
    return y;
}

/* The step from one code to another, priced; false: there is none. *strided: so lies the result. */
static bool find_step(const ReshardSearch *s, int code, int next, ReshardStep *step, bool *strided)
{
    const CodeForm *from = form_of(s, code), *to = form_of(s, next);
    if (!to->legal)
        return false;
    memcpy(step->from, from->cut, sizeof from->cut);
    memcpy(step->to, to->cut, sizeof to->cut);
    if (!step_between(s->m, s->t, step))
        return false;
    Lowering w = step_lower(s->m, &from->local, step);
    price(s->machine, s->m, &from->local, &w, step);
    *strided = w.strided;
    return true;
}

/* The code after the axes of `set` have come to a stage; -1: one cannot. */
static int next_code(const ReshardSearch *s, int code, int set, int stage)
{
    for (int i = 0; i < s->naxes; i++) {
        if (!(set >> i & 1))
            continue;
        const Cut *from = &s->from[s->axes[i]], *to = &s->to[s->axes[i]];
        bool between = from->kind != CUT_WHOLE && to->kind != CUT_WHOLE;
        if (stage_of(code, i) >= stage || (stage == GONE && !between))
            return -1;
        code += (stage - stage_of(code, i)) << 2 * i;
    }
    return code;
}

/* Numbers the cuts of all forms that a search may come to; without numbers nothing is kept. */
static void number_cuts(ReshardSearch *s)
{
    const Cut whole = {.kind = CUT_WHOLE};
    int64_t *rest = s->number[s->naxes];
    rest[0] = 0;
    for (int d = 0, i = 0; d < s->m->naxes; d++) {
        const bool differs = i < s->naxes && s->axes[i] == d;
        int64_t first = step_cut(s->steps, s->from[d], d), gone = step_cut(s->steps, whole, d);
        int64_t last = step_cut(s->steps, s->to[d], d);
        if (first < 0 || gone < 0 || last < 0)
            s->steps = NULL;
        if (!s->steps)
            return;
        if (differs)
            s->number[i][FIRST] = first, s->number[i][GONE] = gone, s->number[i++][LAST] = last;
        else
            rest[0] += first;
    }
}

static int64_t number_of(const ReshardSearch *s, int code)
{
    int64_t form = s->number[s->naxes][0];
    for (int i = 0; i < s->naxes; i++)
        form += s->number[i][stage_of(code, i)];
    return form;
}

/* The same, as far as a search needs it: from the table if it is there. */
static StepSec step_sec(const ReshardSearch *s, int code, int next, bool strided)
{
    StepSec none = {.known = false}, *y = &none;
    if (s->steps)
        y = step_find(s->steps, number_of(s, code), number_of(s, next), strided);
    if (!y->known) {
        ReshardStep step = {.strided = strided};
        bool left = false;
        bool possible = find_step(s, code, next, &step, &left);
        *y = (StepSec){true, possible, left, step.sec};
    }
    return *y;
}

static void try_step(const ReshardSearch *s, Reached (*best)[2], int code, bool strided, int next)
{
    const Reached *x = &best[code][strided];
    StepSec step = step_sec(s, code, next, strided);
    if (!step.possible)
        return;
    Reached y = {true, strided, code, x->nstep + 1, x->sec + step.sec};
    if (is_cheaper(&y, &best[next][step.left]))
        best[next][step.left] = y;
}

static void try_steps(const ReshardSearch *s, Reached (*best)[2], int code, bool strided)
{
    for (int stage = LAST; stage >= (s->detours ? GONE : LAST); stage--)
        for (int set = 1; set < 1 << s->naxes; set++) {
            int next = next_code(s, code, set, stage);
            if (next >= 0)
                try_step(s, best, code, strided, next);
        }
}

/* Writes down the steps that end in a state. */
static void fill_steps(const ReshardSearch *s, Reached (*best)[2], int code, bool strided,
                       Reshard *r)
{
    bool left;
    r->nstep = best[code][strided].nstep;
    r->sec = 0;
    for (int i = r->nstep - 1; i >= 0; i--) {
        const Reached *y = &best[code][strided];
        r->step[i].strided = y->strided;
        bool good = find_step(s, y->before, code, &r->step[i], &left);
        CHECK(good);
        code = y->before;
        strided = y->strided;
    }
    for (int i = 0; i < r->nstep; i++)
        r->sec += r->step[i].sec;
}

/* Whether steps from a state may lead to the end for less than what does so already. */
static bool is_of_use(const Reached *x, const Reached *end)
{
    return x->reached && is_cheaper(x, &end[false]) && is_cheaper(x, &end[true]);
}

static bool search(ReshardSearch *s, Reshard *r)
{
    Reached best[NCODE][2];
    CodeForm form[NCODE];
    int end = next_code(s, 0, (1 << s->naxes) - 1, LAST);
    memset(best, 0, sizeof *best * (size_t)(end + 1));
    for (int code = 0; code <= end; code++)
        form[code].known = false;
    s->form = form;
    best[0][false].reached = true;
    for (int code = 0; code < end; code++)
        for (int strided = 0; strided < 2; strided++)
            if (is_of_use(&best[code][strided], best[end]))
                try_steps(s, best, code, strided);
    bool strided = is_cheaper(&best[end][true], &best[end][false]);
    r->sec = best[end][strided].sec;
    if (best[end][strided].reached && !s->steps)
        fill_steps(s, best, end, strided, r);
    return best[end][strided].reached;
}

/* The same where one mesh axis differs. */
static bool find_single(ReshardSearch *s, Reshard *r)
{
    CodeForm form[LAST + 1] = {{.known = false}};
    bool left;
    s->form = form;
    if (s->steps) {
        StepSec y = step_sec(s, 0, next_code(s, 0, 1, LAST), false);
        r->sec = y.sec;
        return y.possible;
    }
    r->step[0].strided = false;
    if (!find_step(s, 0, next_code(s, 0, 1, LAST), &r->step[0], &left))
        return false;
    r->nstep = 1;
    r->sec = r->step[0].sec;
    return true;
}

/* Sums of maxima and maxima of sums differ: one merge at once. */
static bool merges_agree(const Mesh *m, const Cut *from)
{
    CutKind kind = CUT_WHOLE;
    for (int d = 0; d < m->naxes; d++) {
        if (!cut_is_partial(from[d]))
            continue;
        if (kind != CUT_WHOLE && kind != from[d].kind)
            return false;
        kind = from[d].kind;
    }
    return true;
}

/* steps: NULL; or a table, by which r gets the seconds alone. */
static bool find(const Machine *machine, const Mesh *m, const Type *t, StepTable *steps,
                 const Cut *from, const Cut *to, Reshard *r)
{
    Cut first[MAX_MESH] = {0}, last[MAX_MESH] = {0};
    ReshardSearch s = {
        .machine = machine, .m = m, .t = t, .from = first, .to = last, .steps = steps};
    bool merges = false;
    for (int d = 0; d < m->naxes; d++) {
        if (m->size[d] == 1)
            continue;
        first[d] = from[d];
        last[d] = to[d];
        if (cut_equal(from[d], to[d]))
            continue;
        if (kind_between(&from[d], &to[d]) < 0)
            return false;
        merges = merges || cut_is_partial(from[d]);
        s.axes[s.naxes++] = d;
    }
    if (!s.naxes) {
        r->nstep = 0;
        r->sec = 0;
        return true;
    }
    if (merges && !merges_agree(m, first))
        return false;
    if (!form_legal(&s, first) || !form_legal(&s, last))
        return false;
    if (s.steps)
        number_cuts(&s);
    if (s.naxes == 1 ? find_single(&s, r) : search(&s, r))
        return true;
    s.detours = true;
    return search(&s, r);
}

bool reshard_find(const Machine *machine, const Mesh *m, const Type *t, const Cut *from,
                  const Cut *to, Reshard *r)
{
    return find(machine, m, t, NULL, from, to, r);
}

double reshard_sec(const Machine *machine, const Mesh *m, const Type *t, StepTable *steps,
                   const Cut *from, const Cut *to)
{
    Reshard r;
    return find(machine, m, t, steps, from, to, &r) ? r.sec : INFINITY;
}
