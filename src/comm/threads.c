/* Ranks as threads of one process. Whoever sends posts where the bytes lie; whoever receives finds
 * the oldest post of that rank with that tag and copies from there, once, outside of the lock; then
 * the send is over. So nothing is allocated or copied twice, and a rank's memory is read by others
 * only between its send() and the done() of that. One lock guards all but the copies. A rank gets
 * news once all that it receives, or sends, with a tag is there, or over: with less it could only
 * look again, and threads that do so take the cores of ranks that compute.
 *
 * An abort ends both: no copy begins once the flag is set, and aborted() returns only when nobody
 * copies from the asking rank any more, so that its memory may go. */
#include "comm.h"

#include <string.h>

/* In the room that comes with it. */
typedef struct ThreadRequest {
    struct ThreadRequest *next; /* of one pair's posts */
    int peer, tag;
    const CommPart *part;
    bool receives;
    bool over; /* of a send: it was copied */
} ThreadRequest;
_Static_assert(sizeof(ThreadRequest) <= COMM_ROOM, "room for a request");

typedef struct Post {
    ThreadRequest *first, *last;
} Post;

/* One rank's open messages of a tag: receives that wait for their post, posts for it that wait for
 * theirs, and its own posts that are not over. */
typedef struct Open {
    int receives, posts, sends;
} Open;

/* One rank. */
typedef struct End {
    CommShared *shared;
    int rank;
    bool left;  /* it has closed */
    int copied; /* copies of its memory under way */
    Open open[COMM_GROUPS];
    void (*news)(void *arg); /* NULL: nobody wants to know */
    void *arg;
} End;

struct CommShared {
    pthread_mutex_t lock;
    pthread_cond_t end_of_copy;
    int n;
    End *end;
    Post *post; /* from * n + to */
    bool aborted;
    char message[COMM_MESSAGE]; /* written once */
};

/* ---- posts ---- */

static Post *post_of(const CommShared *s, int from, int to)
{
    return &s->post[from * s->n + to];
}

static void put_last(Post *p, ThreadRequest *r)
{
    r->next = NULL;
    if (p->last)
        p->last->next = r;
    else
        p->first = r;
    p->last = r;
}

/* Takes the oldest with that tag off; NULL: there is none. */
static ThreadRequest *take_tagged(Post *p, int tag)
{
    ThreadRequest *before = NULL, *r = p->first;
    for (; r && r->tag != tag; r = r->next)
        before = r;
    if (!r)
        return NULL;
    if (before)
        before->next = r->next;
    else
        p->first = r->next;
    if (p->last == r)
        p->last = before;
    return r;
}

/* Locked. What it calls takes no lock of these. */
static void give_news(const End *e)
{
    if (e->news)
        e->news(e->arg);
}

static void give_all_news(const CommShared *s)
{
    for (int i = 0; i < s->n; i++)
        give_news(&s->end[i]);
}

/* ---- the transport ---- */

static int open_end(void **self, CommPlace *place, char *message)
{
    (void)message;
    const End *e = *self;
    int n = e->shared->n;
    *place = (CommPlace){.rank = e->rank, .size = n, .local = e->rank, .here = n};
    return 0;
}

static int send_to(void *self, int to, int tag, const CommPart *p, void **request, char *message)
{
    (void)message;
    End *e = self;
    CommShared *s = e->shared;
    ThreadRequest *r = *request;
    *r = (ThreadRequest){.peer = to, .tag = tag, .part = p};
    pthread_mutex_lock(&s->lock);
    put_last(post_of(s, e->rank, to), r);
    e->open[tag].sends++;
    Open *there = &s->end[to].open[tag];
    if (++there->posts >= there->receives && there->receives)
        give_news(&s->end[to]);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

static int receive_from(void *self, int from, int tag, const CommPart *p, void **request,
                        char *message)
{
    (void)message;
    End *e = self;
    ThreadRequest *r = *request;
    *r = (ThreadRequest){.peer = from, .tag = tag, .part = p, .receives = true};
    pthread_mutex_lock(&e->shared->lock);
    e->open[tag].receives++;
    pthread_mutex_unlock(&e->shared->lock);
    return 0;
}

/* As many bytes as both have, however each divides them. */
static void copy_parts(const CommPart *to, const CommPart *from)
{
    for (int64_t put = 0, got = 0; to && from;) {
        int64_t n = MIN(to->nreceive - put, from->nsend - got);
        if (n)
            memcpy((char *)to->receive + put, (const char *)from->send + got, (size_t)n);
        put += n;
        got += n;
        if (put == to->nreceive)
            to = to->next, put = 0;
        if (got == from->nsend)
            from = from->next, got = 0;
    }
}

/* Without the lock; the post stays as it is until it is over. */
static int copy_post(const ThreadRequest *r, const ThreadRequest *post, char *message)
{
    int64_t sent = part_sends(post->part), expected = part_receives(r->part);
    if (sent == expected) {
        copy_parts(r->part, post->part);
        return 0;
    }
    snprintf(message, COMM_MESSAGE, "rank %d has sent %lld bytes where %lld were expected", r->peer,
             (long long)sent, (long long)expected);
    return -1;
}

static int receive_done(End *e, const ThreadRequest *r, bool *done, char *message)
{
    CommShared *s = e->shared;
    pthread_mutex_lock(&s->lock);
    End *from = &s->end[r->peer];
    ThreadRequest *post = s->aborted ? NULL : take_tagged(post_of(s, r->peer, e->rank), r->tag);
    bool left = !s->aborted && !post && from->left;
    from->copied += post != NULL;
    e->open[r->tag].receives -= post != NULL;
    e->open[r->tag].posts -= post != NULL;
    pthread_mutex_unlock(&s->lock);
    if (left)
        snprintf(message, COMM_MESSAGE, "rank %d has ended", r->peer);
    if (!post)
        return left ? -1 : 0;
    int bad = copy_post(r, post, message);
    pthread_mutex_lock(&s->lock);
    post->over = true;
    if (--from->open[r->tag].sends == 0)
        give_news(from);
    if (--from->copied == 0 && s->aborted)
        pthread_cond_broadcast(&s->end_of_copy);
    pthread_mutex_unlock(&s->lock);
    *done = !bad;
    return bad;
}

static int send_done(const End *e, const ThreadRequest *r, bool *done, char *message)
{
    CommShared *s = e->shared;
    pthread_mutex_lock(&s->lock);
    *done = r->over;
    bool left = !r->over && !s->aborted && s->end[r->peer].left;
    pthread_mutex_unlock(&s->lock);
    if (left)
        snprintf(message, COMM_MESSAGE, "rank %d has ended", r->peer);
    return left ? -1 : 0;
}

static int is_done(void *self, void *request, bool *done, char *message)
{
    const ThreadRequest *r = request;
    *done = false;
    return r->receives ? receive_done(self, r, done, message) : send_done(self, r, done, message);
}

static void abort_all(void *self, int code, const char *message)
{
    (void)code;
    End *e = self;
    CommShared *s = e->shared;
    pthread_mutex_lock(&s->lock);
    if (!s->aborted)
        snprintf(s->message, COMM_MESSAGE, "rank %d: %s", e->rank, message);
    s->aborted = true;
    give_all_news(s);
    pthread_mutex_unlock(&s->lock);
}

static const char *aborted(void *self)
{
    End *e = self;
    CommShared *s = e->shared;
    pthread_mutex_lock(&s->lock);
    bool is = s->aborted;
    while (is && e->copied)
        pthread_cond_wait(&s->end_of_copy, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return is ? s->message : NULL;
}

static void close_end(void *self, bool failed)
{
    (void)failed;
    End *e = self;
    pthread_mutex_lock(&e->shared->lock);
    e->left = true;
    e->news = NULL;
    give_all_news(e->shared);
    pthread_mutex_unlock(&e->shared->lock);
}

static void tell(void *self, void (*news)(void *arg), void *arg)
{
    End *e = self;
    pthread_mutex_lock(&e->shared->lock);
    e->news = news;
    e->arg = arg;
    pthread_mutex_unlock(&e->shared->lock);
}

static const Transport threads = {
    .version = TRANSPORT_VERSION,
    .name = "threads",
    .open = open_end,
    .send = send_to,
    .receive = receive_from,
    .done = is_done,
    .abort = abort_all,
    .aborted = aborted,
    .close = close_end,
    .tell = tell,
};

/* ---- what they share ---- */

static void drop_shared(void *arg)
{
    CommShared *s = arg;
    pthread_cond_destroy(&s->end_of_copy);
    pthread_mutex_destroy(&s->lock);
}

CommShared *comm_shared(Arena *a, int n)
{
    CommShared *s = NEW(a, CommShared);
    s->n = n;
    s->end = NEWN(a, End, n);
    s->post = NEWN(a, Post, n * n);
    for (int i = 0; i < n; i++)
        s->end[i] = (End){.shared = s, .rank = i};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->end_of_copy, NULL);
    arena_defer(a, drop_shared, s);
    return s;
}

const Transport *comm_threads(CommShared *s, int rank, void **self)
{
    *self = &s->end[rank];
    return &threads;
}
