"""What crosses a process border, as msgspec structs in MessagePack; never pickle.

Structs are arrays on the wire (`array_like`): half the bytes and a third of the time of maps. New fields
stand last and have a default: engines outlive the processes that talk to them, so one may be older.

Sockets of an instance: `ipc://` in the 0700 run directory on one host (`config.engine_address`), `tcp://`
with CURVE keys between hosts (`endpoints.py`). Times are of the sender's CLOCK_MONOTONIC. Clocks of two hosts
have nothing to do with each other: between them `sent_s` says what it showed, and the receiver shifts them.

    engine-UID.sock   ROUTER, bound by the engine's loop thread. A web worker's DEALER sends `Submit`
                      and `Abort` and gets one `StepReport` per step that concerns it.
    engine-UID.beat   PUB, bound by the engine's heart-beat thread: a `Beat` each `BEAT_INTERVAL_S`
                      and at each change of phase. Supervisor and web workers subscribe.
    engine-UID.ctl    ROUTER, bound by the same thread: the supervisor's DEALER sends `Drain`,
                      `Stop` or `Watch`. It works while the loop thread loads a model.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from trivet.pooling_params import PoolingParams
from trivet.sampling_params import SamplingParams

BEAT_INTERVAL_S = 0.5
RESIDENT = "resident"  # in `Beat.memory`: bytes of the whole process in memory, without pages of files
STALL_SILENCE_S = 2.0  # without a beat for so long it is stalled: new requests go elsewhere
SILENCE_LIMIT_S = 5.0  # without a beat for so long, past any announced step deadline: it is lost


# ---- web worker → engine -------------------------------------------------------------------------


class Submit(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Start one sequence. `request_id` is unique per web worker connection."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0  # lower runs first
    cache_salt: str = ""
    group: str = ""  # of the completions of one prompt: they share its KV whatever the settings are
    pooling: PoolingParams | None = None  # embed the prompt and draw nothing
    key: str = ""  # whose request: keys share an engine fairly
    key_class: int = 0  # the most urgent priority that the key may have
    deadline_s: float | None = None  # of the sender's clock
    index: int = 0  # in the group: the first one's prompt is counted, and scored
    sent_s: float | None = None  # of the same clock; None: both sides are on one host
    adapter: str = ""  # one of the engine's (`Beat.adapters`); empty: the base model

    def deadline_on(self, now: float) -> float | None:
        """The deadline on the receiver's clock; between hosts its time on the way comes on top."""
        if self.deadline_s is None or self.sent_s is None:
            return self.deadline_s
        return now + self.deadline_s - self.sent_s


class Abort(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """The client has gone; no answer follows."""

    request_id: str


class ResetPrefixCache(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Forget every prefix; answered by one piece, whose `cached_tokens` says how many tokens were known."""

    request_id: str


class Look(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Say what is in the batch; answered by one piece, whose text is a `BatchView` as JSON."""

    request_id: str


EngineRequest: TypeAlias = Submit | Abort | ResetPrefixCache | Look


# ---- engine → web worker -------------------------------------------------------------------------


class FinishReason(StrEnum):
    """OpenAI's words, and `error` for a sequence that failed."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Raw model logprobs of one drawn token."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]  # most likely first


class Failure(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """An error in transit; `code` and `status` are of `errors.py`."""

    message: str
    code: str
    status: int
    retry_after_s: int | None = None
    param: str | None = None  # the field of the request that is at fault


class Piece(msgspec.Struct, array_like=True, frozen=True, tag=True, gc=False):
    """What one step added to one sequence. The last piece carries `finish_reason`."""

    request_id: str
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or token that ended it, or "deadline"
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    completion_tokens: int = 0  # so far
    logprobs: list[TokenLogprob] | None = None
    failure: Failure | None = None
    prompt_logprobs: list[TokenLogprob] | None = None  # of the prompt's 2nd token on; in the first piece
    embedding: bytes | None = None  # little-endian float32; in the last piece of one that is embedded
    queue_s: float | None = None  # from its arrival in the engine to its first step; in the first piece


class EngineLoad(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """How busy an engine is; cumulative counts start with the process."""

    num_running: int = 0
    num_waiting: int = 0
    num_tokens_outstanding: int = 0  # prompt and completion tokens still to be computed
    kv_usage: float = 0.0  # share of blocks held by sequences, 0 to 1
    num_steps: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    num_finished: dict[str, int] = {}  # by finish reason
    num_swaps: int = 0  # preemptions whose KV was copied to the host
    num_swapped: int = 0  # waiting sequences whose KV is there now
    swap_usage: float = 0.0  # share of the host blocks in use, 0 to 1
    num_refused: int = 0  # because the queue was full
    num_deadlines_passed: int = 0


class StepReport(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """One message per web worker and step."""

    pieces: list[Piece]
    load: EngineLoad


# ---- engine → everyone ---------------------------------------------------------------------------


class Phase(StrEnum):
    """The engine's own part of an instance's state; READY means that it has generated a token."""

    STARTING = "starting"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"


class Beat(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A sign of life. Times are seconds of the engine's clock."""

    instance_id: str
    lease: str
    pid: int
    sequence: int  # counts beats
    phase: Phase
    reason: str = ""  # of FAILED, or what it is doing now
    progress_done: int = 0  # bytes loaded
    progress_total: int = 0
    step_started_s: float | None = None  # None: idle
    step_deadline_s: float | None = None  # silence before this ends nothing
    load: EngineLoad = EngineLoad()
    memory: list[tuple[str, int]] = []  # measured, by the plan's names, and RESIDENT
    notices: list[str] = []  # what an operator should know of an engine that works (GivesNotices)
    step_due_s: float | None = None  # a step that runs on past this has stalled, judged by those before it
    sent_s: float | None = None  # of the same clock; None: both sides are on one host
    adapters: tuple[str, ...] = ()  # names of those that are loaded, from READY on

    def on_clock(self, now: float) -> Beat:
        """The same with its times on the receiver's clock."""
        if self.sent_s is None or self.step_started_s is None:
            return self
        shift_s = now - self.sent_s
        return msgspec.structs.replace(
            self,
            step_started_s=self.step_started_s + shift_s,
            step_deadline_s=None if self.step_deadline_s is None else self.step_deadline_s + shift_s,
            step_due_s=None if self.step_due_s is None else self.step_due_s + shift_s,
            sent_s=now,
        )


# ---- supervisor → engine -------------------------------------------------------------------------


class Drain(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """Take no new requests, finish the running ones, abort what is left at the deadline, then exit 0."""

    lease: str
    timeout_s: float


class Stop(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """End now: running sequences end with an error piece."""

    lease: str


class Watch(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A living supervisor says so once a second; feeds the engine's `orphan_timeout_s`."""

    lease: str


ControlRequest: TypeAlias = Drain | Stop | Watch


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """All an engine process needs to know; its launcher puts it into a file of mode 0600 on its host."""

    instance_id: str
    lease: str  # only processes that carry it are ever signalled
    model_path: str
    served_model_name: str
    backend: str
    device_uids: list[str]  # as that host names them
    settings: dict[str, str]  # engine settings (engine_settings.EngineSettings) as text
    run_dir: str  # on the engine's host: its order, and what it binds or announces
    notices: list[str] = []  # what its operator should know of the plan, beside the runner's own
    peaks_dir: str = ""  # where starts keep what their steps took (`engine.measured_peaks`); empty: nowhere
    orphan_timeout_s: float | None = None
    version: str = ""  # of the supervisor's Trivet: an engine of another refuses; empty: started by hand
    listen: str = ""  # the address of its host on which it listens over tcp; empty: `ipc://` in `run_dir`
    client_key: str = ""  # over tcp: the public key of who may connect
