# Functions that files of `tenon export fx` may need, each with those that it calls: ops of Tenon that are
# no single call of ATen; and load and run, which all have. tenon_dropout and tenon_round draw the numbers that Tenon draws, Philox4x32-10
# (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).


def tenon_wide(x):
    """x in f32, or in f64 where it has that."""
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def tenon_mm(a, b, dtype):
    return aten.mm.default(tenon_wide(a), tenon_wide(b)).to(dtype)


def tenon_bmm(a, b, dtype):
    return aten.bmm.default(tenon_wide(a), tenon_wide(b)).to(dtype)


def tenon_addmm(bias, a, b, dtype):
    return aten.addmm.default(tenon_wide(bias), tenon_wide(a), tenon_wide(b)).to(dtype)


def tenon_convolution(x, w, bias, stride, padding, dilation, transposed, output_padding, groups,
                      dtype):
    bias = None if bias is None else tenon_wide(bias)
    output_padding = output_padding or [0] * len(stride)
    return aten.convolution.default(tenon_wide(x), tenon_wide(w), bias, stride, padding, dilation,
                                    transposed, output_padding, groups).to(dtype)


# The map may end before the last place of the image that a step reaches.
def tenon_convolution_backward_weight(x, y, stride, padding, dilation, groups, shape, dtype):
    x, y = tenon_wide(x), tenon_wide(y)
    more = [(s + 2 * p - d * (k - 1) - 1) // t + 1 - m for s, p, d, k, t, m in
            zip(x.shape[2:], padding, dilation, shape[2:], stride, y.shape[2:])]
    y = aten.constant_pad_nd.default(y, [n for m in reversed(more) for n in (0, m)])
    return aten.convolution_backward.default(y, x, x.new_zeros(shape), None, stride, padding,
                                             dilation, False, [0] * len(stride), groups,
                                             [False, True, False])[1].to(dtype)


def tenon_trunc_divide(a, b):
    """PyTorch's own division of integers dies of the least one by -1, which floor_divide knows."""
    if a.dtype.is_floating_point:
        return aten.div.Tensor_mode(a, b, rounding_mode="trunc")
    q = aten.floor_divide.default(a, b)
    return q + ((q < 0) & (q * b != a)).to(q.dtype)


def tenon_arange(start, end, step, dtype, first):
    y = aten.arange.start_step(start, end, step, dtype=torch.int64, device=first.device)
    return (y + first * step).to(dtype)


def tenon_cat_ring(first, *parts):
    return aten.cat.default([parts[(place - first) % len(parts)] for place in range(len(parts))], 0)


def tenon_layer_norm(x, w, b, shape, eps):
    y, mean, rstd = aten.native_layer_norm.default(tenon_wide(x), shape, tenon_wide(w), tenon_wide(b), eps)
    return y.to(x.dtype), mean, rstd


def tenon_layer_norm_backward(dy, x, mean, rstd, w, shape):
    dx, dw, db = aten.native_layer_norm_backward.default(
        tenon_wide(dy), tenon_wide(x), shape, mean, rstd, tenon_wide(w), tenon_wide(w), [True, True, True])
    return dx.to(x.dtype), dw.to(w.dtype), db.to(w.dtype)


def tenon_rms_norm(x, w, eps):
    wide = tenon_wide(x)
    rstd = aten.rsqrt.default(aten.mean.dim(wide * wide, [-1], True) + eps)
    return (wide * rstd * w).to(x.dtype), rstd


def tenon_rms_norm_backward(dy, x, rstd, w):
    dy, h = tenon_wide(dy), tenon_wide(x) * rstd
    g = dy * w
    dx = rstd * (g - h * aten.mean.dim(g * h, [-1], True))
    dw = aten.sum.dim_IntList(aten.reshape.default(dy * h, [-1, x.shape[-1]]), [0])
    return dx.to(x.dtype), dw.to(w.dtype)


def tenon_embedding(w, ids, first):
    """Rows of the part of a table that begins at row `first`; zeros for ids outside of it."""
    if not w.shape[0]:
        return aten.zeros.default([*ids.shape, w.shape[1]], dtype=w.dtype, device=w.device)
    row = ids - first
    inside = (row >= 0) & (row < w.shape[0])
    y = aten.embedding.default(w, aten.where.ScalarOther(inside, row, 0))
    return aten.where.ScalarOther(aten.unsqueeze.default(inside, -1), y, 0)


def tenon_embedding_backward(rows, padding, dtype, dy, ids, *more):
    """more: the base, which the rows are added to, and the first row of the part."""
    row = ids - more[-1] if more and more[-1].dim() == 0 else ids
    inside = (row >= 0) & (row < rows) & (ids != padding)
    row = aten.where.ScalarOther(inside, row, rows)
    dw = aten.embedding_dense_backward.default(tenon_wide(dy), row, rows + 1, -1, False)
    dw = aten.slice.Tensor(dw, 0, 0, rows)
    return (more[0] + dw if more and more[0].dim() == 2 else dw).to(dtype)


def tenon_triangle(x, diagonal, shift, upper):
    rows = aten.arange.default(x.shape[-2], device=x.device)
    columns = aten.arange.default(x.shape[-1], device=x.device)
    far = 2**60  # sums with what lies farther would leave int64
    diagonal = aten.clamp.default(shift, -far, far) + max(-far, min(far, diagonal))
    above = columns - aten.unsqueeze.default(rows, 1) - diagonal
    return aten.where.ScalarOther(above >= 0 if upper else above <= 0, x, 0)


def tenon_arg(arg, x, dim, keepdim):
    return arg(x.to(torch.uint8) if x.dtype == torch.bool else x, dim[0] if dim else None, keepdim)


def tenon_cumsum(x, dim, reverse):
    if not reverse:
        return aten.cumsum.default(x, dim, dtype=x.dtype)
    return aten.flip.default(aten.cumsum.default(aten.flip.default(x, [dim]), dim, dtype=x.dtype), [dim])


def tenon_cross_entropy(x, labels, count, ignore, z, smoothing, padding):
    x = tenon_wide(aten.slice.Tensor(x, 1, 0, x.shape[1] - padding))
    counted = labels != ignore
    label = aten.unsqueeze.default(aten.where.ScalarOther(counted, labels, 0), 1)
    lse, log_p = aten.logsumexp.default(x, [1]), aten._log_softmax.default(x, 1, False)
    row = (smoothing - 1) * aten.squeeze.dim(aten.gather.default(log_p, 1, label), 1)
    if smoothing > 0:
        row = row - smoothing * aten.mean.dim(log_p, [1])
    if z > 0:
        row = row + z * lse * lse
    return aten.sum.default(aten.where.ScalarOther(counted, row, 0.0)) / count, lse


def tenon_cross_entropy_part(ignore, smoothing, classes, x, labels, count, first=None):
    """The classes from `first` on: the part of the targets that they have, and their log-sum-exp."""
    wide, labels = tenon_wide(x), aten.unsqueeze.default(labels, 1)
    column = aten.arange.default(x.shape[1], device=x.device) + (0 if first is None else first)
    inside = column < (classes or x.shape[1])
    lse = aten.logsumexp.default(aten.where.ScalarOther(inside, wide, -inf), [1])
    target = aten.where.ScalarOther(column == labels, (1 - smoothing) * wide, 0.0)
    if smoothing > 0:
        target = target + aten.where.ScalarOther(inside, smoothing / (classes or x.shape[1]) * wide, 0.0)
    target = aten.where.ScalarOther((labels != ignore) & inside, target, 0.0)
    return aten.sum.dim_IntList(target, [1]), lse


def tenon_cross_entropy_backward(ignore, z, smoothing, classes, padding, dloss, x, labels, lse, count, first=None):
    classes = classes or x.shape[1] - padding
    column = aten.arange.default(x.shape[1], device=x.device) + (0 if first is None else first)
    labels, lse = aten.unsqueeze.default(labels, 1), aten.unsqueeze.default(lse, 1)
    p = aten.exp.default(tenon_wide(x) - lse)
    if z > 0:
        p = p * (1 + 2 * z * lse)
    target = (1 - smoothing) * (column == labels).to(p.dtype) + smoothing / classes
    counted = (labels != ignore) & (column < classes)
    return aten.where.ScalarOther(counted, dloss / count * (p - target), 0.0).to(x.dtype)


def tenon_rope_table(length, dim, theta, dtype, device, position=None):
    place = aten.arange.default(length, dtype=torch.float64, device=device)
    place = place if position is None else place + position
    pair = aten.arange.default(dim // 2, dtype=torch.float64, device=device)
    angle = aten.unsqueeze.default(place, 1) * aten.pow.Scalar(theta, pair * (-2 / dim))
    return aten.cos.default(angle).to(dtype), aten.sin.default(angle).to(dtype)


def tenon_rope(x, cos, sin, inverse):
    cos, sin = aten.unsqueeze.default(cos, 1), aten.unsqueeze.default(-sin if inverse else sin, 1)
    half = x.shape[3] // 2
    p, q = aten.split_with_sizes.default(x, [half, half], 3)
    return aten.cat.default([p * cos - q * sin, q * cos + p * sin], 3).to(x.dtype)


def tenon_heads(x, heads):
    """x[B, T, H, D] as f32[B, heads, T, D], or f64 where it has that, each head repeated to fill them; rows are dense."""
    x = tenon_wide(x)
    x = aten.repeat_interleave.self_int(x, heads // x.shape[2], 2) if heads > x.shape[2] else x
    x = aten.permute.default(x, [0, 2, 1, 3])
    return x if x.stride(3) == 1 else x.contiguous()


def tenon_mask(causal, scale, q, k, extra):
    """Whether scores take the kernel's own causal mask (-inf before the scale, which must then be above 0 in f32), and
    what is added to them, or None. extra: a mask, the position of the first query, or where the document of each begins."""
    mask = extra.to(q.dtype) if extra is not None and extra.dim() == 4 else None
    if extra is not None and extra.dim() == 2:
        starts = aten.reshape.default(extra, [extra.shape[0], 1, extra.shape[1], 1])
        before = aten.arange.default(k.shape[2], device=q.device) < starts
        mask = aten.where.Scalar(before, -inf, 0.0).to(q.dtype)
    position = extra if extra is not None and extra.dim() == 0 else k.shape[2] - q.shape[2]
    if not causal or (extra is None and position == 0 and (scale is None or scale >= 2**-126)):
        return causal, mask
    query = aten.unsqueeze.default(aten.arange.default(q.shape[2], device=q.device) + position, 1)
    seen = aten.arange.default(k.shape[2], device=q.device) <= query
    unseen = aten.where.Scalar(seen, 0.0, -inf).to(q.dtype)
    return False, aten.reshape.default(unseen, [1, 1, *seen.shape]) if mask is None else mask + unseen


def tenon_scores(causal, mask, scale, q, k):
    """scale q k^T of each head with the mask."""
    scores = aten.matmul.default(q, aten.transpose.int(k, 2, 3)) * (q.shape[3] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else scores + mask
    return aten.where.ScalarOther(aten.tril.default(aten.ones_like.default(scores, dtype=torch.bool)), scores, -inf) if causal else scores


def tenon_levels(scores, least):
    """Masked scores, those far below 0 by their octave alone."""
    x = scores * -0.73
    low = aten.logical_and.default(x >= least, x < inf)
    octave = aten.floor.default(aten.log2.default(aten.where.ScalarOther(low, x, least)))
    return aten.where.self(low, -aten.exp2.default(aten.clamp.default(octave, None, 125.0) + 2), scores)


def tenon_masked(causal, mask, scale, q, k):
    """The scores of a mask of floats, where levels begin, and each row's greatest score."""
    wide = q.dtype if q.dtype == torch.float64 else torch.float32
    least = 2.0**46 if wide == torch.float64 else 2.0**22
    scores = tenon_levels(tenon_scores(causal, mask.to(wide), scale, q.to(wide), k.to(wide)), least)
    return scores, least, aten.amax.default(scores, [3], True)


def tenon_attention_masked(causal, mask, scale, q, k, v):
    """Where all that a row sees has one level, lse is that with the logarithm of the sum."""
    scores, least, top = tenon_masked(causal, mask, scale, q, k)
    base = aten.where.ScalarOther(top > -inf, top, 0.0)
    p = aten.exp.default(scores - base)
    sum = aten.sum.dim_IntList(p, [3], True)
    log_sum = aten.log.default(sum)
    lse = aten.where.self(top <= -4 * least, base - base * (log_sum / 128), base + log_sum)
    o = aten.matmul.default(p / aten.where.ScalarOther(sum > 0, sum, 1.0), v.to(p.dtype))
    return o, aten.where.ScalarOther(sum > 0, lse, inf)


def tenon_weights_masked(causal, mask, scale, q, k, lse):
    """exp(scores - lse) by a row's level and the logarithm of its sum."""
    scores, least, _ = tenon_masked(causal, mask, scale, q, k)
    low = aten.logical_and.default(lse < -2 * least, lse > -inf)
    octave = aten.ceil.default(aten.log2.default(aten.where.ScalarOther(low, -lse, least)))
    level = aten.where.ScalarOther(low, -aten.exp2.default(octave), 0.0)
    rest = aten.where.self(low, (1 + lse / aten.exp2.default(octave)) * 128, lse)
    return aten.exp.default(scores - level - rest)


def tenon_leveled(mask, extra):
    """Whether a mask of floats leaves some row only scores that may count by levels."""
    if extra is None or not extra.is_floating_point():
        return False
    top = aten.amax.default(mask, [3])
    return bool(aten.any.default(aten.logical_and.default(top < -(2.0**21), top > -inf)))


def tenon_attention(causal, scale, q, k, v, extra=None):
    """On the CPU without the matrix of scores; a query that sees nothing gives zeros and a log-sum-exp of inf."""
    like, heads = q, q.shape[2]
    q, k, v = tenon_heads(q, heads), tenon_heads(k, heads), tenon_heads(v, heads)
    causal, mask = tenon_mask(causal, scale, q, k, extra)
    if tenon_leveled(mask, extra):
        o, lse = tenon_attention_masked(causal, mask, scale, q, k, v)
        return aten.permute.default(o, [0, 2, 1, 3]).to(like.dtype), aten.reshape.default(lse, o.shape[:3])
    if q.device.type == "cpu" and q.numel() and k.numel():
        o, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    else:
        scores = tenon_scores(causal, mask, scale, q, k)
        o, lse = aten.matmul.default(aten._safe_softmax.default(scores, 3), v), aten.logsumexp.default(scores, [3])
    if mask is not None:
        lse = aten.where.ScalarSelf(aten.all.dim(mask == -inf, 3), inf, lse)
    return aten.permute.default(o, [0, 2, 1, 3]).to(like.dtype), lse


def tenon_attention_backward(causal, scale, do, q, k, v, o, lse, extra=None):
    likes, heads = (q, k, v), q.shape[2]
    do, q, k, v, o = (tenon_heads(x, heads) for x in (do, q, k, v, o))
    causal, mask = tenon_mask(causal, scale, q, k, extra)
    masked = tenon_leveled(mask, extra)
    if q.device.type == "cpu" and q.numel() and k.numel() and not masked:
        grads = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            do, q, k, v, o, lse, 0.0, causal, attn_mask=mask, scale=scale)
    else:
        row = aten.unsqueeze.default(lse, 3)
        if masked:
            p = tenon_weights_masked(causal, mask, scale, q, k, row)
            do, q, k, v, o = (x.to(p.dtype) for x in (do, q, k, v, o))
        else:
            p = aten.exp.default(tenon_scores(causal, mask, scale, q, k) - row)
        dp = aten.matmul.default(do, aten.transpose.int(v, 2, 3)) - aten.sum.dim_IntList(do * o, [3], True)
        ds = p * dp * (q.shape[3] ** -0.5 if scale is None else scale)
        t = lambda x: aten.transpose.int(x, 2, 3)
        grads = aten.matmul.default(ds, k), aten.matmul.default(t(ds), q), aten.matmul.default(t(p), do)
    shared = lambda x, n: x if n == heads else aten.sum.dim_IntList(aten.reshape.default(x, [x.shape[0], n, heads // n, *x.shape[2:]]), [2])
    return tuple(aten.permute.default(shared(x, like.shape[2]), [0, 2, 1, 3]).to(like.dtype) for x, like in zip(grads, likes))


def tenon_cache_update(cache, x, position):
    at = aten.arange.default(x.shape[1], device=x.device) + position
    return aten.index_copy.default(cache, 1, at, x)


def tenon_words(position, seed, stream, step):
    """The 32 random bits of each position, as int64."""
    low = 0xFFFFFFFF
    block = position >> 2
    c = [block & low, (block >> 32) & low, stream + 0 * block, (step & low) + 0 * block]
    k0, k1 = seed & low, (seed >> 32) & low
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [((p1 >> 32) & low) ^ c[1] ^ k0, p1 & low, ((p0 >> 32) & low) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    lane = position & 3
    return aten.where.self(lane < 2, aten.where.self(lane == 0, c[0], c[1]), aten.where.self(lane == 2, c[2], c[3]))


def tenon_positions(shape, extents, places, device):
    """Row-major positions in a whole tensor of the sizes `extents`; places: what each axis' indices become."""
    position = aten.zeros.default([1] * len(shape), dtype=torch.int64, device=device)
    stride = 1
    for d in reversed(range(len(shape))):
        index = places(d, aten.arange.default(shape[d], device=device)) * stride
        position = position + aten.reshape.default(index, [shape[d] if d == e else 1 for e in range(len(shape))])
        stride *= extents[d]
    return position


def tenon_drawn(stream, axes, extents, x, seed, step, offsets):
    """The 24 random bits of each of x's elements, by its position in the whole tensor."""
    whole = [extents[axes.index(d)] if d in axes else n for d, n in enumerate(x.shape)]
    position = tenon_positions(x.shape, whole, lambda d, i: i + offsets[axes.index(d)] if d in axes else i, x.device)
    return tenon_words(position, seed, stream, step) >> 8


def tenon_rand_like(stream, axes, extents, x, seed, step, *offsets):
    return tenon_drawn(stream, axes, extents, x, seed, step, offsets).to(torch.float32) * 2.0**-24


def tenon_dropout(p, stream, axes, extents, x, seed, step, *offsets):
    """y, mask: an element is kept where its random bits are at least p 2^24."""
    mask = tenon_drawn(stream, axes, extents, x, seed, step, offsets) >= ceil(p * 2**24)
    return aten.where.ScalarOther(mask, x * (1 / (1 - p) if p < 1 else 0.0), 0.0), mask


def tenon_sum_squares(x):
    """The sum of squares as limbs of 27 bits from 2^-298 on, int64[24]; infinities and NaN are counted in the last two."""
    total = aten.sum.default(aten.pow.Tensor_Scalar(x.to(torch.float64), 2))
    finite = aten.where.ScalarOther(aten.isfinite.default(total), total, 0.0)
    mantissa, exponent = aten.frexp.Tensor(finite)
    bits, at = (mantissa * 2.0**53).to(torch.int64), exponent.to(torch.int64) - 53 + 298
    bits, at = bits >> aten.clamp.default(-at, 0, 62), aten.clamp.default(at, 0)
    limb, shift = at // 27, at % 27
    low, high = (bits & (2**27 - 1)) << shift, (bits >> 27) << shift
    place = aten.arange.default(24, device=x.device) - limb
    limbs = (place == 0) * (low & (2**27 - 1)) + (place == 1) * ((low >> 27) + (high & (2**27 - 1)))
    limbs = limbs + (place == 2) * (high >> 27)
    infinite, nan = aten.isinf.default(total), aten.isnan.default(total)
    return aten.cat.default([aten.slice.Tensor(limbs, 0, 0, 22), aten.stack.default([infinite, nan]).to(torch.int64)])


def tenon_norm_of(dtype, *parts):
    """The norm of tensors, and of sums of squares as tenon_sum_squares has them."""
    total = 0.0
    for x in parts:
        if x.dtype == torch.int64:
            unit = aten.pow.Scalar(2.0, aten.arange.default(22, dtype=torch.float64, device=x.device) * 27 - 298)
            square = aten.sum.default(aten.slice.Tensor(x, 0, 0, 22) * unit)
            square = aten.where.ScalarSelf(x[22] > 0, inf, square)
            total = total + aten.where.ScalarSelf(x[23] > 0, nan, square)
        else:
            total = total + aten.sum.default(aten.pow.Tensor_Scalar(x.to(torch.float64), 2))
    return aten.sqrt.default(total).to(dtype)


def tenon_clip_scale(norm, most):
    return aten.clamp_max.default(most / (norm + 1e-6), 1.0)


def tenon_round(x, dtype, stream, extents, axes, runs, spans, seed, step, *starts):
    """x in a dtype of 16 bits, to one of its two neighbours, as random bits say."""

    def place(d, i):
        for k, axis in enumerate(axes):
            i = i // runs[k] * spans[k] + starts[k] + i % runs[k] if axis == d else i
        return i

    word = tenon_words(tenon_positions(x.shape, extents, place, x.device), seed, stream, step)
    if dtype == torch.bfloat16:
        bits = aten.view.dtype(x, torch.int32).to(torch.int64) & 0xFFFFFFFF
        bits = bits + aten.where.ScalarOther((bits & 0x7F800000) != 0x7F800000, word >> 16, 0)
        return aten.view.dtype((bits & 0xFFFF0000).to(torch.int32), torch.float32).to(dtype)
    exponent = aten.clamp.default(aten.frexp.Tensor(x)[1] - 1, -14)
    unit = aten.ldexp.Tensor(aten.ones_like.default(x), exponent - 10)
    part = aten.abs.default(x) / unit
    up = (part - aten.floor.default(part)) * 2.0**16 + (word >> 16) >= 2.0**16
    rounded = aten.copysign.Tensor((aten.floor.default(part) + up) * unit, x)
    return aten.where.self(aten.isfinite.default(x), rounded, x).to(dtype)


def tenon_new_weight(p, x, apply, rounding, extents, axes, runs, spans, more):
    narrow = rounding >= 0 and p.dtype in (torch.bfloat16, torch.float16)
    new = tenon_round(x, p.dtype, rounding, extents, axes, runs, spans, *more) if narrow else x.to(p.dtype)
    return aten.where.self(apply, new, p)


def tenon_adamw(operands, beta1, beta2, eps, decay, rounding, extents, axes, runs, spans):
    p, g, m, v, lr, step, scale, apply, *more = operands
    compute = torch.float64 if g.dtype == torch.float64 else torch.float32
    lr, t = lr.to(torch.float64), step.to(torch.float64)
    keep = (1 - lr * decay).to(compute)
    rate = (lr / (1 - aten.pow.Scalar(beta1, t))).to(compute)
    root = (1 / aten.sqrt.default(1 - aten.pow.Scalar(beta2, t))).to(compute)
    wide = scale.to(compute) * g.to(compute)
    m1 = beta1 * m.to(compute) + (1 - beta1) * wide
    v1 = beta2 * v.to(compute) + (1 - beta2) * wide * wide
    x = keep * p.to(compute) - rate * m1 / (aten.sqrt.default(v1) * root + eps)
    new = tenon_new_weight(p, x, apply, rounding, extents, axes, runs, spans, more)
    return new, aten.where.self(apply, m1.to(m.dtype), m), aten.where.self(apply, v1.to(v.dtype), v)


def tenon_sgd(operands, decay, momentum, rounding, extents, axes, runs, spans):
    p, g, lr, scale, apply, *more = operands
    compute = torch.float64 if g.dtype == torch.float64 else torch.float32
    m = more.pop(0) if more and (rounding < 0 or len(more) > 2 + len(axes)) else None
    change = scale.to(compute) * g.to(compute) + decay * p.to(compute)
    if m is not None:
        change = momentum * m.to(compute) + change
    x = p.to(compute) - lr.to(compute) * change
    new = tenon_new_weight(p, x, apply, rounding, extents, axes, runs, spans, more)
    return new if m is None else (new, aten.where.self(apply, change.to(m.dtype), m))


def tenon_group(axes):
    """The process group that spans these axes of the mesh, its ranks in their order, and this rank's place."""
    if axes not in GROUPS:
        import itertools
        import torch.distributed as dist

        names, sizes = [n for n, _ in MESH], [s for _, s in MESH]
        spanned = [names.index(n) for n in axes.split(",")]
        rank = lambda at: sum(a * prod(sizes[d + 1 :]) for d, a in enumerate(at))
        others = [d for d in range(len(sizes)) if d not in spanned]
        for outside in itertools.product(*(range(sizes[d]) for d in others)):
            members = []
            for inside in itertools.product(*(range(sizes[d]) for d in spanned)):
                at = [0] * len(sizes)
                for d, a in [*zip(others, outside), *zip(spanned, inside)]:
                    at[d] = a
                members.append(rank(at))
            group = dist.new_group(sorted(members))
            if rank(AT) in members:
                order = [sorted(members).index(r) for r in members]
                GROUPS[axes] = (group.group_name, order, members.index(rank(AT)))
    return GROUPS[axes]


def tenon_parts(x, order):
    """x with its parts along axis 0 in another order."""
    if order == sorted(order):
        return x
    parts = aten.split.Tensor(x, x.shape[0] // len(order), 0)
    return aten.cat.default([parts[place] for place in order], 0)


def tenon_each(call, x):
    return call(x[0]) if len(x) == 1 else tuple(call(y) for y in x)


def tenon_all_reduce(reduce_op, group, *x):
    name, _, _ = tenon_group(group)
    return tenon_each(lambda y: c10d.all_reduce.default(aten.clone.default(y), reduce_op, name), x)


def tenon_all_gather(size, group, *x):
    name, order, _ = tenon_group(group)
    if order == sorted(order):
        return tenon_each(lambda y: c10d.all_gather_into_tensor.default(aten.contiguous.default(y), size, name), x)
    gather = lambda y: c10d.wait_tensor.default(c10d.all_gather_into_tensor.default(aten.contiguous.default(y), size, name))
    return tenon_each(lambda y: tenon_parts(gather(y), order), x)


def tenon_reduce_scatter(reduce_op, size, group, *x):
    name, order, _ = tenon_group(group)
    back = [order.index(place) for place in range(size)]
    scatter = lambda y: c10d.reduce_scatter_tensor.default(
        aten.contiguous.default(tenon_parts(y, back)), reduce_op, size, name)
    return tenon_each(scatter, x)


def tenon_all_to_all(x, output_sizes, input_sizes, group):
    name, order, _ = tenon_group(group)
    assert order == sorted(order), f"{group}: all_to_all_single wants the group's ranks in rising order"
    even = [x.shape[0] // len(order)] * len(order)
    return c10d.all_to_all_single.default(aten.contiguous.default(x), output_sizes or even, input_sizes or even, name)


def tenon_broadcast(x, src, group):
    name, order, _ = tenon_group(group)
    return c10d.broadcast.default(aten.clone.default(x), order[src], name)


def tenon_permute(x, shift, group):
    """x of the group's rank `shift` places further on, around."""
    name, order, place = tenon_group(group)
    sizes = lambda other: [x.shape[0] if order[other % len(order)] == r else 0 for r in range(len(order))]
    return c10d.all_to_all_single.default(aten.contiguous.default(x), sizes(place + shift), sizes(place - shift), name)


def load(*paths):
    """The inputs that safetensors files have, under their own names or those of weights, and those without elements."""
    none = [(name, dtype, shape) for name, _, _, dtype, shape in INPUTS if not prod(shape)]
    tensors = {name: torch.empty(shape, dtype=dtype, device=DEVICE) for name, dtype, shape in none}
    for path in paths:
        with open(path, "rb") as f:
            head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            first = f.tell()
            for name, _, weight, dtype, shape in INPUTS:
                entry = head.get(name) or head.get(weight)
                if entry is None:
                    continue
                if entry["shape"] != shape:
                    raise ValueError(f"{path}: {name}: expected the shape {shape}, found {entry['shape']}")
                begin, end = entry["data_offsets"]
                f.seek(first + begin)
                data = bytearray(f.read(end - begin)) or bytearray(8)
                x = torch.frombuffer(data, dtype=SAVED[entry["dtype"]])
                tensors[name] = x[: prod(shape)].reshape(shape).to(device=DEVICE, dtype=dtype)
    return tensors


def run(tensors):
    """The results by name, of inputs by name."""
    tensors = {**load(), **tensors}
    missing = [name for name, *_ in INPUTS if name not in tensors]
    if missing:
        raise KeyError(f"inputs are missing: {missing}")
    return dict(zip(OUTPUTS, forward(*(tensors[name] for name, *_ in INPUTS))))
