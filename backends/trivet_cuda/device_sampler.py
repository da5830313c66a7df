"""`contract.Sampling` in torch on the device: what `engine/sampler.py` computes, waiting for nothing.

Which rows have a temperature, a filter or a mask the host knows, so only those pay for it. Sums over the
vocabulary are in float64, and the token is found in vocabulary order, as in the reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trivet.contract import NO_TARGET, Batch, Sampling, StepOutput
from trivet.engine.sampler import count_tokens, has_one_row_each
from trivet_cuda.upload import upload, views

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Results on their way to the host."""

    tokens: Tensor  # int32 [R] on the device
    refused: Tensor  # bool [R] on the device: the row's target was not taken
    host: Tensor  # int32, complete once the device has come here
    arrays: dict[str, NDArray[Any]]  # shapes and types of what is in `host`
    starts: dict[str, int]

    def output(self, batch: Batch, sampling: Sampling) -> StepOutput:
        """Of a step that the device has finished."""
        found = {
            name: part.numpy().copy() for name, part in views(self.host, self.arrays, self.starts).items()
        }
        refused = found["refused"] != 0
        return StepOutput(
            step=batch.step,
            token_ids=found["tokens"],
            num_tokens=count_tokens(sampling.draws, refused, batch.row_seqs, len(batch.slots)),
            is_finite=found["finite"] != 0,
            logprobs=found["logprobs"],
            ranks=found["ranks"],
            top_ids=found.get("top_ids"),
            top_logprobs=found.get("top_logprobs"),
            extra_logprobs=found.get("extra_logprobs"),
            pooled=None,
            device_time_s=0.0,
        )


def draw(pieces: Iterable[Tensor], sampling: Sampling, device: torch.device) -> Drawn:
    """Score and draw every row of logits that come piece after piece, [<= max_logits_rows, V] in float32."""
    columns = _columns(sampling, device)
    parts: list[Columns] = []
    first = 0
    for piece in pieces:
        rows = slice(first, first + len(piece))
        parts.append(_draw_piece(piece, rows, sampling, columns))
        first = rows.stop
    if not parts:
        parts.append(_nothing(sampling, device))
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return _on_its_way(joined)


def newest_tokens(newest: Tensor, drawn: Drawn, batch: Batch, sampling: Sampling) -> None:
    """Put the last drawn token that counts into `newest` [slots], int32 on the device, for each sequence."""
    drawing = np.flatnonzero(sampling.draws)
    if not drawing.size:
        return
    device = newest.device
    if has_one_row_each(batch.row_seqs):
        slots = batch.slots[batch.row_seqs[drawing]]
        at = upload({"rows": drawing.astype(np.int32), "slots": slots}, device)
        newest.index_copy_(0, at["slots"].long(), drawn.tokens.index_select(0, at["rows"]))
        return
    seqs, firsts = np.unique(batch.row_seqs[drawing], return_index=True)
    places = np.searchsorted(seqs, batch.row_seqs[drawing])
    arrays = {
        "rows": drawing.astype(np.int32),
        "places": places.astype(np.int32),
        "firsts": firsts.astype(np.int32),
        "slots": batch.slots[seqs],
    }
    at = upload(arrays, device)
    refused = drawn.refused.index_select(0, at["rows"]).long()
    before = refused.cumsum(0) - refused
    firsts_of = at["firsts"].index_select(0, at["places"]).long()
    counts = (before == before.index_select(0, firsts_of)).long()
    totals = torch.zeros(len(seqs), dtype=torch.int64, device=device).index_add_(0, at["places"], counts)
    last = at["rows"].index_select(0, at["firsts"].long() + totals - 1)
    newest.index_copy_(0, at["slots"].long(), drawn.tokens.index_select(0, last))


# ---- to the device and back ----------------------------------------------------------------------


def _columns(sampling: Sampling, device: torch.device) -> Columns:
    arrays: dict[str, NDArray[Any]] = {
        "targets": sampling.target_ids,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "uniform": sampling.uniform,
    }
    if sampling.extra_ids is not None:
        arrays["extra_ids"] = sampling.extra_ids
    if sampling.edit_start is not None and sampling.edit_ids is not None:
        assert sampling.edit_mul is not None
        assert sampling.edit_add is not None
        rows = np.repeat(np.arange(len(sampling.edit_start) - 1), np.diff(sampling.edit_start))
        arrays |= {"edit_rows": rows.astype(np.int32), "edit_ids": sampling.edit_ids}
        arrays |= {"edit_mul": sampling.edit_mul, "edit_add": sampling.edit_add}
    if sampling.mask_rows is not None and sampling.mask_bits is not None:
        arrays |= {"mask_rows": sampling.mask_rows, "mask_bits": sampling.mask_bits}
    return upload(arrays, device)


def _nothing(sampling: Sampling, device: torch.device) -> Columns:
    """Results of no rows."""
    whole, real = (torch.zeros(0, dtype=kind, device=device) for kind in (torch.int32, torch.float32))
    found = {"tokens": whole, "finite": whole, "refused": whole, "ranks": whole, "logprobs": real}
    if sampling.num_logprobs:
        found |= {"top_ids": whole.view(0, 1), "top_logprobs": real.view(0, 1)}
        found = {k: v.expand(0, sampling.num_logprobs) if v.dim() > 1 else v for k, v in found.items()}
    if sampling.extra_ids is not None:
        found["extra_logprobs"] = real.view(0, 1).expand(0, sampling.extra_ids.shape[1])
    return found


def _on_its_way(results: Columns) -> Drawn:
    """All results in one copy to the host."""
    arrays: dict[str, NDArray[Any]] = {}
    starts: dict[str, int] = {}
    flat, total = [], 0
    for name, tensor in results.items():
        bits = tensor.contiguous().view(torch.int32).view(-1)
        starts[name] = total
        total += bits.numel()
        flat.append(bits)
        kind = np.float32 if tensor.dtype == torch.float32 else np.int32
        arrays[name] = np.empty(tuple(tensor.shape), kind)
    buffer = torch.cat(flat)
    host = torch.empty(total, dtype=torch.int32, pin_memory=buffer.device.type == "cuda")
    host.copy_(buffer, non_blocking=True)
    return Drawn(results["tokens"], results["refused"] != 0, host, arrays, starts)


# ---- one piece -----------------------------------------------------------------------------------


def _draw_piece(logits: Tensor, rows: slice, sampling: Sampling, columns: Columns) -> Columns:
    """Rows `rows` of the step; the order of operations is that of `contract.Sampling`."""
    targets = columns["targets"][rows].long()
    finite = logits.isfinite().all(1)
    logits = torch.where(finite[:, None], logits, 0.0)
    edited = _edited(logits, rows, sampling, columns)
    tokens = edited.argmax(1)
    finite = finite & edited.gather(1, tokens[:, None])[:, 0].isfinite()
    hot = np.flatnonzero((sampling.temperature[rows] > 0) & sampling.draws[rows])
    if hot.size:
        at = upload({"hot": hot.astype(np.int32)}, logits.device)["hot"].long()
        chosen = _draw_hot(edited.index_select(0, at), at, finite, hot + rows.start, rows, sampling, columns)
        tokens = tokens.index_copy(0, at, chosen)
    tokens = torch.where(finite, tokens, 0)
    scored = torch.where(targets == NO_TARGET, tokens, targets)
    refused = ((targets != NO_TARGET) & (tokens != targets)) | ~finite
    found = {"tokens": tokens.int(), "finite": finite.int(), "refused": refused.int()}
    return found | _scores(logits, scored, finite, rows, sampling, columns)


def _scores(
    logits: Tensor, scored: Tensor, finite: Tensor, rows: slice, sampling: Sampling, columns: Columns
) -> Columns:
    """Raw logprobs and ranks: of one token a row, of the top ones, of the extra ones."""
    log_sum = logits.logsumexp(1, keepdim=True)
    chosen = logits.gather(1, scored[:, None])
    found = {
        "ranks": 1 + (logits > chosen).sum(1, dtype=torch.int32),
        "logprobs": torch.where(finite, (chosen - log_sum)[:, 0], torch.nan),
    }
    if sampling.num_logprobs:
        top = _most_likely(logits, sampling.num_logprobs)
        found |= {"top_ids": top.int(), "top_logprobs": logits.gather(1, top) - log_sum}
    if "extra_ids" in columns:
        found["extra_logprobs"] = logits.gather(1, columns["extra_ids"][rows].long()) - log_sum
    return found


def _most_likely(logits: Tensor, count: int) -> Tensor:
    """Ids [R, count] of the largest, largest first, the lower id among equals.

    topk promises no order among equals: each key holds the logit, in an order of whole numbers, and the id.
    """
    bits = (logits + 0.0).view(torch.int32)  # -0.0 becomes 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    last = logits.shape[1] - 1
    keys = (ordered << 32) | (last - torch.arange(last + 1, device=logits.device))
    return last - (keys.topk(count, 1).values & 0xFFFFFFFF)


def _edited(logits: Tensor, rows: slice, sampling: Sampling, columns: Columns) -> Tensor:
    """Sparse edits, then masks; a copy where there are any."""
    edited = logits
    if sampling.edit_start is not None and "edit_rows" in columns:
        part = slice(int(sampling.edit_start[rows.start]), int(sampling.edit_start[rows.stop]))
        if part.stop > part.start:
            at = (columns["edit_rows"][part].long() - rows.start, columns["edit_ids"][part].long())
            mul, add = columns["edit_mul"][part], columns["edit_add"][part]
            values = logits[at]
            edited = logits.index_put(at, torch.where(values > 0, values / mul, values * mul) + add)
    if sampling.mask_rows is not None and "mask_rows" in columns:
        first, stop = np.searchsorted(sampling.mask_rows, (rows.start, rows.stop))
        if stop > first:
            at_rows = columns["mask_rows"][first:stop].long() - rows.start
            bits = columns["mask_bits"][first:stop]
            places = torch.arange(32, dtype=torch.int32, device=logits.device)
            allowed = ((bits[:, :, None] >> places) & 1).flatten(1)[:, : logits.shape[1]] != 0
            masked = torch.where(allowed, edited.index_select(0, at_rows), -torch.inf)
            edited = edited.index_copy(0, at_rows, masked)
    return edited


def _draw_hot(
    edited: Tensor,
    at: Tensor,
    finite: Tensor,
    step_rows: NDArray[np.int64],
    rows: slice,
    sampling: Sampling,
    columns: Columns,
) -> Tensor:
    """Tokens [N] of the rows whose temperature is above 0.

    Args:
        edited: [N, V] of these rows.
        at: [N] their places in the piece; step_rows: in the step, on the host.
    """
    # A row that is not finite draws from equal logits; its token is replaced afterwards.
    edited = torch.where(finite.index_select(0, at)[:, None], edited, 0.0)
    relative = edited - edited.amax(1, keepdim=True)
    relative = relative / columns["temperature"][rows].index_select(0, at)[:, None]
    limits = sampling.top_k[step_rows], sampling.top_p[step_rows], sampling.min_p[step_rows]
    limited = np.flatnonzero((limits[0] > 0) | (limits[1] < 1) | (limits[2] > 0))
    if limited.size:
        which = upload({"limited": limited.astype(np.int32)}, edited.device)["limited"].long()
        places = at.index_select(0, which)
        values = relative.index_select(0, which)
        top_k, top_p, min_p = (
            columns[name][rows].index_select(0, places) for name in ("top_k", "top_p", "min_p")
        )
        floor = _floors(values, top_k, top_p, min_p)
        values = values.masked_fill(values < floor[:, None], -torch.inf)
        relative = relative.index_copy(0, which, values)
    weights = relative.double().exp()
    uniform = columns["uniform"][rows].index_select(0, at).double()
    if not (sampling.target_ids[step_rows] != NO_TARGET).any():
        return _first_beyond(weights, uniform[:, 0])
    targets = columns["targets"][rows].index_select(0, at).long()
    is_given = targets != NO_TARGET
    wanted = targets.clamp(min=0)[:, None]
    share = weights.gather(1, wanted)[:, 0] / weights.sum(1)
    # p without t, for the rows that refuse it.
    weights = weights.scatter(1, wanted, torch.where(is_given[:, None], 0.0, weights.gather(1, wanted)))
    is_taken = is_given & (uniform[:, 1] < share)
    return torch.where(is_taken, targets, _first_beyond(weights, uniform[:, 0]))


def _floors(relative: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The lowest tempered logit [N] that top_k, top_p and min_p, in this order, leave; equals stay together.

    Args:
        relative: [N, V] edited logits over the temperature, less their maximum.
    """
    size = relative.shape[1]
    values = relative.sort(1, descending=True).values
    count = torch.where((top_k > 0) & (top_k < size), top_k, size).long()
    k_floor = values.gather(1, count[:, None] - 1)
    kept = torch.where(values >= k_floor, values, -torch.inf)
    mass = kept.double().exp().cumsum(1)
    needed = top_p.double()[:, None] * mass[:, -1:]
    last = (mass < needed).sum(1, keepdim=True).clamp(max=size - 1)
    p_floor = torch.where(top_p[:, None] < 1, kept.gather(1, last), -torch.inf)
    floor = torch.maximum(torch.where(count[:, None] < size, k_floor, -torch.inf), p_floor)[:, 0]
    return torch.maximum(floor, min_p.double().log().float())


def _first_beyond(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first token [N], in vocabulary order, whose cumulative probability exceeds uniform [N]."""
    ends = weights.cumsum(1)
    is_beyond = (ends > uniform[:, None] * ends[:, -1:]) & (weights > 0)
    return is_beyond.int().argmax(1)
