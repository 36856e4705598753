/* Recognises what PyTorch prints that is not code of ATen calls, and names it with the call that
 * prints such code. */
#include "fx.h"

#include <string.h>

#define TRACE                                                                                  \
    "\n  make_fx(model)(inputs), of torch.fx.experimental.proxy_tensor, gives a graph of ATen" \
    " calls: print(gm.code)"                                                                   \
    "\n  or torch.export.export(model, (inputs,)).run_decompositions(): print(program)"

static const char *const texts[] = {
    [FOREIGN_GRAPH] = "this is what print(gm.graph) shows, a list of nodes; expected the code"
                      "\n  print(gm.code), or gm.print_readable(), shows it",
    [FOREIGN_SYMBOLIC] =
        "this is what print(gm.graph) shows of torch.fx.symbolic_trace, which calls"
        " modules and methods; expected a graph of ATen calls" TRACE,
    [FOREIGN_SCRIPT] = "this is TorchScript; expected the code of a graph of ATen calls" TRACE,
    [FOREIGN_LAYERS] = "these are the layers of a model, without code; expected a graph of ATen"
                       " calls" TRACE,
    [FOREIGN_MODULE] = "calls a module, as graphs of torch.fx.symbolic_trace and of"
                       " torch.export.unflatten do; expected ATen calls" TRACE,
    [FOREIGN_METHOD] = "calls a method, as graphs of torch.fx.symbolic_trace do; expected ATen"
                       " calls" TRACE,
    [FOREIGN_FUNCTION] = "no call of torch.ops: graphs of torch.fx.symbolic_trace call Python's"
                         " functions and methods; expected ATen calls" TRACE,
    [FOREIGN_AUTOCAST] = "autocast, whose casts a trace made before dispatch does not show" TRACE,
    [FOREIGN_CODE] =
        "this is the code of TorchScript; expected that of a graph of ATen calls" TRACE,
    [FOREIGN_SOURCE] = "this is a model's source, not the code of a graph; expected def"
                       " forward(self, ...) of ATen calls" TRACE,
    [FOREIGN_SIGNATURE] = "this is a program's signature, without code; expected the whole program"
                          "\n  print(program), not print(program.graph_signature), shows both",
    [FOREIGN_TABLE] = "this is what print_tabular shows, a table of nodes; expected the code"
                      "\n  print(gm.code), or gm.print_readable(), shows it",
    [FOREIGN_NESTED] = "a module inside of another; expected one module, or such as torch.export"
                       " shows no_grad and disabled autocast by, each called once: print(program)"
                       "\n  program.run_decompositions() puts their calls where they are made",
};

void fx_foreign(const PyLexer *x, const PyToken *t, Foreign what)
{
    py_fail(x, t, "%s", texts[what]);
}

const char *fx_foreign_call(const char *name)
{
    if (!strncmp(name, "torch.amp.", 10))
        return texts[FOREIGN_AUTOCAST];
    return strncmp(name, "torch.ops.", 10) ? texts[FOREIGN_FUNCTION] : NULL;
}

/* run_decompositions would drop no_grad, so it is no help where that is what the module is. */
const char *fx_foreign_nested(const char *call)
{
    static const char *const named[][2] = {
        {"torch.ops.higher_order.flex_attention_backward",
         "the gradient of flex_attention: expected a forward, which Tenon differentiates"},
        {"torch.ops.higher_order.flex_attention",
         "flex_attention, whose scores and masks are modules: expected their code too, which "
         "gm.code does not show; print(program), or gm.print_readable(), shows it"},
        {"torch.ops.higher_order.local_map_hop",
         "local_map, a module that runs on each rank's own part of its arguments: expected its "
         "code too, which gm.code does not show; print(program), or gm.print_readable(), shows "
         "it"}};
    for (int i = 0; i < LEN(named); i++)
        if (!strncmp(call, named[i][0], strlen(named[i][0])))
            return named[i][1];
    return strncmp(call, "torch.ops.higher_order.wrap_with_", 33) != 0
               ? texts[FOREIGN_NESTED]
               : "a module inside of another, which gm.code does not show; expected its code too:"
                 " print(program)";
}

/* "graph(" begins a graph of nodes: fx's has no arguments there, TorchScript's has. */
Foreign fx_foreign_graph(const char *text)
{
    if (text[6] != ')')
        return FOREIGN_SCRIPT;
    bool calls = strstr(text, "] = call_module[") || strstr(text, "] = call_method[");
    return calls ? FOREIGN_SYMBOLIC : FOREIGN_GRAPH;
}
