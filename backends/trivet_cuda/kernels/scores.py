"""What the attention kernels share: where keys are, capped scores, one tile of keys in the running softmax.

Exponentials are in base 2, as the hardware has them; the factor log2(e) goes into the scale.
"""

# Triton writes constants in capitals, and its decorator has no types.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)  # below any score; -inf less -inf would not be a number


@triton.jit
def scaled(dots, scale, SOFT_CAP: tl.constexpr):
    """Scores in base 2 of the products query * key; `scale` in natural units, SOFT_CAP 0 for none."""
    if SOFT_CAP > 0:
        # tanh by the exponential: there is none in the language, and its library is not in the interpreter.
        ratio = dots * scale / SOFT_CAP
        tanh = 1.0 - 2.0 / (tl.exp2(ratio * (2.0 * LOG2_E)) + 1.0)
        return tanh * (SOFT_CAP * LOG2_E)
    return dots * (scale * LOG2_E)


@triton.jit
def key_offsets(
    block_table, tokens, is_there, kv_head, block_stride, slot_stride, head_stride, BLOCK_SIZE: tl.constexpr
):
    """Where the cache holds one head of each token of a sequence, in elements, int64.

    A cache of more than 2 GiB has offsets beyond int32. `block_table` points at the sequence's row.
    """
    block = tl.load(block_table + tokens // BLOCK_SIZE, mask=is_there, other=0).to(tl.int64)
    return block * block_stride + (tokens % BLOCK_SIZE) * slot_stride + kv_head * head_stride


@triton.jit
def attend_tile(
    query, key_cache, value_cache, key_scale_cache, value_scale_cache,
    table, tokens, is_there, is_visible, kv_head, dims, is_dim,
    block_stride, slot_stride, head_stride, scale_block_stride, scale_slot_stride,
    highest, total, sums, scale,
    BLOCK_SIZE: tl.constexpr, IS_INT8: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take one tile of keys into the running softmax (Milakov and Gimelshein 2018).

    query [M, D]; tokens [N] of the sequence whose blocks `table` has; is_visible [M, N] or [1, N]; the state
    is highest [M], total [M], sums [M, D]. Scales of int8 go to the scores and the weights instead of the
    keys and values: int8 is exact in 16-bit floats, and there are fewer scores than values. Not those of
    values in float16: a weight of the softmax times a scale may be below its 6e-8.
    """
    at = key_offsets(table, tokens, is_there, kv_head, block_stride, slot_stride, head_stride, BLOCK_SIZE)
    at = at[:, None] + dims[None, :]
    is_value = is_there[:, None] & is_dim[None, :]
    keys = tl.load(key_cache + at, mask=is_value, other=0.0)
    values = tl.load(value_cache + at, mask=is_value, other=0.0)
    if IS_INT8:
        scale_at = key_offsets(
            table, tokens, is_there, kv_head, scale_block_stride, scale_slot_stride, 1, BLOCK_SIZE
        )
        key_scales = tl.load(key_scale_cache + scale_at, mask=is_there, other=0.0)
        value_scales = tl.load(value_scale_cache + scale_at, mask=is_there, other=0.0)
    dots = tl.dot(query, tl.trans(keys.to(query.dtype)), input_precision=PRECISION)
    if IS_INT8:
        dots = dots * key_scales[None, :]
    # Hidden keys are selected away, not added to: their slots may hold anything.
    scores = tl.where(is_visible, scaled(dots, scale, SOFT_CAP), LOWEST)
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.where(is_visible, tl.exp2(scores - new_highest[:, None]), 0.0)
    shrink = tl.exp2(highest - new_highest)
    total = total * shrink + tl.sum(weights, 1)
    scales_values: tl.constexpr = IS_INT8 and query.dtype == tl.float16
    if scales_values:
        values = values.to(tl.float32) * value_scales[:, None]
    elif IS_INT8:
        weights = weights * value_scales[None, :]
    share = tl.dot(weights.to(query.dtype), values.to(query.dtype), input_precision=PRECISION)
    return new_highest, total, sums * shrink[:, None] + share
