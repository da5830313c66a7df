"""What a site does at this moment and did lately, as answers of its API: figures, batches, requests."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over the times of its history; None where it was not sampled."""

    name: str
    labels: dict[str, str] = {}
    kind: str = "gauge"  # or "counter": cumulative
    values: tuple[float | None, ...] = ()


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` has one more than `bounds`, which are upper ones: observations beyond the last."""

    name: str
    labels: dict[str, str] = {}
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    total: float = 0.0  # of the values


class Histograms(msgspec.Struct, frozen=True, kw_only=True):
    """Of `window_s` seconds: at most as many as were asked for."""

    window_s: float
    histograms: tuple[Histogram, ...] = ()


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of a batch."""

    slot: int
    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    max_total_tokens: int = 0
    priority: int = 0
    num_blocks: int = 0


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """`blocks` holds slots, or -1 for a blank block, -2 for a cached one, -3 for one that is shared.

    Each stands for `blocks_per_cell` blocks of the pool.
    """

    max_num_seqs: int
    block_size: int
    num_blocks: int
    num_waiting: int = 0
    token_budget: int = 0
    lanes: tuple[Lane, ...] = ()
    blocks_per_cell: int = 1
    blocks: tuple[int, ...] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request and where it spent its time, in seconds; None where it is not so far."""

    id: str
    at: datetime | None = None
    model: str = ""
    route: str = ""
    who: str = ""
    instance: str = ""
    is_streamed: bool = False
    status: str = ""  # running, done, failed or cancelled
    reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prepare_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    total_s: float = 0.0
    adapter: str = ""  # of that model; empty: none


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of one web process; `times` are seconds since the epoch."""

    interval_s: int
    times: tuple[float, ...] = ()
    series: tuple[Series, ...] = ()
