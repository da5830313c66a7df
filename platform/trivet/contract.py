"""What a kind of hardware offers so that Trivet's engine can run a model on it.

Two halves. `Backend` answers questions and imports neither torch nor a vendor library: the supervisor
calls it. `Runner` owns the device inside the engine process. This module imports the standard library
only; arrays are NumPy on the host, C-contiguous. Members marked [extension] are reserved: no runner
needs them today.

Letters in shapes: S sequences, T tokens, R logits rows, G KV groups, K top tokens, V vocabulary
(`ModelSpec.num_tokens`: rows with which a head is padded beyond exist inside the runner only).

The rules that every runner keeps, each checked by the contract suite (`trivet.contract_suite`):

 1. In order. Block copies, forward and sample take effect in the order in which they were called. A freed
    block may therefore be given away at once: its next owner stands behind in the queue.
 2. In every layer all KV writes of a batch come before all its attention reads: the tokens of a chunk
    see each other, and a prompt submitted in step n may be shared from step n + 1 on.
 3. Block 0 is scratch: no sequence owns it and padding may write it. KV slots at or past `seq_lens` are
    undefined and may hold NaN, so kernels select; they never multiply by zero.
 4. Rows are independent. NaN or Inf in one sequence shows in `StepOutput.is_finite` of its own rows only.
 5. Randomness comes in (`Sampling.uniform`). No runner owns a generator: a row's token depends on its
    logits and its columns, not on its place in the batch and not on a retry.
 6. The core leaves the arrays of a step unchanged until `collect` of that step has returned.
 7. `Batch` and `Sampling` hold arrays and plain values only, so that they reach the ranks of a tensor-
    parallel runner as one buffer. Ranks are the runner's affair; rank 0 answers.
 8. After `warm_up` a step allocates no device memory that the plan does not hold.
 9. `OutOfMemory` from `collect(n)`: nothing of step n or later counts, the KV of earlier steps is intact,
    the runner is idle and usable. `DeviceLost` is final: the process ends and the supervisor says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivet.models.spec import ModelSpec
    from trivet.weights.index import WeightIndex

    Int32 = NDArray[np.int32]
    UInt32 = NDArray[np.uint32]
    Float32 = NDArray[np.float32]
    Bool = NDArray[np.bool_]

ON_DEVICE = -1  # in Batch.token_ids: the newest token sampled for this slot, which the host has not seen
NO_TARGET = -1  # in Sampling.target_ids: this row scores no given token


class Feature(StrEnum):
    """Abilities a runner may lack. The core refuses a request (400) that needs one which is missing."""

    LORA = "lora"
    POOLING = "pooling"
    HOST_KV = "host_kv"
    KV_TRANSFER = "kv_transfer"  # [extension]
    INPUT_EMBEDS = "input_embeds"  # [extension]


# ---- devices, layout, memory: torch-free ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device as a probe saw it. An unusable one carries the reason."""

    kind: str  # the backend's name
    index: int  # what `launch_env` understands (Ascend: the logical id)
    uid: str  # stable over reboots: GPU UUID, PCI address, "host" for the CPU
    name: str
    arch: str  # "sm_90", "910B", "x86-64 avx512_vnni avx512_bf16"
    total_bytes: int  # within cgroup or MIG limits
    free_bytes: int  # when it was probed
    dtypes: frozenset[str]
    versions: tuple[tuple[str, str], ...] = ()  # driver, firmware, toolkit
    unusable_because: str | None = None
    host: str = ""  # as the launcher names it, and then the uid begins with it; a probe leaves it empty
    is_host_memory: bool = False  # its memory is the host's, in which engines of other devices are, too


class KVKind(StrEnum):
    """What a KV group stores for a token."""

    FULL = "full"
    WINDOW = "window"  # masked only; [extension] blocks behind the window are given back
    LATENT = "latent"  # one shared row a token
    STATE = "state"  # [extension] one slot a sequence


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table. The core knows nothing more about KV than this."""

    kind: KVKind
    layers: tuple[int, ...]
    dtype: str  # "bf16", "f32", "int8", "fp8_e4m3"
    token_bytes: int  # all its layers: K + V + scales + padding of the layout, on one rank
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """The paged KV cache of a model on a backend."""

    block_size: int  # tokens; the backend's choice (CPU 16, Ascend 128); the core assumes none
    groups: tuple[KVGroup, ...]

    @property
    def block_bytes(self) -> int:
        return self.block_size * sum(group.token_bytes for group in self.groups)


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """A named share of a device's memory.

    Names: "weights", "adapters", "kv", "activations", "logits", "graphs", "collectives", "context",
    "host_kv".
    """

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A decision, not a forecast: the runner allocates exactly this or refuses to start."""

    kv: KVCacheSpec
    num_blocks: tuple[int, ...]  # [G], block 0 included
    num_host_blocks: int  # Feature.HOST_KV: blocks 0 to num_host_blocks - 1 in host memory
    parts: tuple[MemoryPart, ...]  # of one rank; the supervisor's ledger reserves their sum
    max_num_batched_tokens: int  # resolved: the backend's default keeps a step short
    max_model_len: int  # resolved from the model and the config
    host_bytes: int = 0  # of the host, by all ranks: beside a device that has memory of its own

    @property
    def total_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Peaks:
    """What steps of this size took at most at an earlier start, measured by its runner, of one rank."""

    max_num_batched_tokens: int
    max_model_len: int  # of that start: longer sequences may take more
    parts: tuple[MemoryPart, ...]


@dataclass(frozen=True, slots=True)
class AdapterSlots:
    """Room for adapters (LoRA) of any weights: slots 1 to `num_slots`; slot 0 is the base model."""

    num_slots: int = 0
    max_rank: int = 0
    parts: tuple[str, ...] = ()  # matrices of each layer that may be adapted: "q", "k", "v", "o", "gate" ...


NO_ADAPTERS = AdapterSlots()


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """What an operator may choose about a runner. None leaves the choice to the backend."""

    dtype: str = "auto"  # "auto" | "bf16" | "f16" | "f32"
    kv_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    max_logits_rows: int = 256  # logits workspace; a batch with more rows is done in pieces
    memory_fraction: float | None = None  # share of the device's memory for this instance
    num_blocks: int | None = None  # overrides the plan's number of KV blocks, block 0 included
    block_size: int | None = None
    swap_bytes: int = 0  # host memory for KV that is swapped out; without Feature.HOST_KV no effect
    tensor_parallel: int = 1
    adapters: AdapterSlots = NO_ADAPTERS
    options: Mapping[str, str] = field(default_factory=dict)  # the backend's own, checked by `check`
    peaks: tuple[
        Peaks, ...
    ] = ()  # of the same choices on such a device; a plan counts with them where it can


class Backend(Protocol):
    """The torch-free half of a kind of hardware."""

    name: str

    def probe(self, timeout_s: float) -> list[DeviceInfo]:
        """All devices, unusable ones with the reason. Never raises."""

    def launch_env(self, devices: Sequence[DeviceInfo]) -> dict[str, str]:
        """Environment of the engine process, set before any import: visible devices, threads."""

    def check(self, spec: ModelSpec, weights: WeightIndex, config: RunnerConfig, device: DeviceInfo) -> None:
        """Raises: Unsupported, naming the model's part or the setting."""

    def plan(
        self,
        spec: ModelSpec,
        weights: WeightIndex,
        config: RunnerConfig,
        devices: Sequence[DeviceInfo],
    ) -> MemoryPlan:
        """Pure in its arguments. Raises: DoesNotFit."""

    def create_runner(
        self,
        spec: ModelSpec,
        config: RunnerConfig,
        plan: MemoryPlan,
        devices: Sequence[DeviceInfo],
    ) -> Runner:
        """The one call that may import torch or a vendor library."""


# ---- one step ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Carried out before the batch's forward, one after the other: copy-on-write, swap in, swap out.

    Within one all sources are read before a target is written. Of `from_host` and `to_host` at most one
    is true, and only for a runner that declares HOST_KV; ids of that side are host blocks.
    """

    group: int
    from_host: bool
    to_host: bool
    pairs: Int32  # [n, 2] block ids: source, target


class PoolKind(IntEnum):
    """What `StepOutput.pooled` holds for a sequence."""

    NONE = 0  # undefined
    LAST = 1  # the step's last token
    SUM = 2  # over the step's tokens; the core adds chunks and divides


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes. Sequences are sorted by query length, decodes first. S may be 0.

    The KV slot of position p of a sequence is block_table[p // block_size], offset p % block_size.
    """

    step: int  # 1, 2, 3 ...
    slots: Int32  # [S] a sequence's home, 0 <= slot < max_num_seqs, constant while it runs
    query_start_loc: Int32  # [S + 1] cumulative query lengths, starting with 0
    seq_lens: Int32  # [S] tokens in KV after this step; exact, never a guess
    block_tables: tuple[Int32, ...]  # G x [S, widest here], padded with 0
    token_ids: Int32  # [T], or ON_DEVICE
    positions: Int32  # [T]
    logits_rows: Int32  # [R] ascending token indices whose next-token logits are wanted
    row_seqs: Int32  # [R] index of the row's sequence
    copies: tuple[BlockCopy, ...] = ()
    adapters: Int32 | None = None  # [S] adapter slot, 0 = base model
    pooling: Int32 | None = None  # [S] PoolKind
    embeds: Any = None  # [extension]


@dataclass(frozen=True, slots=True)
class Sampling:
    """What to do with the R rows.

    Built after the tokens of the previous step are known, so masks and penalties are exact although the
    forward pass already runs. Order of operations on a row of logits l:

        raw logprobs = log_softmax(l); then edits: l = l / mul where l > 0 else l * mul, then + add;
        then the mask (0 bits become -inf); then temperature; then top_k, top_p, min_p over the
        distribution that is left, in this order, each renormalised; equal logits stay or go together.

    The token is the first in vocabulary order whose cumulative probability exceeds uniform[row, 0];
    temperature 0 takes the largest edited and masked logit, the lowest id among equals.

    A sequence with k draft tokens has k + 1 drawing rows. A row with target t accepts t if uniform[row, 1]
    < p(t), else it draws from p without t and the sequence's step ends there; at temperature 0 it accepts
    where t is the argmax. That is exact for any proposal that is a fixed token (Leviathan et al. 2023,
    with a one-point proposal), so no draft probabilities are needed.
    """

    draws: Bool  # [R] false: score only (prompt logprobs, echo, agreement check)
    target_ids: Int32  # [R] a given token or a draft token, or NO_TARGET
    temperature: Float32  # [R] 0 = greedy
    top_k: Int32  # [R] 0 = all
    top_p: Float32  # [R] 1 = all
    min_p: Float32  # [R] 0 = none
    uniform: Float32  # [R, 2] in [0, 1): a function of (seed, position), made by the core
    num_logprobs: int = 0  # K, the largest wanted in this step
    extra_ids: Int32 | None = None  # [R, n] tokens whose raw logprobs are wanted
    edit_start: Int32 | None = None  # [R + 1] sparse edits: penalties, logit_bias, min_tokens, bad_words
    edit_ids: Int32 | None = None  # [N] distinct within a row
    edit_mul: Float32 | None = None  # [N] 1 = none
    edit_add: Float32 | None = None  # [N] -inf forbids
    mask_rows: Int32 | None = None  # [M] ascending row indices
    mask_bits: UInt32 | None = None  # [M, ceil(V / 32)] bit i % 32 of word i // 32 set = allowed


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Host arrays, owned by the caller. Logits never leave the runner.

    A row that is not finite draws token 0 and counts as one token; the core fails its sequence.
    """

    step: int
    token_ids: Int32  # [R] drawn tokens; undefined where nothing was drawn
    num_tokens: Int32  # [S] how many of a sequence's drawing rows count, from its first
    is_finite: Bool  # [R]
    logprobs: Float32  # [R] raw; of target_ids where given, else of token_ids
    ranks: Int32  # [R] of that token, 1 = most likely
    top_ids: Int32 | None  # [R, K] most likely first
    top_logprobs: Float32 | None  # [R, K]
    extra_logprobs: Float32 | None  # [R, n]
    pooled: Float32 | None  # [S, hidden_size] after the final norm; not finite where the sequence is not
    device_time_s: float


class Runner(Protocol):
    """One model on its devices. One thread calls it; every call releases the GIL while it waits."""

    features: frozenset[Feature]
    max_in_flight: int  # steps between forward and collect: 2 where one computes while the host prepares

    def load(self, weights: WeightIndex, on_progress: Callable[[int, int], None]) -> None:
        """Read the weights; `on_progress` gets bytes done and bytes in all.

        Raises: BackendError; WeightsError naming file and tensor.
        """

    def allocate_kv(self) -> None:
        """Allocate as planned and touch every page, so that lack of memory shows here.

        Raises: DoesNotFit with both numbers.
        """

    def warm_up(self) -> None:
        """Build, capture, self-test; no step compiles afterwards."""

    def host_buffer(self, num_int32: int) -> Int32:
        """Pinned where that helps; the core carves a step's arrays from one, so they travel in one copy."""

    def forward(self, batch: Batch) -> None:
        """Enqueue; may return before the device has begun. Keeps the final hidden states of the rows."""

    def sample(self, step: int, sampling: Sampling) -> None:
        """Enqueue behind forward(step): head, sampler, newest token of each slot. Once a step."""

    def collect(self, step: int) -> StepOutput:
        """Wait for sample(step). Raises: OutOfMemory, DeviceLost."""

    def memory(self) -> tuple[MemoryPart, ...]:
        """Measured, by the plan's names: what is held, and of what comes and goes the most since the start.

        Weights and KV are as planned; nothing is more. What cannot be measured is told as planned.
        """

    def load_adapter(self, slot: int, weights: WeightIndex) -> None:
        """Feature.LORA: rows of this slot get W x + B (A x) for W x from the next step on (Hu et al. 2021).

        `weights` holds `layers.{i}.{part}.lora_a` [rank, in] and `.lora_b` [out, rank], which carries the
        scale. No step that uses the slot is in flight. After `load`, also while others serve.

        Raises: Unsupported where the plan has no room for it; WeightsError for values that are not finite:
        the slot is empty then.
        """

    def unload_adapter(self, slot: int) -> None:
        """Feature.LORA: rows of this slot are the base model's again. Idempotent."""

    def close(self) -> None:
        """Idempotent; device memory is back when it returns."""
