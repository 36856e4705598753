/* Random sharding problems as text: sizes, costs, what is forbidden and the limit by a shape. */
#include "pick_make.h"

typedef struct Maker {
    Buf b;
    const PickShape *s;
    uint32_t seed, drawn;
    int *labels;
} Maker;

static int draw(Maker *m, int below)
{
    uint32_t counter[4] = {m->drawn++, 0, 0, 0}, key[2] = {m->seed, 77}, out[4];
    philox(counter, key, out);
    return (int)(((uint64_t)out[0] * (uint64_t)below) >> 32);
}

static void put_cost(Maker *m, bool may_forbid)
{
    if (may_forbid && draw(m, 100) < m->s->forbidden)
        buf_add(&m->b, "null");
    else
        buf_printf(&m->b, "%d", draw(m, 20));
}

static void put_node(Maker *m, int i, int64_t *least, int64_t *most)
{
    int k = m->labels[i], from = draw(m, 10), allowed = draw(m, k);
    buf_add(&m->b, i ? ",\n{\"cost\": [" : "{\"cost\": [");
    for (int j = 0; j < k; j++) {
        buf_add(&m->b, j ? ", " : "");
        put_cost(m, j != allowed);
    }
    buf_printf(&m->b, "], \"interval\": [%d, %d], \"usage\": [", from, from + draw(m, 6));
    int64_t low = m->s->most_usage, high = 0;
    for (int j = 0; j < k; j++) {
        int64_t usage = draw(m, (int)m->s->most_usage + 1);
        low = MIN(low, usage);
        high = MAX(high, usage);
        buf_printf(&m->b, j ? ", %d" : "%d", (int)usage);
    }
    *least += low;
    *most += high;
    buf_add(&m->b, "]}");
}

static void put_edge(Maker *m, int i)
{
    int u = draw(m, m->s->n), v = draw(m, 20) ? draw(m, m->s->n) : u;
    bool copied = draw(m, 100) < m->s->copied;
    buf_printf(&m->b, "%s{\"nodes\": [%d, %d], \"cost\": [", i ? ",\n" : "", u, v);
    for (int j = 0; j < m->labels[u]; j++) {
        int only = draw(m, m->labels[v]);
        buf_add(&m->b, j ? ", [" : "[");
        for (int k = 0; k < m->labels[v]; k++) {
            buf_add(&m->b, k ? ", " : "");
            if (copied && k != only)
                buf_add(&m->b, "null");
            else
                put_cost(m, !copied);
        }
        buf_add(&m->b, "]");
    }
    buf_add(&m->b, "]}");
}

const char *pick_make(Arena *a, uint32_t seed, const PickShape *s)
{
    Maker m = {.b = {.a = a}, .s = s, .seed = seed, .labels = NEWN(a, int, s->n)};
    int64_t least = 0, most = 0;
    buf_add(&m.b, "{\"nodes\": [");
    for (int i = 0; i < s->n; i++) {
        m.labels[i] = 1 + draw(&m, s->labels);
        put_node(&m, i, &least, &most);
    }
    buf_add(&m.b, "],\n\"edges\": [");
    for (int i = 0; i < (int)(s->degree * s->n); i++)
        put_edge(&m, i);
    /* some third of all is alive at once */
    double limit = ((double)least + s->tightness * (double)(most - least)) / 3;
    if (s->most_usage)
        buf_printf(&m.b, "],\n\"usage_limit\": %.0f}\n", limit);
    else
        buf_add(&m.b, "]}\n");
    return m.b.text;
}
