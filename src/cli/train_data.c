/* train: weights of sources, models with more tokens, and samples on ranks. */
#include "cli.h"

#include "../train/train.h"

#include <stdio.h>
#include <stdlib.h>

/* As many tokens as the tokenizer has. A run that goes on has them. */
int train_resize(tn_context *ctx, const TrainOptions *t, tn_model *m)
{
    char path[CHECKPOINT_PATH];
    int64_t vocab, context;
    tn_tokenizer *k;
    const char *from = t->tokenizer ? t->tokenizer : source_tokenizer(m, path) ? path : NULL;
    if (t->lora || t->adapter)
        return tn_context_fail(ctx, TN_CODE_USAGE,
                               "train: --resize-embeddings does not go with --lora or --adapter: "
                               "adapters are saved alone\n  a run without them, such as with "
                               "--lr 0, makes the larger model first");
    if (!from)
        return tn_context_fail(ctx, TN_CODE_USAGE,
                               "train: --resize-embeddings: %s has no tokenizer, whose tokens "
                               "would be counted; --tokenizer names one",
                               t->model);
    int code = tn_tokenizer_open(ctx, from, &k);
    if (code)
        return code;
    int64_t want = tn_tokenizer_limit(k);
    tn_tokenizer_free(k);
    tn_model_shape(m, &vocab, &context);
    if (rank_first(ctx))
        fprintf(stderr,
                want > vocab ? "tenon: note: --resize-embeddings: the model has %lld tokens, %lld "
                               "with those of %s\n"
                             : "tenon: note: --resize-embeddings: the %lld tokens of the model are "
                               "enough for the %lld of %s: nothing is added\n",
                (long long)vocab, (long long)want, from);
    return want > vocab ? tn_model_resize(m, want) : 0;
}

/* The k-th weight is that of the k-th --data. */
int train_weights(const Texts *w, int ndata, double *weights)
{
    _Static_assert(LEN(((Texts *)0)->text) <= MOST_SOURCES, "each has a source");
    if (w->count && w->count != ndata)
        return report(TN_CODE_USAGE,
                      "train: --weight: expected as many as --data, one for each in order, %d, "
                      "found %d",
                      ndata, w->count);
    for (int i = 0; i < w->count; i++) {
        char *end;
        weights[i] = strtod(w->text[i], &end);
        if (*end || end == w->text[i] || !(weights[i] > 0 && weights[i] <= 1e9))
            return report(TN_CODE_USAGE,
                          "train: --weight: expected a number above 0, to 1e9, found \"%s\"",
                          w->text[i]);
    }
    return -1;
}

/* Adapters are saved alone, with the name of the folder that they belong to. */
int train_base(tn_context *ctx, const TrainOptions *t, const tn_model *m)
{
    if (!(t->lora || t->adapter) || tn_model_base(m))
        return 0;
    return tn_context_fail(ctx, TN_CODE_USAGE,
                           "train: --%s: %s has no weights: adapters are for a folder that has",
                           t->lora ? "lora" : "adapter", t->model);
}

/* One rank generates: a run that wrote samples on one goes on without them. */
int train_samples(const tn_options *o, TrainOptions *t)
{
    static const char why[] = "one rank generates; `tenon generate OUT` does, of any checkpoint";
    if (!o->mesh || !t->sample_tokens)
        return -1;
    if (!t->resume)
        return report(TN_CODE_USAGE, "train: --sample-tokens does not go with --mesh: %s", why);
    fprintf(stderr, "tenon: note: no samples with --mesh: %s\n", why);
    t->sample_tokens = 0;
    return -1;
}
