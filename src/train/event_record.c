/* Records of event files: the framing of TFRecord (length, masked CRC-32C of the length, bytes,
 * masked CRC-32C of the bytes), each of which is a message Event of protocol buffers, encoded here
 * by hand: wall_time (1), step (2), and one of file_version (3), summary (5) and session_log (7). A
 * summary has a value for each metric: tag (1), simple_value (2). A torn last record is no record.
 */
#include "trainer.h"

#include <math.h>
#include <string.h>
#include <time.h>

/* ---- messages of protocol buffers ---- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* how a field's value is stored */

static void put_bytes(EventMessage *m, const void *data, size_t n)
{
    if (n > sizeof m->byte - m->n)
        return; /* it cannot be: MOST_METRICS values fit */
    memcpy(m->byte + m->n, data, n);
    m->n += n;
}

/* The least significant byte first, as processors here store numbers. */
static void put_varint(EventMessage *m, uint64_t x)
{
    unsigned char byte;
    for (; x >= 0x80; x >>= 7) {
        byte = (unsigned char)(x | 0x80);
        put_bytes(m, &byte, 1);
    }
    byte = (unsigned char)x;
    put_bytes(m, &byte, 1);
}

static void put_key(EventMessage *m, unsigned field, unsigned how)
{
    put_varint(m, field << 3 | how);
}

static void put_string(EventMessage *m, unsigned field, const void *data, size_t n)
{
    put_key(m, field, BYTES);
    put_varint(m, n);
    put_bytes(m, data, n);
}

static EventMessage begin_event(int64_t step)
{
    EventMessage m = {.n = 0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double sec = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_key(&m, 1, FIXED64);
    put_bytes(&m, &sec, sizeof sec);
    put_key(&m, 2, VARINT);
    put_varint(&m, (uint64_t)step);
    return m;
}

EventMessage event_version(void)
{
    static const char version[] = "brain.Event:2";
    EventMessage m = begin_event(0);
    put_string(&m, 3, version, sizeof version - 1);
    return m;
}

EventMessage event_restart(int64_t step)
{
    static const unsigned char started[] = {1 << 3 | VARINT, 1}; /* SessionLog.status: START */
    EventMessage m = begin_event(step);
    put_string(&m, 7, started, sizeof started);
    return m;
}

EventMessage event_of(const MetricsLine *l)
{
    EventMessage m = begin_event(l->step), all = {.n = 0};
    for (int i = 0; i < l->count; i++) {
        const Metric *x = &l->list[i];
        EventMessage one = {.n = 0};
        float value = x->whole ? (float)x->integer : (float)x->real;
        if (!isfinite(value))
            continue;
        put_string(&one, 1, x->name, strlen(x->name));
        put_key(&one, 2, FIXED32);
        put_bytes(&one, &value, sizeof value);
        put_string(&all, 1, one.byte, one.n);
    }
    put_string(&m, 5, all.byte, all.n);
    return m;
}

/* ---- records ---- */

static uint32_t masked_sum(const void *data, size_t n)
{
    uint32_t sum = tn_crc32c(data, (int64_t)n);
    return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

void event_write(FILE *f, const EventMessage *m)
{
    uint64_t len = m->n;
    uint32_t of_len = masked_sum(&len, sizeof len), of_bytes = masked_sum(m->byte, m->n);
    fwrite(&len, sizeof len, 1, f);
    fwrite(&of_len, sizeof of_len, 1, f);
    fwrite(m->byte, 1, m->n, f);
    fwrite(&of_bytes, sizeof of_bytes, 1, f);
}

int event_read(FILE *f, EventMessage *m)
{
    uint64_t len;
    uint32_t sum;
    m->n = 0;
    if (fread(&len, sizeof len, 1, f) != 1 || fread(&sum, sizeof sum, 1, f) != 1)
        return 0;
    if (sum != masked_sum(&len, sizeof len) || len > sizeof m->byte)
        return -1;
    m->n = (size_t)len;
    if (fread(m->byte, 1, m->n, f) != m->n || fread(&sum, sizeof sum, 1, f) != 1)
        return 0;
    return sum == masked_sum(m->byte, m->n) ? 1 : -1;
}

/* ---- messages that are there ---- */

typedef struct Cursor {
    const unsigned char *at, *end;
    bool good;
} Cursor;

static uint64_t take_varint(Cursor *c)
{
    uint64_t x = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (c->at == c->end)
            break;
        x |= (uint64_t)(*c->at & 0x7f) << shift;
        if (!(*c->at++ & 0x80))
            return x;
    }
    c->good = false;
    return 0;
}

/* Takes a field's number; its value is a varint, in *x, or the bytes of *value. 0: there is none.
 */
static unsigned take_field(Cursor *c, uint64_t *x, Cursor *value)
{
    if (c->at == c->end || !c->good)
        return 0;
    uint64_t key = take_varint(c);
    unsigned how = (unsigned)(key & 7);
    uint64_t n = how == FIXED64 ? 8 : how == FIXED32 ? 4 : 0;
    if (how == VARINT || how == BYTES)
        *x = take_varint(c);
    if (how == BYTES)
        n = *x;
    c->good &= how == VARINT || how == BYTES || n;
    c->good &= n <= (uint64_t)(c->end - c->at);
    if (!c->good)
        return 0;
    *value = (Cursor){c->at, c->at + n, true};
    c->at += n;
    return (unsigned)(key >> 3);
}

/* Whether a summary has a value of that tag. */
static bool has_tag(Cursor summary, const char *tag)
{
    uint64_t x = 0;
    Cursor value, text;
    bool found = false;
    for (unsigned field; (field = take_field(&summary, &x, &value));)
        for (unsigned part; field == 1 && (part = take_field(&value, &x, &text));)
            found |= part == 1 && (size_t)(text.end - text.at) == strlen(tag) &&
                     !memcmp(text.at, tag, strlen(tag));
    return found;
}

bool event_key(const void *message, size_t n, MetricsKey *k)
{
    const unsigned char *byte = message;
    Cursor c = {byte, byte + n, true}, value;
    uint64_t x = 0;
    *k = (MetricsKey){0};
    for (unsigned field; (field = take_field(&c, &x, &value));) {
        if (field == 2)
            k->step = (int64_t)x;
        k->evaluation |= field == 5 && has_tag(value, "eval_loss");
    }
    return c.good;
}
