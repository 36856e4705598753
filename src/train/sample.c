/* Text from a byte-level model: the last T bytes go in, one byte is drawn, again. No cache of keys
 * and values: every byte costs a forward over T. */
#include "train.h"

#include <math.h>
#include <string.h>

/* splitmix64: a stream of its own for sampling. */
static double uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static int64_t draw(const float *logits, int64_t vocab, double temperature, uint64_t *state)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocab; i++)
        most = fmax(most, logits[i]);
    for (int64_t i = 0; i < vocab; i++)
        sum += exp((logits[i] - most) / temperature);
    double left = uniform(state) * sum;
    for (int64_t i = 0; i < vocab; i++) {
        left -= exp((logits[i] - most) / temperature);
        if (left < 0)
            return i;
    }
    return vocab - 1;
}

/* Untrained models write anything, terminals obey it. */
static void put(int64_t byte, FILE *to)
{
    bool control = (byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f;
    fputc(control ? '.' : (int)byte, to);
}

int sample(tn_program *x, int64_t seq, int64_t vocab, const char *prompt, int64_t count,
           uint64_t seed, double temperature, const volatile sig_atomic_t *stop, FILE *to)
{
    void *ids_data, *logits_data;
    int code = tn_program_data(x, "input_ids", &ids_data, NULL);
    if (!code)
        code = tn_program_data(x, "metric.logits", &logits_data, NULL);
    if (code)
        return code;
    int64_t have = 0, ids[4096];
    if (seq > 4096)
        seq = 4096;
    for (const char *p = prompt; *p && have < seq; p++)
        ids[have++] = (unsigned char)*p;
    fputs(prompt, to);
    for (int64_t i = 0; i < count && !*stop; i++) {
        if (have == seq) { /* slide by half, so that most bytes see a long past */
            memmove(ids, ids + seq / 2, sizeof *ids * (size_t)(seq - seq / 2));
            have = seq - seq / 2;
        }
        memset(ids_data, 0, sizeof *ids * (size_t)seq);
        memcpy(ids_data, ids, sizeof *ids * (size_t)have);
        if ((code = tn_program_run(x)))
            return code;
        ids[have] =
            draw((const float *)logits_data + (have - 1) * vocab, vocab, temperature, &seed);
        put(ids[have++], to);
    }
    return 0;
}
