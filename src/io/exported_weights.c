/* The tensors of a program of torch.export.save: in data/weights and data/constants of its archive
 * a *_config.json has for each name the member with its bytes, its dtype by PyTorch's number, sizes
 * and strides. Several names may have one member, as tied parameters do. */
#include "io.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHTS "/data/weights/model_weights_config.json"

typedef struct WeightReader {
    TensorFile *f;
    int file;
    const Zip *zip;
    const char *folder; /* of the config that is read, "NAME/data/weights/" */
    int64_t *data;      /* of members: where their bytes are, 0 where nobody has looked */
} WeightReader;

static _Noreturn void refuse(const WeightReader *r, const char *name, const char *what,
                             const char *found)
{
    fail(arena_ctx(r->f->a), TN_FAIL, "%s: \"%s\": expected %s, found %s", r->zip->file, name, what,
         found);
}

/* The bytes of a list of {"as_int": N}; returns how many there are. */
static int numbers(const WeightReader *r, const char *name, const json_t *list, int64_t *out)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > TN_RANK)
        refuse(r, name, arena_printf(r->f->a, "at most %d sizes", TN_RANK), "others");
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_object_get(json_array_get(list, i), "as_int");
        if (!json_is_integer(x) || json_integer_value(x) < 0)
            refuse(r, name, "sizes that are numbers", "others");
        out[i] = json_integer_value(x);
    }
    return (int)n;
}

static DType dtype_of(const WeightReader *r, const char *name, json_int_t number)
{
    static const struct {
        int number;
        DType dtype;
    } all[] = {{1, U8}, {4, I32}, {5, I64}, {6, F16}, {7, F32}, {8, F64}, {12, BOOL}, {13, BF16}};
    for (int i = 0; i < LEN(all); i++)
        if (all[i].number == number)
            return all[i].dtype;
    refuse(r, name, "a dtype that Tenon has",
           arena_printf(r->f->a, "PyTorch's number %lld", (long long)number));
}

static void check_rows(const WeightReader *r, const char *name, const Type *t,
                       const int64_t *stride)
{
    int64_t step = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        if (t->dim[d] != 1 && stride[d] != step)
            refuse(r, name, "a row-major tensor", "other strides; .contiguous() makes one of it");
        step *= t->dim[d];
    }
}

/* Where a member's bytes begin, and how many there are. */
static int64_t find_member(WeightReader *r, const char *name, const char *path, int64_t *nbytes)
{
    const char *full = arena_printf(r->f->a, "%s%s", r->folder, path);
    for (int i = 0; i < r->zip->count; i++)
        if (!strcmp(r->zip->member[i].name, full)) {
            if (!r->data[i])
                r->data[i] = zip_data(r->zip, &r->zip->member[i]);
            *nbytes = r->zip->member[i].nbytes;
            return r->data[i];
        }
    refuse(r, name, full, "no such member");
}

static void add_entry(WeightReader *r, const char *name, const json_t *x)
{
    TensorFile *f = r->f;
    const json_t *meta = json_object_get(x, "tensor_meta");
    const char *path = json_string_value(json_object_get(x, "path_name"));
    int64_t stride[TN_RANK], held,
        first =
            json_integer_value(json_object_get(json_object_get(meta, "storage_offset"), "as_int"));
    if (!meta || !path || json_is_true(json_object_get(x, "use_pickle")))
        refuse(r, name, "a tensor's bytes", "what PyTorch pickled");
    TensorEntry e = {.name = arena_strdup(f->a, name), .file = r->file};
    e.type.dtype = dtype_of(r, name, json_integer_value(json_object_get(meta, "dtype")));
    e.type.rank = numbers(r, name, json_object_get(meta, "sizes"), e.type.dim);
    if (numbers(r, name, json_object_get(meta, "strides"), stride) != e.type.rank)
        refuse(r, name, "a stride for each size", "others");
    int64_t size = dtype_size(e.type.dtype), whole = size, begin;
    for (int d = 0; d < e.type.rank; d++)
        if (__builtin_mul_overflow(whole, e.type.dim[d], &whole))
            refuse(r, name, "sizes of this archive", "larger ones");
    check_rows(r, name, &e.type, stride);
    e.begin = find_member(r, name, path, &held);
    if (first < 0 || __builtin_mul_overflow(first, size, &begin) || begin > held ||
        whole > held - begin)
        refuse(r, name, type_text(f->a, &e.type),
               arena_printf(f->a, "%lld bytes", (long long)held));
    e.begin += begin;
    if (map_find(&f->names, e.name))
        refuse(r, name, "each name once", "it twice");
    PUSH(f->a, f->entry, f->count, f->cap, e);
    map_put(&f->names, e.name, (void *)(intptr_t)f->count);
}

static void drop_json(void *slot)
{
    json_decref(*(json_t **)slot);
}

/* The object under "config" in a member, by name. */
static const json_t *load_config(Arena *a, const Zip *zip, const ZipMember *m)
{
    int64_t at = zip_data(zip, m);
    char *text = arena_alloc(a, (size_t)m->nbytes + 1);
    zip->read(zip->from, text, m->nbytes, at);
    json_error_t error;
    json_t **root = NEW(a, json_t *);
    arena_defer(a, drop_json, root);
    *root = json_loadb(text, (size_t)m->nbytes, JSON_REJECT_DUPLICATES, &error);
    const json_t *config = json_object_get(*root, "config");
    if (!json_is_object(config))
        fail(arena_ctx(a), TN_FAIL, "%s: \"%s\": expected the key \"config\", found %s", zip->file,
             m->name, *root ? "none" : error.text);
    return config;
}

static void read_config(WeightReader *r, const ZipMember *m)
{
    Arena *a = r->f->a;
    const json_t *config = load_config(a, r->zip, m);
    r->folder = arena_strndup(a, m->name, (size_t)(strrchr(m->name, '/') + 1 - m->name));
    const char *name;
    const json_t *x;
    json_object_foreach((json_t *)(uintptr_t)config, name, x) add_entry(r, name, x);
}

void tensors_read_exported(TensorFile *f, int file, const Zip *zip)
{
    WeightReader r = {.f = f, .file = file, .zip = zip, .data = NEWN(f->a, int64_t, zip->count)};
    bool any = false;
    for (int i = 0; i < zip->count; i++) {
        const char *name = zip->member[i].name;
        if (!ends_in(name, WEIGHTS) &&
            !ends_in(name, "/data/constants/model_constants_config.json") &&
            !ends_in(name, "/data/weights/model.pt"))
            continue;
        if (ends_in(name, ".pt"))
            refuse(&r, name, "weights as PyTorch 2.9 and newer write them", "pickled ones");
        any = true;
        read_config(&r, &zip->member[i]);
    }
    if (!any)
        fail(arena_ctx(f->a), TN_FAIL,
             "%s: a zip archive: expected a program of torch.export.save, whose data/weights has "
             "model_weights_config.json",
             zip->file);
}

/* Two names are tied where their entries say the same member, place, sizes, strides and dtype. */
Map exported_tied(Arena *a, const Zip *zip)
{
    Map tied = {.a = a}, first = {.a = a};
    for (int i = 0; i < zip->count; i++) {
        const char *name;
        const json_t *x;
        if (!ends_in(zip->member[i].name, WEIGHTS))
            continue;
        const json_t *config = load_config(a, zip, &zip->member[i]);
        json_object_foreach((json_t *)(uintptr_t)config, name, x)
        {
            const json_t *path = json_object_get(x, "path_name");
            char *meta =
                json_dumps(json_object_get(x, "tensor_meta"), JSON_COMPACT | JSON_SORT_KEYS);
            if (meta && json_is_string(path)) {
                const char *key = arena_printf(a, "%s %s", json_string_value(path), meta);
                if (map_find(&first, key))
                    map_put(&tied, arena_strdup(a, name), map_find(&first, key));
                else
                    map_put(&first, key, arena_strdup(a, name));
            }
            free(meta);
        }
    }
    return tied;
}
