/* Parses PyTorch's annotation of a tensor after its name, "f32[2, 4][4, 1]cpu": dtype, sizes,
 * strides and device. Text that does not begin with a dtype and a bracket is ignored. Complex
 * dtypes become pairs of numbers. */
#include "fx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The names of our dtypes in torch's annotations. */
static int short_dtype(const char *s, size_t n)
{
    static const char *const names[][2] = {{"b8", "bool"}};
    char word[8];
    if (n >= sizeof word)
        return -1;
    snprintf(word, sizeof word, "%.*s", (int)n, s);
    for (int i = 0; i < LEN(names); i++)
        if (!strcmp(word, names[i][0]))
            return dtype_parse(names[i][1]);
    return dtype_parse(word);
}

/* The dtype of the parts of a complex one, by its bits; -1: it is none. */
static int part_dtype(const char *bits)
{
    static const struct Parts {
        const char *bits;
        DType dtype;
    } parts[] = {{"32", F16}, {"64", F32}, {"128", F64}};
    for (int i = 0; i < LEN(parts); i++)
        if (!strcmp(bits, parts[i].bits))
            return (int)parts[i].dtype;
    return -1;
}

int annotation_dtype(const char *name, bool *complex)
{
    *complex = false;
    int dtype = torch_dtype(name);
    if (dtype >= 0 || strncmp(name, "torch.complex", 13) != 0)
        return dtype;
    *complex = true;
    return part_dtype(name + 13);
}

bool annotation_pairs(Annotation *a)
{
    if (a->type.rank == TN_RANK)
        return false;
    for (int d = 0; d < a->type.rank; d++)
        a->stride[d] *= 2;
    a->stride[a->type.rank] = 1;
    a->type.dim[a->type.rank++] = 2;
    a->complex = true;
    return true;
}

/* Whether the word is a dtype of torch at all: a letter or more, then bits. */
static bool like_dtype(const char *s, size_t n)
{
    size_t letters = 0;
    while (letters < n && islower((unsigned char)s[letters]))
        letters++;
    return letters > 0 && letters < n && strspn(s + letters, "0123456789") >= n - letters;
}

/* "[4, 1]", as many as there are sizes */
static void strides(Annotation *a, const char *s)
{
    int n = 0;
    if (*s++ != '[')
        return;
    for (char *end; n < a->type.rank; n++, s = end + strspn(end, ", ")) {
        a->stride[n] = strtoll(s, &end, 10);
        if (end == s)
            return;
    }
    a->has_stride = *s == ']';
}

/* Names as PyTorch gives them: u0 of a size that only the run knows, s77 of one left open. */
static void fail_size(const PyLexer *x, const PyToken *where, const char *s)
{
    const char *help = "";
    if (*s == 'u')
        help = ", a size that depends on data\n  instead of x[mask] write torch.where(mask, ...,"
               " x), or torch.ops.aten.index_put(x, [mask], row)";
    else if (*s == 's')
        help = ", a symbol for any size\n  --shapes binds it, by the type of an input that has it: "
               "--shapes"
               " 'x=f32[2,16]'";
    py_fail(x, where, "sizes must be numbers, found \"%.*s\"%s", (int)strcspn(s, ",]"), s, help);
}

Annotation annotation_parse(const PyLexer *x, const PyToken *where, const char *s)
{
    Annotation a = {0};
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789");
    if (s[n] != '[' || !like_dtype(s, n))
        return a;
    int dtype = short_dtype(s, n);
    bool complex = dtype < 0 && *s == 'c';
    if (complex)
        dtype = part_dtype(arena_strndup(x->a, s + 1, n - 1));
    if (dtype < 0) {
        a.other = arena_strndup(x->a, s, n);
        return a;
    }
    a.known = true;
    a.type.dtype = (DType)dtype;
    for (s += n + 1; *s && *s != ']'; s += strspn(s, ", ")) {
        const char *end = s;
        int64_t dim;
        if (!symbols_size(x->a, x->symbols, &end, &dim)) {
            if (!x->symbols)
                return (Annotation){0};
            fail_size(x, where, s);
        }
        if (a.type.rank == TN_RANK || dim < 0)
            py_fail(x, where, "expected at most %d sizes of 0 or more", TN_RANK);
        a.type.dim[a.type.rank++] = dim;
        s = end;
    }
    if (*s != ']')
        py_fail(x, where, "annotation without its ]");
    strides(&a, s + 1);
    if (complex && !annotation_pairs(&a))
        py_fail(x, where, "expected at most %d sizes of a complex tensor", TN_RANK - 1);
    return a;
}
