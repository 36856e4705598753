/* Adapters of models: new ones, those of folders, and both as one folder. */
#include "api.h"

#include <string.h>

int tn_model_lora(tn_model *m, const char *text)
{
    if (!GIVEN(args_owner(m), m, text))
        return TN_CODE_USAGE;
    TRY(t, &m->h.owner->ctx)
        adapters_new(m, text);
    return tried(&t);
}

static void open_adapters(tn_model *m, Arena *a, const char *path)
{
    const char *folder = adapters_folder(a, path);
    if (!folder)
        fail(
            arena_ctx(a), TN_FAIL,
            "%s: expected a folder with adapters, found no adapter_config.json there and no latest "
            "checkpoint with one",
            path);
    adapters_open(m, a, folder);
}

int tn_model_adapter(tn_model *m, const char *path)
{
    if (!GIVEN(args_owner(m), m, path))
        return TN_CODE_USAGE;
    TRY(t, &m->h.owner->ctx)
        open_adapters(m, try_arena(&t), path);
    return tried(&t);
}

int64_t tn_model_trained(const tn_model *m)
{
    if (!GIVEN(args_owner(m), m))
        return 0;
    int64_t n = 0;
    for (int i = 0; i < m->nparam; i++)
        n += !m->config.lora || m->param[i].adapter ? type_nelem(&m->param[i].type) : 0;
    return n;
}

const char *tn_model_base(const tn_model *m)
{
    if (!GIVEN(args_owner(m), m))
        return NULL;
    return m->config.lora ? m->base : NULL;
}

int tn_model_merge(tn_model *m, const char *folder, const char *dtype, int64_t shard,
                   tn_merged *merged)
{
    if (!GIVEN(args_owner(m), m, folder, merged) || !WITHIN(args_owner(m), 0, INT64_MAX / 2, shard))
        return TN_CODE_USAGE;
    *merged = (tn_merged){0};
    TRY(t, &m->h.owner->ctx)
        merge_write(m, try_arena(&t), folder, dtype, shard, merged);
    return tried(&t);
}
