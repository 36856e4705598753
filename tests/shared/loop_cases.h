/* loop_cases: the cases of test_loop_make.c, whose LoopCase says what the members mean. */
#ifndef TENON_TEST_LOOP_CASES_H
#define TENON_TEST_LOOP_CASES_H

#define INPUTS "tenon 1\ngraph g(%x: f64[14, 6], %y: i64[14], %w: f64[5, 6] param \"w\""

/* A head and its gradient, %d, of logits; its scale is %s. */
#define LOSS                          \
    "  %logits = mm(%x, %wt)\n"       \
    "  %n = count_labels(%y)  loss\n" \
    "  %loss, %lse = cross_entropy(%logits, %y, %n)  loss\n"
#define BACK                                                               \
    "  %d = cross_entropy_backward(%s, %logits, %y, %lse, %n)  backward\n" \
    "  %dt = t(%d)  backward\n"
#define ONE "  %s = full(size=[], fill_value=1.0, dtype=f64)  backward\n"

#define WRONG_TEXT                         \
    "tenon 1\ngraph g(%x: f64[14, 6]) {\n" \
    "  %e = exp(%x)\n"                     \
    "  %s = sum(%e)\n"                     \
    "  %q = exp(%s)\n"                     \
    "  %r = neg(%q)\n"                     \
    "  return %e, %r\n}\n"

#define CASTS                                                \
    "tenon 1\ngraph g(%x: bf16[14, 6], %d: bf16[14, 5]) {\n" \
    "  %dt = t(%d)\n"                                        \
    "  %m = mm(%dt, %x)\n"                                   \
    "  %wide = _to_copy(%m, dtype=f32)\n"                    \
    "  %xt = t(%x)\n"                                        \
    "  %narrow = mm(%xt, %d)\n"                              \
    "  %s = sum(%d, dim=[0])\n"                              \
    "  %e = neg(%d)\n"                                       \
    "  return %wide, %narrow, %s, %e\n}\n"

static const LoopCase cases[] = {
    {.name = "head",
     .units = 14,
     .cut = "x y",
     .ports = "sum f64, carry f64, concat f64",
     .addmm = 1,
     .text = INPUTS ") {\n  %wt = t(%w)\n" LOSS ONE BACK "  %dw = mm(%dt, %x)  backward\n"
                    "  %dx = mm(%d, %w)  backward\n"
                    "  return loss %loss, grad \"w\" %dw, %dx\n}\n"},
    /* a view of the product follows on the sum */
    {.name = "transposed",
     .units = 14,
     .cut = "x y",
     .ports = "sum f64, carry f64",
     .addmm = 1,
     .text =
         "tenon 1\ngraph g(%x: f64[14, 6], %y: i64[14], %wt: f64[6, 5] param \"w\") {\n" LOSS ONE
             BACK "  %dwt = mm(%dt, %x)  backward\n"
         "  %dw = t(%dwt)  backward\n"
         "  return loss %loss, grad \"w\" %dw\n}\n"},
    /* an embedding's rows are added to the product where they are made */
    {.name = "tied",
     .units = 14,
     .cut = "i y",
     .ports = "sum f64, carry f64",
     .addmm = 1,
     .text = "tenon 1\ngraph g(%i: i64[14], %y: i64[14], %w: f64[5, 6] param \"w\") {\n"
             "  %wt = t(%w)\n  %x = embedding(%w, %i)\n" LOSS ONE BACK
             "  %dhead = mm(%dt, %x)  backward\n"
             "  %dx = mm(%d, %w)  backward\n"
             "  %drows = embedding_dense_backward(%dx, %i, num_weights=5)  backward\n"
             "  %dw = add(%drows, %dhead)  backward\n"
             "  return loss %loss, grad \"w\" %dw\n}\n"},
    /* one weight in two products */
    {.name = "twice",
     .units = 14,
     .cut = "x y",
     .ports = "sum f64, carry f64",
     .addmm = 2,
     .text = INPUTS ", %q: f64[14, 5]) {\n  %wt = t(%w)\n" LOSS ONE BACK
                    "  %da = mm(%dt, %x)  backward\n"
                    "  %e = mul(%d, %d)  backward\n"
                    "  %et = t(%e)  backward\n"
                    "  %db = mm(%et, %x)  backward\n"
                    "  %dw = add(%da, %db)  backward\n"
                    "  return loss %loss, grad \"w\" %dw\n}\n"},
    /* what else reads the product needs it as it is */
    {.name = "read_twice",
     .units = 14,
     .cut = "x y",
     .ports = "sum f64, sum f64, sum f64",
     .text = INPUTS ") {\n  %wt = t(%w)\n" LOSS ONE BACK "  %dw = mm(%dt, %x)  backward\n"
                    "  %neg = neg(%dw)  backward\n"
                    "  return loss %loss, grad \"w\" %dw, %neg\n}\n"},
    /* a term twice, beside a product */
    {.name = "doubled",
     .units = 14,
     .cut = "x y",
     .ports = "sum f64, sum f64",
     .text = INPUTS ") {\n  %wt = t(%w)\n" LOSS ONE BACK "  %da = mm(%dt, %x)  backward\n"
                    "  %db = mm(%dt, %x)  backward\n"
                    "  %dc = add(%da, %da)  backward\n"
                    "  %dw = add(%dc, %db)  backward\n"
                    "  return loss %loss, grad \"w\" %dw\n}\n"},
    /* a term that is broadcast, and a product that waits for another node */
    {.name = "unlike_terms",
     .units = 14,
     .cut = "x y",
     .ports = "sum f64, sum f64, sum f64, sum f64",
     .text = INPUTS ") {\n  %wt = t(%w)\n" LOSS ONE BACK "  %da = mm(%dt, %x)  backward\n"
                    "  %db = sum(%x, dim=[0])  backward\n"
                    "  %dw = add(%da, %db)  backward\n"
                    "  %dc = mm(%dt, %x)  backward\n"
                    "  %du = add(%db, %dc)  backward\n"
                    "  %dv = mm(%dt, %x)  backward after=%db\n"
                    "  return loss %loss, grad \"w\" %dw, %dv, %du\n}\n"},
    /* a node that waits for a product, and one for an addition */
    {.name = "waits_for_product",
     .units = 14,
     .cut = "x y",
     .ports = "sum f64, sum f64, carry f64, sum f64",
     .addmm = 2,
     .text = INPUTS ") {\n  %wt = t(%w)\n" LOSS ONE BACK "  %da = mm(%dt, %x)  backward\n"
                    "  %p = sum(%x)  backward after=%da\n"
                    "  %db = mm(%dt, %x)  backward\n"
                    "  %dw = add(%da, %db)  backward\n"
                    "  %q = sum(%x, dim=[0])  backward after=%dw\n"
                    "  return loss %loss, grad \"w\" %dw, %p, %q\n}\n"},
    /* a term that two sums share: the second is added as it is */
    {.name = "shared_term",
     .units = 14,
     .cut = "x y",
     .ports = "sum f64, carry f64, sum f64",
     .addmm = 1,
     .text = INPUTS ") {\n  %wt = t(%w)\n" LOSS ONE BACK "  %da = mm(%dt, %x)  backward\n"
                    "  %q = mul(%d, %d)  backward\n"
                    "  %z = sum(%q)  backward\n"
                    "  %qt = t(%q)  backward\n"
                    "  %db = mm(%qt, %x)  backward\n"
                    "  %dc = mm(%qt, %x)  backward\n"
                    "  %dw = add(%da, %db)  backward\n"
                    "  %dv = add(%dc, %db)  backward\n"
                    "  return loss %loss, grad \"w\" %dw, %dv\n}\n"},
    /* through a cast: rounded once, behind the loop */
    {.name = "cast",
     .units = 14,
     .cut = "x d",
     .ports = "carry f32, carry f32, sum f32, concat bf16",
     .addmm = 2,
     .near = 1e-2,
     .text = CASTS},
    /* in their own dtype: one is f32 as what reads it is */
    {.name = "narrow",
     .units = 14,
     .cut = "x d",
     .ports = "carry f32, carry bf16, sum bf16, concat bf16",
     .narrow = true,
     .addmm = 2,
     .near = 3e-2,
     .text = CASTS},
    /* what is cast to fewer bits is carried as the product makes it */
    {.name = "narrow_cast",
     .units = 14,
     .cut = "x d",
     .ports = "carry f32",
     .narrow = true,
     .addmm = 1,
     .near = 1e-2,
     .text = "tenon 1\ngraph g(%x: f32[14, 6], %d: f32[14, 5]) {\n"
             "  %dt = t(%d)\n"
             "  %m = mm(%dt, %x)\n"
             "  %y = _to_copy(%m, dtype=bf16)\n"
             "  return %y\n}\n"},
    /* products of another dtype than the sum has, alone and in one sum */
    {.name = "wider",
     .units = 14,
     .cut = "x d",
     .ports = "carry f32, sum f64",
     .addmm = 1,
     .near = 1e-6,
     .text = "tenon 1\ngraph g(%x: f32[14, 6], %d: f32[14, 5], %z: f64[5, 14]) {\n"
             "  %dt = t(%d)\n"
             "  %m = mm(%dt, %x)\n"
             "  %y = _to_copy(%m, dtype=f64)\n"
             "  %o = mm(%dt, %x)\n"
             "  %p = _to_copy(%o, dtype=f64)\n"
             "  %w = _to_copy(%x, dtype=f64)\n"
             "  %q = mm(%z, %w)\n"
             "  %r = add(%p, %q)\n"
             "  return %y, %r\n}\n"},
    /* the gradient of loss squared: its scale is known behind the loop only */
    {.name = "late_scale",
     .units = 14,
     .cut = "x y",
     .ones = "s",
     .scaled = "dw dx",
     .ports = "sum f64, carry f64, concat f64",
     .addmm = 1,
     .text = INPUTS ") {\n  %wt = t(%w)\n" LOSS "  %total = mul(%loss, %loss)  loss\n"
                    "  %two = full(size=[], fill_value=2.0, dtype=f64)  backward\n"
                    "  %s = mul(%two, %loss)  backward\n" BACK "  %dw = mm(%dt, %x)  backward\n"
                    "  %dx = mm(%d, %w)  backward\n"
                    "  %e = exp(%s)  backward\n"
                    "  return loss %total, grad \"w\" %dw, %dx, %e\n}\n"},
    /* slices that are scaled later are rounded once, if a product makes them and nothing in the
     * body reads them: %dy is, %z is not */
    {.name = "scaled_slices",
     .units = 14,
     .cut = "x",
     .ones = "s",
     .scaled = "dy z q o p",
     .ports = "sum f32, concat f32, concat bf16, sum f32, concat bf16, sum f32",
     .near = 2e-2,
     .text = "tenon 1\ngraph g(%x: bf16[14, 6], %w: bf16[6, 8]) {\n"
             "  %c = _to_copy(%x, dtype=f32)\n"
             "  %l = sum(%c)\n"
             "  %n = exp(%l)\n"
             "  %s = _to_copy(%n, dtype=bf16)\n"
             "  %y = mul(%x, %s)\n"
             "  %dx = mm(%y, %w)\n"
             "  %dy = view(%dx, size=[14, 4, 2])\n"
             "  %dz = mm(%y, %w)\n"
             "  %z = view(%dz, size=[14, 2, 4])\n"
             "  %q = sum(%z, dim=[0])\n"
             "  %o = mm(%y, %w)\n"
             "  %p = sum(%o, dim=[0])\n"
             "  return %l, %dy, %z, %q, %o, %p\n}\n"},
    /* a sum of the loop itself as the scale, of one axis */
    {.name = "scale_is_sum",
     .units = 14,
     .cut = "x",
     .ones = "s",
     .scaled = "y z",
     .ports = "sum f64, concat f64, sum f64",
     .text = "tenon 1\ngraph g(%x: f64[14, 6]) {\n"
             "  %s = sum(%x, dim=[0, 1], keepdim=true)\n"
             "  %e = exp(%x)\n"
             "  %y = mul(%e, %s)\n"
             "  %z = sum(%y)\n"
             "  return %y, %s, %z\n}\n"},
    /* in the middle: a forward node behind the loop becomes one of the backward, what does not read
     * its results stays */
    {.name = "middle",
     .units = 14,
     .cut = "x y",
     .before = "new",
     .ports = "sum f64, carry f64",
     .addmm = 1,
     .text = INPUTS ", %u: f64[5, 6]) {\n  %wt = t(%w)\n" LOSS
                    "  %total = exp(%loss)  loss\n" ONE BACK "  %dw = mm(%dt, %x)  backward\n"
                    "  %clip = mul(%dw, %dw)  backward\n"
                    "  %v = mul(%u, %u)  backward\n"
                    "  %new = sub(%w, %v)  backward\n"
                    "  %step = sub(%new, %dw)  backward\n"
                    "  %r = neg(%total)  backward\n"
                    "  return loss %total, grad \"w\" %dw, %clip, %step, %r\n}\n"},
    /* in a body */
    {.name = "within",
     .units = 7,
     .cut = "a b",
     .within = "dw",
     .before = "new",
     .ports = "carry f64, concat f64",
     .addmm = 1,
     .text = "tenon 1\ngraph g(%x: f64[21, 6], %d: f64[21, 5], %i: f64[6, 5]) {\n"
             "  %dw, %y = loop(n=3, slice %a: f64[7, 6] = %x axis 0,\n"
             "      slice %b: f64[7, 5] = %d axis 0, carry %c: f64[6, 5] = %i)\n"
             "      -> (carry %c, concat axis 0) {\n"
             "    %at = t(%a)\n"
             "    %m = mm(%at, %b)\n"
             "    %e = exp(%b)\n"
             "    %new = add(%c, %m)\n"
             "    yield %new, %e\n"
             "  }\n"
             "  return %dw, %y\n}\n"},
    /* units that are no run of the axis: rows of two halves, and of a merged axis */
    {.name = "halves",
     .units = 7,
     .cut = "x:0:2 d:0:2",
     .ports = "concat f64, carry f64, concat f64",
     .addmm = 1,
     .text = "tenon 1\ngraph g(%x: f64[14, 6], %d: f64[14, 5]) {\n"
             "  %e = exp(%x)\n"
             "  %et = t(%e)\n"
             "  %dw = mm(%et, %d)\n"
             "  %v = view(%e, size=[2, 7, 6])\n"
             "  return %e, %dw, %v\n}\n"},
    /* names that nodes around the loop would take */
    {.name = "names",
     .units = 7,
     .cut = "x:0:2 d:0:2",
     .ports = "concat f64, carry f64",
     .addmm = 1,
     .text = "tenon 1\ngraph g(%x: f64[14, 6], %d: f64[14, 5]) {\n"
             "  %view = exp(%x)\n"
             "  %t = t(%view)\n"
             "  %full = mm(%t, %d)\n"
             "  return %view, %full\n}\n"},
    /* one operand along two axes, of which the first is split */
    {.name = "two_ways",
     .units = 7,
     .cut = "d:0:2 q:1",
     .ports = "sum f64, sum f64",
     .text = "tenon 1\ngraph g(%x: f64[14, 7], %d: f64[14, 7], %q: f64[14, 7]) {\n"
             "  %a = mul(%x, %q)\n"
             "  %b = mul(%x, %d)\n"
             "  %s = sum(%a)\n"
             "  %t = sum(%b, dim=[0])\n"
             "  return %s, %t\n}\n"},
    /* a loop inside, which slices, stacks and carries what is cut */
    {.name = "loop_inside",
     .units = 7,
     .cut = "x:1 z:0:2 c d",
     .ports = "concat f64, concat f64, sum f64",
     .text = "tenon 1\ngraph g(%x: f64[2, 7, 3], %z: f64[14, 3], %c: f64[7, 3], %d: f64[7, 3]) {\n"
             "  %y, %v = loop(n=2, stack %a: f64[7, 3] = %x, slice %b: f64[7, 3] = %z axis 0,\n"
             "      carry %e: f64[7, 3] = %c, whole %f: f64[7, 3] = %d)\n"
             "      -> (carry %e, concat axis 0) {\n"
             "    %m = mul(%a, %b)\n"
             "    %k = mul(%m, %f)\n"
             "    %n = add(%e, %k)\n"
             "    yield %n, %m\n"
             "  }\n"
             "  %s = sum(%y)\n"
             "  return %y, %v, %s\n}\n"},
    /* bodies compute constants and a whole loop, as the graph around does for another reader */
    {.name = "again",
     .units = 14,
     .cut = "x",
     .again = "k v",
     .ports = "concat f64",
     .text = "tenon 1\ngraph g(%x: f64[14, 3], %z: f64[2, 3]) {\n"
             "  %k = full(size=[3], fill_value=2.0, dtype=f64)\n"
             "  %v = loop(n=2, stack %a: f64[3] = %z, carry %e: f64[3] = %k) -> (carry %e) {\n"
             "    %n = mul(%e, %a)\n"
             "    yield %n\n"
             "  }\n"
             "  %y = mul(%x, %v)\n"
             "  return %y, %v, %k\n}\n"},
    /* masks are those of the whole */
    {.name = "dropout",
     .units = 14,
     .cut = "x",
     .ports = "concat f64, sum f64",
     .text = "tenon 1\ngraph g(%x: f64[14, 6], %seed: i64[] seed, %step: i64[] step) {\n"
             "  %m = dropout(%x, %seed, %step, p=0.5) stream=0\n"
             "  %s = sum(%m)\n"
             "  return %m, %s\n}\n"},
    /* what a caller gets wrong */
    {.name = "leads",
     .units = 14,
     .cut = "x",
     .wrong = WRONG_NOT_BEHIND,
     .at = "q",
     .error = "leads:5:3: exp %q: cannot be a loop: it reads %s, which is inside of the loop",
     .text = WRONG_TEXT},
    {.name = "leads_later",
     .units = 14,
     .cut = "x",
     .wrong = WRONG_NOT_BEHIND,
     .at = "r",
     .error = "leads_later:6:3: neg %r: cannot be a loop: it reads %q, which is behind the loop",
     .text = WRONG_TEXT},
    {.name = "not_yielded",
     .units = 14,
     .cut = "x",
     .wrong = WRONG_NOT_YIELDED,
     .at = "s",
     .error = "not_yielded:5:3: exp %q: cannot be a loop: it reads %s, which is inside",
     .text = WRONG_TEXT},
    {.name = "output",
     .units = 14,
     .cut = "x",
     .wrong = WRONG_NOT_YIELDED,
     .at = "e",
     .error = "output:3:3: exp %e: cannot be a loop: it is an output, but not yielded",
     .text = WRONG_TEXT},
    {.name = "not_inside",
     .units = 14,
     .cut = "x",
     .wrong = WRONG_NOT_INSIDE,
     .at = "s",
     .error = "not_inside:4:3: sum %s: cannot be a loop: it is to be yielded, but is not inside",
     .text = WRONG_TEXT},
    {.name = "reads_inside",
     .units = 14,
     .cut = "x",
     .wrong = WRONG_WHOLE,
     .at = "m",
     .error = "reads_inside:4:3: exp %e: cannot be a loop: it reads %m, which is not made before",
     .text = "tenon 1\ngraph g(%x: f64[14, 6]) {\n"
             "  %m = neg(%x)\n"
             "  %e = exp(%m)\n"
             "  return %e\n}\n"},
    {.name = "outside_too",
     .units = 14,
     .cut = "x",
     .wrong = WRONG_OUTSIDE_TOO,
     .at = "e",
     .error = "cannot be a loop: it is to be yielded, and computed around the loop, too",
     .text = WRONG_TEXT},
    {.name = "whole",
     .units = 14,
     .cut = "x",
     .wrong = WRONG_WHOLE,
     .at = "s",
     .error = "whole:4:3: sum %s: cannot be a loop: %s is neither slices nor a sum",
     .text = WRONG_TEXT},
    {.name = "order",
     .units = 14,
     .cut = "x",
     .wrong = WRONG_ORDER,
     .at = "q",
     .error = "order:5:3: exp %q: cannot be a loop: its order after %e crosses the loop",
     .text = WRONG_TEXT},
    /* the scale is made behind the node before which the loop stands */
    {.name = "scale_late",
     .units = 14,
     .cut = "x",
     .ones = "q",
     .scaled = "y",
     .before = "q",
     .error = "scale_late:6:3: mul %y: cannot be a loop: its scale is made neither before nor",
     .text = "tenon 1\ngraph g(%x: f64[14, 6]) {\n"
             "  %e = exp(%x)\n"
             "  %s = sum(%e)\n"
             "  %q = exp(%s)\n"
             "  %y = mul(%e, %q)\n"
             "  return %y\n}\n"},
    {.name = "many_axes",
     .units = 7,
     .cut = "x:0:2",
     .error = "units are not major in operand %x",
     .text = "tenon 1\ngraph g(%x: f64[14, 1, 1, 1, 1, 1, 1, 1]) {\n"
             "  %s = sum(%x)\n"
             "  return %s\n}\n"},
    {.name = "many_axes_result",
     .units = 7,
     .cut = "x:0:2",
     .error = "units are not major in result 0",
     .text = "tenon 1\ngraph g(%x: f64[14]) {\n"
             "  %y = view(%x, size=[14, 1, 1, 1, 1, 1, 1, 1])\n"
             "  return %y\n}\n"},
    {.name = "nothing",
     .units = 14,
     .cut = "z",
     .error = "cannot be a loop: a loop without results",
     .text = WRONG_TEXT},
};

#endif
