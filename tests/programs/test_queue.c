/* The checker of queues (check_queue.c) on plans made by hand, right ones and such with one error;
 * of the right ones it needs every wait. Each plan is text. Storages: name, space (d, h), offset,
 * then if need be `in`, `out`, `size=`, `loop=` (step that begins its loop), `end=` (in place of
 * where it dies). Steps, numbered from 0: queue (c, o, i; w: a wait), what is read > what is
 * written, @ what is waited for; `x*64` is 64 bytes further in each iteration, `x'` the value
 * before the last that was written there, `x?` what a loop has made there. */
#include "../shared/check_queue.h"
#include "../shared/test.h"

static Ctx ctx;

enum { MOST = 64, NBYTES = 64 };

typedef struct Hand {
    Arena *a;
    Plan p;
    Storage storage[MOST];
    Step step[MOST];
    PlanPort in[MOST], out[MOST];
    Value *value[MOST], *before[MOST]; /* by storage */
    int forced[MOST];                  /* where it is to die, -1: where it does */
    int loop[TN_MAX_DEPTH], depth;
} Hand;

static char **words(Arena *a, const char *text, const char *at, int *n)
{
    char **list = NEWN(a, char *, MOST), *rest;
    *n = 0;
    for (char *w = strtok_r(arena_strdup(a, text), at, &rest); w; w = strtok_r(NULL, at, &rest))
        list[(*n)++] = w;
    return list;
}

static void add_storage(Hand *x, const char *text)
{
    int n, id = x->p.nstorage++;
    char **w = words(x->a, text, " ", &n);
    Storage *s = &x->storage[id];
    *s = (Storage){.name = w[0], .scope = "", .nbytes = NBYTES, .loop = -1};
    s->space = *w[1] == 'h' ? SPACE_HOST : SPACE_MAIN;
    s->offset = atoi(w[2]);
    x->forced[id] = -1;
    x->value[id] = NEW(x->a, Value);
    x->value[id]->name = w[0];
    PlanPort port = {.value = w[0], .storage = id};
    port.type = (Type){.dtype = U8, .rank = 1, .dim = {NBYTES}};
    for (int i = 3; i < n; i++) {
        char *number = strchr(w[i], '=');
        int k = number ? atoi(number + 1) : 0;
        if (!strcmp(w[i], "in"))
            x->in[x->p.nin++] = port;
        else if (!strcmp(w[i], "out"))
            x->out[x->p.nout++] = port;
        else if (!strncmp(w[i], "size", 4))
            s->nbytes = k;
        else if (!strncmp(w[i], "loop", 4))
            s->loop = k;
        else
            x->forced[id] = k;
    }
}

static int find_storage(const Hand *x, const char *name)
{
    size_t len = strcspn(name, "*'?");
    for (int i = 0; i < x->p.nstorage; i++)
        if (strlen(x->storage[i].name) == len && !strncmp(x->storage[i].name, name, len))
            return i;
    CHECK(!"storage");
    return -1;
}

static void add_arg(const Hand *x, Step *s, const char *name, Tensor *t)
{
    const char *stride = strchr(name, '*');
    Arg *a = &s->arg[s->narg++];
    a->storage = find_storage(x, name);
    if (stride)
        a->loop_stride[x->depth - 1] = atoi(stride + 1);
    int64_t nbytes = stride ? NBYTES : x->storage[a->storage].nbytes;
    *t = (Tensor){.dtype = U8, .rank = 1, .dim = {nbytes}, .stride = {1}};
}

static Node *new_node(Arena *a, const char *op, int nin, int nout)
{
    Node *n = NEW(a, Node);
    n->op = op_get(&ctx, op);
    n->nin = nin;
    n->nout = nout;
    n->in = NEWN(a, Value *, nin + 1);
    n->out = NEWN(a, Value *, nout + 1);
    return n;
}

/* "x y", "z": reads and writes. */
static void add_call(Hand *x, Step *s, char queue, const char *reads, const char *writes)
{
    static const char *const op[] = {['c'] = "add", ['o'] = "offload", ['i'] = "reload"};
    int nin, nout;
    char **r = words(x->a, reads, " ", &nin), **w = words(x->a, writes, " ", &nout);
    bool wait = queue == 'w';
    if (wait) {
        w[0] = r[0];
        nout = 1;
    }
    Node *n = new_node(x->a, wait ? "wait_tensor" : op[(int)queue], nin, nout);
    s->kind = STEP_CALL;
    s->queue = queue == 'o' ? QUEUE_OUT : queue == 'i' ? QUEUE_IN : QUEUE_COMPUTE;
    s->node = n;
    s->call = (Call){.node = n, .nin = nin, .nout = nout};
    s->call.in = NEWN(x->a, Tensor, nin + 1);
    s->call.out = NEWN(x->a, Tensor, nout + 1);
    for (int k = 0; k < nin; k++) {
        int id = find_storage(x, r[k]);
        n->in[k] = strchr(r[k], '\'')  ? x->before[id]
                   : strchr(r[k], '?') ? NEW(x->a, Value)
                                       : x->value[id];
        add_arg(x, s, r[k], &s->call.in[k]);
    }
    for (int k = 0; k < nout; k++) {
        int id = find_storage(x, w[k]);
        x->before[id] = x->value[id];
        x->value[id] = n->out[k] = NEW(x->a, Value);
        *n->out[k] = (Value){.name = x->storage[id].name, .def = n};
        add_arg(x, s, w[k], &s->call.out[k]);
    }
}

static void add_step(Hand *x, char *text)
{
    int at = x->p.nstep++, n;
    Step *s = &x->step[at];
    char *waits = strchr(text, '@');
    *s = (Step){.work = -1, .arg = NEWN(x->a, Arg, MOST)};
    s->node = new_node(x->a, "loop", 0, 0);
    if (waits) {
        char **w = words(x->a, waits + 1, " ", &n);
        *waits = 0;
        s->wait = NEWN(x->a, int, n);
        for (s->nwait = 0; s->nwait < n; s->nwait++)
            s->wait[s->nwait] = atoi(w[s->nwait]);
    }
    text += strspn(text, " ");
    if (!strncmp(text, "loop ", 5)) {
        s->kind = STEP_LOOP;
        s->count = atoi(text + 5);
        s->by = 1;
        s->depth = x->depth;
        x->loop[x->depth++] = at;
    } else if (!strncmp(text, "end", 3)) {
        s->kind = STEP_END;
        s->depth = --x->depth;
        s->end = x->loop[x->depth];
        x->step[s->end].end = at;
    } else {
        char *writes = strchr(text, '>');
        if (writes)
            *writes++ = 0;
        add_call(x, s, *text, text + 1, writes ? writes : "");
    }
}

/* Lives and peaks as they are, but for deaths that are forced. */
static void finish(Hand *x)
{
    Plan *p = &x->p;
    plan_live(p);
    for (int i = 0; i < p->nstorage; i++) {
        Storage *s = &p->storage[i];
        s->end = x->forced[i] < 0 ? s->end : x->forced[i];
        PlanSpace *at = &p->space[s->space];
        at->peak = at->bound = MAX(at->peak, s->offset + s->nbytes);
    }
    for (int i = 0; i < p->nstep; i++)
        for (int k = 0; k < p->step[i].nwait; k++)
            p->step[p->step[i].wait[k]].awaited = true;
}

static Hand *make(Arena *a, const char *storages, const char *steps)
{
    Hand *x = NEW(a, Hand);
    int n;
    x->a = a;
    x->p.storage = x->storage;
    x->p.step = x->step;
    x->p.in = x->in;
    x->p.out = x->out;
    x->p.device = device_at(DEVICE_emulated);
    x->p.g = NEW(a, Graph);
    x->p.g->ctx = &ctx;
    char **w = words(a, storages, ",", &n);
    for (int i = 0; i < n; i++)
        add_storage(x, w[i]);
    w = words(a, steps, ";", &n);
    for (int i = 0; i < n; i++)
        add_step(x, w[i]);
    finish(x);
    return x;
}

typedef struct Trial {
    const char *title, *storages, *steps;
    const char *fault; /* NULL: it is right */
} Trial;

#define MAIN "x d 0 in, y d 64, H h 0, "

static const Trial trials[] = {
    {"there and back; the place of what is gone is used again", MAIN "t d 64, z d 128, r d 192 out",
     "c x > y; o y > H @0; w H y @1; c x > t; i H > z @1; w z H @4; c z t > r", NULL},
    {"the same, needed before it is there", MAIN "t d 64, z d 128, r d 192 out",
     "c x > y; o y > H @0; w H y @1; c x > t; i H > z @1; w z H; c z t > r @4",
     "step 4 (reload %z), iteration 0 and step 5"},
    {"the same, a wait too many", MAIN "t d 64, z d 128, r d 192 out",
     "c x > y; o y > H @0; w H y @1; c x > t; i H > z @1 2; w z H @4; c z t > r", "needlessly"},
    {"the same, a wait for what is known by another", MAIN "t d 64, z d 128, r d 192 out",
     "c x > y; o y > H @0; w H y @1; c x > t; i H > z @1; w z H @4 1; c z t > r", "needlessly"},
    {"two storages alive in one place", MAIN "t d 64, r d 192 out", "c x > y; c x > t; c y t > r",
     "storage 1 (y) and storage 3 (t) overlap"},
    {"two storages partly in one place", "x d 0 in size=128, y d 64, r d 192 out",
     "c x > y; c x y > r", "storage 0 (x) and storage 1 (y) overlap"},
    {"dead before its last reader", "x d 0 in, y d 64 end=2, r d 128 out",
     "c x > y; c x > r; c y r > r", "touches storage 1 (y), which lives from 0 to 2"},
    {"dead before the copy of it is waited for", MAIN "t d 64, z d 128, r d 192 out",
     "c x > y; o y > H @0; w H @1; c x > t; i H > z @1; w z H @4; c z t > r",
     "step 1 (offload %H), iteration 0 and step 0"},
    {"its place is written while the copy reads it", MAIN "t d 64, r d 192 out",
     "c x > y; o y > H @0; c x > t; w H @1; c t > r", "are not in order"},
    {"what nobody has written", "x d 0 in, y d 64, r d 128 out", "c x y > r",
     "where no storage was written last"},
    {"the place of what nobody reads", "x d 0 in, y d 64, t d 64, r d 128 out",
     "c x > y; c x > t; c t > r", NULL},
    {"an old value", "x d 0 in, y d 64, r d 128 out", "c x > y; c y > y; c y' > r",
     "reads %y where step 1 (add %y), iteration 0 wrote last"},
    {"a kernel that reads the host's memory", MAIN "r d 128 out",
     "c x > y; o y > H @0; w H y @1; c H > r", "step 3 (add %r): operand 0 lies in the wrong"},
    {"a copy the wrong way", MAIN "r d 128 out", "c x > y; i y > H @0; w H y @1; c x > r",
     "step 1 (reload %H): operand 0 lies in the wrong space"},
    {"a wait for its own queue", "x d 0 in, y d 64, r d 128 out", "c x > y; c y > r @0",
     "waits for step 0 of its queue"},
    {"not aligned", "x d 0 in, y d 96, r d 192 out", "c x > y; c y > r", "lies at 96"},
    {"outside of its storage", "x d 0 in, y d 64 size=128, r d 192 out",
     "loop 3; c x > y*64; end; c y > r", "touches what is outside of storage 1 (y)"},
    /* loops */
    {"a copy in each iteration", MAIN "z d 128, r d 192 out",
     "loop 4; c x > y; o y > H @1; w H y @2; i H > z @2; w z H @4; end; c x > r", NULL},
    {"an iteration waits for the one before", "x d 0 in, y d 64, H h 0, r d 128 out",
     "loop 3; c x > y @2; o y > H @1; end; w H y @2; c x > r", NULL},
    {"an iteration writes what the one before still reads", "x d 0 in, y d 64, H h 0, r d 128 out",
     "loop 3; c x > y; o y > H @1; end; w H y @2; c x > r",
     "step 2 (offload %H), iteration 0 and step 1 (add %y), iteration 1"},
    {"the same in an inner loop", "x d 0 in, y d 64, H h 0, r d 128 out",
     "loop 2; loop 2; c x > y; o y > H @2; end; w H y @3; end; c x > r", "are not in order"},
    {"a part in each iteration", "x d 0 in, y d 64 size=192, H h 0 size=192, r d 256 out",
     "loop 3; c x > y*64; o y*64 > H*64 @1; end; w H? y? @2; c x > r", NULL},
    {"a part in each iteration, a wait too many",
     "x d 0 in, y d 64 size=192, H h 0 size=192, r d 256 out",
     "loop 3; c x > y*64 @2; o y*64 > H*64 @1; end; w H? y? @2; c x > r", "needlessly"},
    {"a wait of one iteration that no iteration was before", MAIN "r d 128 out",
     "loop 1; c x > y @2; o y > H @1; w H y @2; end; c x > r", "needlessly"},
    {"many iterations", MAIN "r d 128 out",
     "loop 100000; c x > y @2; o y > H @1; end; w H y @2; c x > r", NULL},
    {"many iterations, an error in the second", MAIN "r d 128 out",
     "loop 100000; c x > y; o y > H @1; end; w H y @2; c x > r", "iteration 1 touch"},
    {"a result in the host's place of an earlier one", MAIN "K h 0, z d 128, t d 64, r d 192 out",
     "c x > y; o y > H @0; w H y @1; c x > t; o t > K @3; w K t @4; c x > r", NULL},
    {"the same while it is still read", MAIN "K h 0, z d 128, t d 64, r d 192 out",
     "c x > y; o y > H @0; w H y @1; i H > z @1; c x > t; o t > K @4; w z @3; w K t @5; c z > r",
     "are not in order"},
};

static void run_trial(void *arg)
{
    const Trial *t = arg;
    Arena *a = arena_new(&ctx);
    Hand *x = make(a, t->storages, t->steps);
    const char *fault = check_queue(a, &x->p), *which;
    if (!EXPECT(t->fault ? fault && strstr(fault, t->fault) : !fault))
        printf("  %s: %s\n", t->title, fault ? fault : "nothing found");
    for (int k = 0; !t->fault; k++) {
        const Plan *q = drop_wait(a, &x->p, k, &which);
        if (!q)
            break;
        if (!EXPECT(check_order(a, q)))
            printf("  %s: nothing found without %s\n", t->title, which);
    }
    arena_free(a);
}

/* One field of a right plan after the other. */
static void test_fields(void)
{
    static const Trial *const right = &trials[0];
    Arena *a = arena_new(&ctx);
    Hand *x = make(a, right->storages, right->steps);
    x->step[0].awaited = false;
    EXPECT(strstr(check_queue(a, &x->p), "`awaited` is 0"));
    x->step[0].awaited = x->step[6].awaited = true;
    EXPECT(strstr(check_queue(a, &x->p), "`awaited` is 1"));
    x->step[6].awaited = false;
    x->p.space[SPACE_HOST].peak -= 64;
    EXPECT(strstr(check_queue(a, &x->p), "the peak is 0"));
    x->p.space[SPACE_HOST].peak += 64;
    x->p.space[SPACE_MAIN].bound = 100;
    EXPECT(strstr(check_queue(a, &x->p), "the bound is 100"));
    x->p.space[SPACE_MAIN].bound = x->p.space[SPACE_MAIN].peak + 1;
    EXPECT(strstr(check_queue(a, &x->p), "the bound is"));
    x->p.space[SPACE_MAIN].bound--;
    EXPECT(!check_queue(a, &x->p));
    x->p.device = device_at(DEVICE_cpu);
    EXPECT(strstr(check_queue(a, &x->p), "which the device has not"));
    for (int i = 0; i < x->p.nstorage; i++)
        x->storage[i].space = SPACE_MAIN;
    EXPECT(strstr(check_queue(a, &x->p), "the device has one queue"));
    arena_free(a);
}

int main(void)
{
    for (int i = 0; i < LEN(trials); i++)
        if (!EXPECT(!ctx_try(&ctx, run_trial, (void *)&trials[i])))
            printf("  %s: %s\n", trials[i].title, ctx.message);
    test_fields();
    return test_report();
}
