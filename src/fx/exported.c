/* Programs that torch.export.save writes, as the code that str(program) shows, which is then read
 * as any other: one statement for a node, annotated by its metadata, under a comment with its
 * scope; graphs inside of the graph as modules below it; the signature last.
 *
 * The file is a zip archive, of which NAME/models/NAME.json has the graph (schema 8); or that JSON
 * alone. Sizes left open are sympy's repr, `Mul(Integer(4), Symbol('s23'))`, and
 * become 4*s23. Linear in the file. */
#include "fx.h"

#include <ctype.h>
#include <jansson.h>
#include <string.h>

typedef struct Reader {
    Arena *a;
    const char *file;
    const char *node; /* the place of the node that is read, "" before and after them */
    Buf code, inner;  /* inner: modules of graphs inside */
} Reader;

static _Noreturn void refuse(const Reader *r, const char *what, const char *found)
{
    fail(arena_ctx(r->a), TN_FAIL, "%s: an exported program: %s%sexpected %s, found %.200s",
         r->file, r->node, *r->node ? ": " : "", what, found ? found : "none");
}

/* ---- the archive ---- */

static bool is_graph(const char *name)
{
    static const char folder[] = "/models/", end[] = ".json";
    const char *slash = strchr(name, '/');
    size_t path = slash ? strlen(slash) : 0;
    return path >= LEN(folder) + LEN(end) - 1 && !strncmp(slash, folder, LEN(folder) - 1) &&
           !strcmp(slash + path - (LEN(end) - 1), end);
}

char *fx_graph_json(const Zip *z, size_t *len)
{
    const Reader r = {.a = z->a, .file = z->file, .node = ""};
    const ZipMember *found = NULL;
    for (int i = 0; i < z->count; i++)
        if (is_graph(z->member[i].name)) {
            if (found)
                refuse(&r, "one graph in models/", "several");
            found = &z->member[i];
        }
    if (!found)
        refuse(&r, "models/NAME.json, the graph of torch.export.save's archive", NULL);
    int64_t at = zip_data(z, found);
    char *text = arena_alloc(z->a, (size_t)found->nbytes + 1);
    z->read(z->from, text, found->nbytes, at);
    *len = (size_t)found->nbytes;
    return text;
}

/* ---- JSON ---- */

static void drop_json(void *slot)
{
    json_decref(*(json_t **)slot);
}

static const json_t *member(const Reader *r, const json_t *o, const char *key)
{
    const json_t *x = json_object_get(o, key);
    if (!x)
        refuse(r, arena_printf(r->a, "the key \"%s\"", key), NULL);
    return x;
}

/* A name of Python, dotted or not, and nothing else: the text is read as code. */
static const char *name_of(const Reader *r, const json_t *x)
{
    const char *s = json_string_value(x);
    if (!s || !*s || isdigit((unsigned char)*s) ||
        s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.0123456789")])
        refuse(r, "a name", s);
    return s;
}

static const char *name_in(const Reader *r, const json_t *o)
{
    return name_of(r, member(r, o, "name"));
}

/* The one key of a union, and its value. */
static const char *variant(const Reader *r, const json_t *x, const json_t **value)
{
    void *at = json_object_iter((json_t *)(uintptr_t)x);
    if (!at)
        refuse(r, "an argument", "something else");
    *value = json_object_iter_value(at);
    return json_object_iter_key(at);
}

/* ---- sizes ---- */

/* Writes the expression at *s, a repr of sympy's, as Python has it, and goes past it. */
static void put_expression(Reader *r, const char **s, int depth)
{
    static const char *const infix[][2] = {
        {"Add", " + "}, {"Mul", "*"}, {"Pow", "**"}, {"FloorDiv", "//"}, {"CleanDiv", "//"}};
    enum { MOST_DEPTH = 60 };
    size_t n = strcspn(*s, "(,) ");
    const char *head = arena_strndup(r->a, *s, n), *between = ", ";
    bool plain = !strcmp(head, "Max") || !strcmp(head, "Min");
    *s += n;
    if (**s != '(' || depth > MOST_DEPTH)
        refuse(r, "a size", head);
    ++*s;
    if (!strcmp(head, "Integer") || !strcmp(head, "Symbol")) {
        bool quoted = **s == '\'';
        size_t len = strcspn(*s + quoted, "',)");
        buf_printf(&r->code, "%.*s", (int)len, *s + quoted);
        *s += strcspn(*s, ")");
        *s += **s == ')';
        return;
    }
    for (int i = 0; i < LEN(infix); i++)
        if (!strcmp(head, infix[i][0])) {
            between = infix[i][1];
            plain = true;
        }
    if (!plain)
        refuse(r, "a size of sums, products, quotients, Max and Min", head);
    buf_printf(&r->code, "%s(", between[0] == ',' ? head : "");
    for (bool more = true; more;) {
        put_expression(r, s, depth + 1);
        *s += strspn(*s, " ");
        more = **s == ',';
        *s += more;
        *s += strspn(*s, " ");
        if (more)
            buf_add(&r->code, between);
    }
    if (**s != ')')
        refuse(r, "a size", *s);
    ++*s;
    buf_add(&r->code, ")");
}

static void put_size(Reader *r, const json_t *x)
{
    const json_t *open = json_object_get(x, "as_expr"), *n = json_object_get(x, "as_int");
    const char *s = open ? json_string_value(member(r, open, "expr_str")) : NULL;
    if (s)
        put_expression(r, &s, 0);
    else if (n)
        buf_printf(&r->code, "%lld", (long long)json_integer_value(n));
    else
        refuse(r, "a size", NULL);
}

/* ---- dtypes and annotations ---- */

/* By the numbers of torch's ScalarType: in annotations, and as a member of torch. */
static const char *const dtypes[][2] = {
    [1] = {"u8", "uint8"},
    [2] = {"i8", "int8"},
    [3] = {"i16", "int16"},
    [4] = {"i32", "int32"},
    [5] = {"i64", "int64"},
    [6] = {"f16", "float16"},
    [7] = {"f32", "float32"},
    [8] = {"f64", "float64"},
    [9] = {"c32", "complex32"},
    [10] = {"c64", "complex64"},
    [11] = {"c128", "complex128"},
    [12] = {"b8", "bool"},
    [13] = {"bf16", "bfloat16"},
    [28] = {"u16", "uint16"},
    [29] = {"f8e4m3fn", "float8_e4m3fn"},
    [30] = {"f8e5m2", "float8_e5m2"},
};

static const char *dtype_of(const Reader *r, const json_t *x, int which)
{
    json_int_t i = json_is_integer(x) ? json_integer_value(x) : -1;
    if (i < 0 || i >= LEN(dtypes) || !dtypes[i][which])
        refuse(r, "a dtype", arena_printf(r->a, "number %lld", (long long)i));
    return dtypes[i][which];
}

/* `: "f32[2, 4*s0]"` of a tensor or size of the graph; nothing of another name. */
static void put_annotation(Reader *r, const json_t *graph, const char *name)
{
    const json_t *t = json_object_get(json_object_get(graph, "tensor_values"), name), *size;
    const json_t *open = json_object_get(json_object_get(graph, "sym_int_values"), name);
    size_t i;
    if (t) {
        buf_printf(&r->code, ": \"%s[", dtype_of(r, member(r, t, "dtype"), 0));
        json_array_foreach(member(r, t, "sizes"), i, size)
        {
            buf_add(&r->code, i ? ", " : "");
            put_size(r, size);
        }
        buf_add(&r->code, "]\"");
    } else if (open) {
        buf_add(&r->code, ": \"Sym(");
        put_size(r, open);
        buf_add(&r->code, ")\"");
    }
}

/* ---- arguments ---- */

static void put_graph(Reader *r, const json_t *graph, const char *name);

static void put_string(Reader *r, const json_t *x)
{
    buf_add(&r->code, "'");
    for (const char *s = json_string_value(x); s && *s; s++)
        if ((unsigned char)*s < ' ' || *s == '\'' || *s == '\\')
            buf_printf(&r->code, "\\x%02x", (unsigned char)*s);
        else
            buf_printf(&r->code, "%c", *s);
    buf_add(&r->code, "'");
}

/* Infinities and NaN are strings there. */
static void put_float(Reader *r, const json_t *x)
{
    const char *s = json_string_value(x);
    if (s)
        buf_printf(&r->code, "%s",
                   !strcmp(s, "Infinity")    ? "inf"
                   : !strcmp(s, "-Infinity") ? "-inf"
                                             : "nan");
    else
        buf_printf(&r->code, "float('%.17g')", json_number_value(x));
}

/* The members of torch that memory formats stand for, by number. */
static const char *memory_format(const Reader *r, const json_t *x)
{
    static const char *const names[] = {NULL, "contiguous_format", "channels_last",
                                        "channels_last_3d", "preserve_format"};
    json_int_t i = json_integer_value(x);
    if (i < 1 || i >= LEN(names))
        refuse(r, "a memory format", arena_printf(r->a, "number %lld", (long long)i));
    return names[i];
}

static void put_value(Reader *r, const char *kind, const json_t *x);

static void put_list(Reader *r, const char *kind, const json_t *list)
{
    const json_t *x;
    size_t i;
    buf_add(&r->code, "[");
    json_array_foreach(list, i, x)
    {
        buf_add(&r->code, i ? ", " : "");
        put_value(r, kind, x);
    }
    buf_add(&r->code, "]");
}

/* A union within an argument: its variant's key is as an argument's. */
static void put_union(Reader *r, const json_t *x)
{
    const json_t *value;
    const char *kind = variant(r, x, &value);
    if (!strcmp(kind, "as_name"))
        buf_add(&r->code, name_of(r, value));
    else
        put_value(r, kind, value);
}

static void put_value(Reader *r, const char *kind, const json_t *x)
{
    static const char *const lists[][2] = {
        {"as_tensors", "as_tensor"},       {"as_ints", "as_int"},
        {"as_floats", "as_float"},         {"as_strings", "as_string"},
        {"as_bools", "as_bool"},           {"as_sym_ints", "as_sym_int"},
        {"as_sym_floats", "as_sym_float"}, {"as_optional_tensors", "as_optional_tensor"},
        {"as_int_lists", "as_ints"},       {"as_nested_tensors", "as_tensors"}};
    for (int i = 0; i < LEN(lists); i++)
        if (!strcmp(kind, lists[i][0])) {
            put_list(r, lists[i][1], x);
            return;
        }
    if (!strcmp(kind, "as_none"))
        buf_add(&r->code, "None");
    else if (!strcmp(kind, "as_tensor"))
        buf_add(&r->code, name_in(r, x));
    else if (!strcmp(kind, "as_int"))
        buf_printf(&r->code, "%lld", (long long)json_integer_value(x));
    else if (!strcmp(kind, "as_float"))
        put_float(r, x);
    else if (!strcmp(kind, "as_string"))
        put_string(r, x);
    else if (!strcmp(kind, "as_bool"))
        buf_add(&r->code, json_is_true(x) ? "True" : "False");
    else if (!strcmp(kind, "as_sym_int") || !strcmp(kind, "as_sym_bool") ||
             !strcmp(kind, "as_sym_float") || !strcmp(kind, "as_optional_tensor"))
        put_union(r, x);
    else if (!strcmp(kind, "as_scalar_type"))
        buf_printf(&r->code, "torch.%s", dtype_of(r, x, 1));
    else if (!strcmp(kind, "as_memory_format"))
        buf_printf(&r->code, "torch.%s", memory_format(r, x));
    else if (!strcmp(kind, "as_layout"))
        buf_add(&r->code, "torch.strided");
    else if (!strcmp(kind, "as_device"))
        buf_add(&r->code, "device(type='cpu')");
    else if (!strcmp(kind, "as_graph"))
        buf_add(&r->code, name_in(r, x));
    else
        refuse(r, "an argument of tensors, numbers, texts or graphs", kind);
}

/* ---- statements ---- */

/* The names that a node's results get, more than one with commas. */
static void put_targets(Reader *r, const json_t *graph, const json_t *node)
{
    const json_t *outs = member(r, node, "outputs"), *x, *value;
    const char *kind;
    size_t i;
    bool one = json_array_size(outs) == 1;
    if (one && !strcmp(variant(r, json_array_get(outs, 0), &value), "as_tensor")) {
        const char *name = name_in(r, value);
        buf_add(&r->code, name);
        put_annotation(r, graph, name);
        return;
    }
    json_array_foreach(outs, i, x)
    {
        kind = variant(r, x, &value);
        if (!strcmp(kind, "as_none")) {
            buf_printf(&r->code, "_none_%d", (int)i);
        } else if (!strcmp(kind, "as_tensors")) {
            size_t k;
            const json_t *y;
            buf_add(&r->code, one ? "" : "(");
            json_array_foreach(value, k, y) buf_printf(&r->code, "%s, ", name_in(r, y));
            buf_add(&r->code, one ? "" : ")");
        } else {
            put_value(r, kind, value);
        }
        buf_add(&r->code, one ? "" : ", ");
    }
}

/* `# scope: layers.0.attn`, of "...;L__self__layers_0_attn,layers.0.attn,module.Attention". */
static void put_scope(Reader *r, const json_t *node)
{
    const json_t *metadata = json_object_get(node, "metadata");
    const char *s = json_string_value(json_object_get(metadata, "nn_module_stack"));
    const char *last = s ? strrchr(s, ';') : NULL, *path = s ? strchr(last ? last : s, ',') : NULL;
    int n = path ? (int)strcspn(path + 1, ",\r\n ") : 0;
    buf_printf(&r->code, "# scope: %.*s\n", n, n ? path + 1 : "");
}

/* Graphs among a node's arguments are modules, of which the code has the name. */
static void put_modules(Reader *r, const json_t *inputs)
{
    const json_t *x, *value;
    size_t i;
    json_array_foreach(inputs, i, x)
    {
        const char *kind = variant(r, member(r, x, "arg"), &value);
        if (strcmp(kind, "as_graph") != 0)
            continue;
        const char *name = name_in(r, value);
        Buf outer = r->code;
        r->code = (Buf){.a = r->a};
        put_graph(r, member(r, value, "graph"), name);
        buf_add(&r->inner, r->code.text);
        r->code = outer;
        buf_printf(&r->code, "%s = self.%s\n", name, name);
    }
}

/* "FILE:LINE", the innermost of a stack trace that is not PyTorch's own; "": it has none. */
static const char *user_line(Arena *a, const char *trace)
{
    static const char file[] = "File \"", line[] = "\", line ";
    const char *best = "";
    bool own = false;
    for (const char *s = trace ? strstr(trace, file) : NULL; s; s = strstr(s, file)) {
        s += LEN(file) - 1;
        int n = (int)strcspn(s, "\"\r\n");
        if (strncmp(s + n, line, LEN(line) - 1) != 0)
            continue;
        const char *number = s + n + LEN(line) - 1, *path = arena_strndup(a, s, n);
        bool torch = strstr(path, "/torch/") != NULL;
        if (own && torch)
            continue;
        own = !torch;
        best = arena_printf(a, "%s:%.*s", path, (int)strspn(number, "0123456789"), number);
    }
    return best;
}

static void put_place(Reader *r, const json_t *node)
{
    const json_t *trace = json_object_get(json_object_get(node, "metadata"), "stack_trace");
    const json_t *name = json_object_get(node, "name"); /* null in older archives */
    const char *line = user_line(r->a, json_string_value(trace));
    r->node =
        arena_printf(r->a, *line ? "node %s (%s)" : "node %s",
                     name_of(r, json_is_string(name) ? name : member(r, node, "target")), line);
    buf_printf(&r->code, FX_NODE "%s\n", r->node);
}

static void put_node(Reader *r, const json_t *graph, const json_t *node)
{
    enum { POSITIONAL = 1 };
    const json_t *inputs = member(r, node, "inputs"), *x, *value;
    size_t i;
    put_place(r, node);
    const char *place = r->node;
    put_modules(r, inputs);
    r->node = place; /* not that of nodes in them */
    put_scope(r, node);
    if (json_array_size(member(r, node, "outputs"))) {
        put_targets(r, graph, node);
        buf_add(&r->code, " = ");
    }
    buf_printf(&r->code, "%s(", name_of(r, member(r, node, "target")));
    json_array_foreach(inputs, i, x)
    {
        const char *name = json_string_value(json_object_get(x, "name"));
        bool keyword =
            name && *name && json_integer_value(json_object_get(x, "kind")) != POSITIONAL;
        buf_printf(&r->code, "%s", i ? ", " : "");
        if (keyword)
            buf_printf(&r->code, "%s = ", name_of(r, json_object_get(x, "name")));
        const char *kind = variant(r, member(r, x, "arg"), &value);
        put_value(r, kind, value);
    }
    buf_add(&r->code, ")\n");
}

/* The function of a graph; that of one inside of another is of a class of its own. */
static void put_graph(Reader *r, const json_t *graph, const char *name)
{
    const json_t *x, *value;
    size_t i;
    if (name)
        buf_printf(&r->code, "class %s(torch.nn.Module):\n", name);
    buf_add(&r->code, "def forward(self");
    json_array_foreach(member(r, graph, "inputs"), i, x)
    {
        const char *kind = variant(r, x, &value);
        bool tensor = !strcmp(kind, "as_tensor"), open = !strcmp(kind, "as_sym_int");
        if (!tensor && !open)
            continue; /* a constant, which stands where it is read */
        const char *s =
            tensor ? name_in(r, value) : json_string_value(json_object_get(value, "as_name"));
        if (!s)
            continue;
        buf_printf(&r->code, ",\n" FX_NODE "input %s\n%s", s, s);
        put_annotation(r, graph, s);
    }
    buf_add(&r->code, "):\n");
    json_array_foreach(member(r, graph, "nodes"), i, x) put_node(r, graph, x);
    r->node = "";
    buf_add(&r->code, FX_NODE "the output\nreturn (");
    json_array_foreach(member(r, graph, "outputs"), i, x)
    {
        const char *kind = variant(r, x, &value);
        put_value(r, kind, value);
        buf_add(&r->code, ", ");
    }
    buf_add(&r->code, ")\n");
}

/* ---- the signature ---- */

static void put_signature(Reader *r, const json_t *signature)
{
    static const char *const kinds[][3] = {
        {"parameter", "PARAMETER", "parameter_name"},
        {"buffer", "BUFFER", "buffer_name"},
        {"tensor_constant", "CONSTANT_TENSOR", "tensor_constant_name"}};
    const json_t *x, *value;
    size_t i;
    buf_add(&r->code, "Graph signature:\n# inputs\n");
    json_array_foreach(member(r, signature, "input_specs"), i, x)
    {
        const char *kind = variant(r, x, &value);
        for (int k = 0; k < LEN(kinds); k++)
            if (!strcmp(kind, kinds[k][0]))
                buf_printf(&r->code, "%s: %s target='%s'\n", name_in(r, member(r, value, "arg")),
                           kinds[k][1], name_of(r, member(r, value, kinds[k][2])));
    }
}

/* The code of a program of its JSON. */
static const char *read_program(Arena *a, const char *data, size_t len, const char *file)
{
    Reader r = {.a = a, .file = file, .node = "", .code = {.a = a}, .inner = {.a = a}};
    json_error_t e;
    json_t **root = NEW(a, json_t *);
    arena_defer(a, drop_json, root);
    *root = json_loadb(data, len, 0, &e);
    if (!*root)
        fail(arena_ctx(a), TN_FAIL, "%s: JSON, line %d: %s", file, e.line, e.text);
    const json_t *module = member(&r, *root, "graph_module");
    put_graph(&r, member(&r, module, "graph"), NULL);
    buf_add(&r.code, r.inner.text ? r.inner.text : "");
    put_signature(&r, member(&r, module, "signature"));
    return r.code.text;
}

bool fx_is_program(const char *data)
{
    return data[strspn(data, " \t\r\n")] == '{';
}

const char *fx_code(Arena *a, const char *data, size_t len, const char *file)
{
    if (fx_is_program(data))
        return read_program(a, data, len, file);
    if (strlen(data) != len)
        fail(arena_ctx(a), TN_FAIL, "%s: a NUL byte", file);
    return fx_listing(a, data, file);
}
