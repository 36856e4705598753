/* Inputs and outputs of programs by name: what they are, and copies in and out. Their errors are
 * the program's, so that programs of one plan can be used by several threads at once. */
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

const char *port_output_name(Arena *a, const Plan *p, int i)
{
    const PlanPort *o = &p->out[i];
    if (o->role == ROLE_LOSS)
        return "loss";
    if (o->role == ROLE_NONE)
        return arena_printf(a, "out%d", i);
    return arena_printf(a, "%s.%s", role_name(o->role), o->name);
}

const char *port_input_name(const PlanPort *p)
{
    bool only = p->role == ROLE_SEED || p->role == ROLE_STEP;
    return p->name ? p->name : only ? role_name(p->role) : "";
}

/* Whether port_output_name would give this name. */
static bool is_output(const Plan *p, int i, const char *name)
{
    const PlanPort *o = &p->out[i];
    const char *role = role_name(o->role);
    size_t n = strlen(role);
    char text[20];
    if (o->role == ROLE_LOSS)
        return !strcmp(name, "loss");
    if (o->role != ROLE_NONE)
        return !strncmp(name, role, n) && name[n] == '.' && !strcmp(name + n + 1, o->name);
    snprintf(text, sizeof text, "out%d", i);
    return !strcmp(name, text);
}

/* An output is not among the inputs. */
static bool is_input(const Plan *p, const PlanPort *port)
{
    return p->nin && port >= p->in && port < p->in + p->nin;
}

const PlanPort *port_find(const Plan *p, const char *name)
{
    for (int i = 0; i < p->nin; i++)
        if (!strcmp(p->in[i].value, name))
            return &p->in[i];
    for (int i = 0; i < p->nin; i++)
        if (*name && !strcmp(port_input_name(&p->in[i]), name))
            return &p->in[i];
    for (int i = 0; i < p->nout; i++)
        if (is_output(p, i, name))
            return &p->out[i];
    return NULL;
}

static const char *name_at(Arena *a, const Plan *p, int i)
{
    const PlanPort *o = &p->out[i - p->nin];
    return i < p->nin             ? p->in[i].value
           : o->role == ROLE_LOSS ? "loss"
           : o->role == ROLE_NONE ? arena_printf(a, "out%d", i - p->nin)
                                  : arena_printf(a, "%s.%s", role_name(o->role), o->name);
}

const char **port_names(Arena *a, const Plan *p)
{
    int n = p->nin + p->nout;
    const char **names = NEWN(a, const char *, n + 1);
    for (int i = 0; i < n; i++)
        names[i] = name_at(a, p, i);
    return names;
}

/* Fails with the names that there are. Several threads may be here, none of which may unwind or
 * allocate. */
static void fail_name(tn_program *x, const char *name)
{
    const Plan *p = x->x->plan;
    char text[1000] = "";
    program_fail(x, TN_CODE_FAIL, "no input or output \"%.600s\"%s", name,
                 names_hint(name, x->names, p->nin + p->nout, text, sizeof text));
}

/* NULL after an error. */
static const PlanPort *get_port(tn_program *x, const char *name)
{
    const PlanPort *p = port_find(x->x->plan, name);
    if (!p)
        fail_name(x, name);
    return p;
}

int tn_program_port(tn_program *x, const char *name, tn_port *port)
{
    if (!GIVEN_TO(x, x, name, port))
        return TN_CODE_USAGE;
    const PlanPort *p = get_port(x, name);
    if (!p)
        return TN_CODE_FAIL;
    *port = (tn_port){.value = p->value,
                      .role = p->role == ROLE_NONE ? "" : role_name(p->role),
                      .dtype = dtype_name(p->type.dtype),
                      .rank = p->type.rank,
                      .nbytes = type_nbytes(&p->type),
                      .output = !is_input(x->x->plan, p),
                      .host = program_on_host(x->x, p)};
    memcpy(port->shape, p->type.dim, sizeof *port->shape * (size_t)p->type.rank);
    return TN_CODE_OK;
}

/* ---- data ---- */

int tn_program_data(tn_program *x, const char *name, void **data, int64_t *nbytes)
{
    if (!GIVEN_TO(x, x, name, data))
        return TN_CODE_USAGE;
    const PlanPort *p = get_port(x, name);
    if (!p)
        return TN_CODE_FAIL;
    if (!program_on_host(x->x, p))
        return program_fail(x, TN_CODE_FAIL,
                            "%s: \"%.600s\" is in a device's memory: tn_program_read and "
                            "tn_program_write copy it",
                            __func__, name);
    *data = program_data(x->x, p);
    if (nbytes)
        *nbytes = type_nbytes(&p->type);
    return TN_CODE_OK;
}

int tn_program_bind(tn_program *x, const char *name, void *data)
{
    if (!GIVEN_TO(x, x, name))
        return TN_CODE_USAGE;
    const PlanPort *p = get_port(x, name);
    if (!p)
        return TN_CODE_FAIL;
    const char *why = program_bind(x->x, p, data);
    return why ? program_fail(x, TN_CODE_FAIL, "%s: \"%.400s\": %s", __func__, name, why)
               : TN_CODE_OK;
}

/* "f32[2, 3]". */
static const char *put_type(const Type *t, char *text, size_t size)
{
    size_t n = (size_t)snprintf(text, size, "%s[", dtype_name(t->dtype));
    for (int d = 0; d < t->rank; d++)
        n += (size_t)snprintf(text + n, size - n, "%s%lld", d ? ", " : "", (long long)t->dim[d]);
    snprintf(text + n, size - n, "]");
    return text;
}

/* The port to be copied, of that many bytes; NULL after an error, whose code is *code. */
static const PlanPort *port_to_copy(tn_program *x, const char *call, const char *name,
                                    int64_t nbytes, int *code)
{
    const PlanPort *p = get_port(x, name);
    *code = p ? TN_CODE_USAGE : TN_CODE_FAIL;
    if (!p || nbytes == type_nbytes(&p->type))
        return p;
    char type[20 + TN_RANK * 22];
    program_fail(x, TN_CODE_USAGE, "%s: \"%.400s\" is %s: expected %lld bytes, found %lld", call,
                 name, put_type(&p->type, type, sizeof type), (long long)type_nbytes(&p->type),
                 (long long)nbytes);
    return NULL;
}

int tn_program_read(tn_program *x, const char *name, void *data, int64_t nbytes)
{
    int code;
    if (!GIVEN_TO(x, x, name, data))
        return TN_CODE_USAGE;
    const PlanPort *p = port_to_copy(x, __func__, name, nbytes, &code);
    if (!p)
        return code;
    return program_read(x->x, p, 0, nbytes, data)
               ? program_fail(x, TN_CODE_FAIL, "%s", x->x->message)
               : TN_CODE_OK;
}

int tn_program_write(tn_program *x, const char *name, const void *data, int64_t nbytes)
{
    int code;
    if (!GIVEN_TO(x, x, name, data))
        return TN_CODE_USAGE;
    const PlanPort *p = port_to_copy(x, __func__, name, nbytes, &code);
    if (!p)
        return code;
    if (!is_input(x->x->plan, p))
        return program_fail(x, TN_CODE_USAGE, "%s: \"%.600s\": expected an input, found an output",
                            __func__, name);
    return program_write(x->x, p, 0, nbytes, data)
               ? program_fail(x, TN_CODE_FAIL, "%s", x->x->message)
               : TN_CODE_OK;
}
