"""A model of random weights through the whole runner, for `trivet selftest cuda`: no file, no tokenizer.

Each step of decodes that was captured is compared with the same step run eagerly, and tokens a second are
told at a few batch sizes: greedy, with two steps in flight, as the engine runs them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trivet.contract import NO_TARGET, ON_DEVICE, Batch, MemoryPart, MemoryPlan, Sampling
from trivet.errors import BackendError
from trivet.models.decoder import Decoder
from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.runners.collectives import Alone
from trivet.runners.op_check import largest_error
from trivet.runners.sharded_weights import Linear, Packer, Plain, Vector
from trivet.runners.slices import Rank, Span
from trivet.self_test import OpOutcome
from trivet_cuda.device import Device
from trivet_cuda.failures import compiler_errors
from trivet_cuda.memory_plan import Shape, activation_bytes, kv_cache_spec, logits_bytes
from trivet_cuda.op_cases import TOLERANCES
from trivet_cuda.op_table import OpTable
from trivet_cuda.options import CudaOptions
from trivet_cuda.runner import CudaRunner
from trivet_cuda.step_view import StepView

DTYPE = torch.bfloat16
# The sizes of Llama 3.2 1B: 1.24e9 parameters, 2.5 GB in bfloat16.
ATTENTION_1B = Attention(32, 8, 64, 64**-0.5, Rope(64, theta=500_000.0))
SPEC_1B = ModelSpec(
    "random 1B", 128256, 128256, 2048, 8192, (Layer(ATTENTION_1B, MLP(8192)),), (0,) * 16, Norm(), True
)


@dataclass(frozen=True, slots=True)
class Runs:
    """How much is run: 8 GB of a card, and judged, since none was at hand, a minute of a large one."""

    spec: ModelSpec = SPEC_1B
    num_seqs: tuple[int, ...] = (1, 32, 256)  # of which tokens a second are told
    num_tokens: int = 512  # of each sequence in KV before it begins
    num_steps: int = 50
    block_size: int = 16
    max_num_batched_tokens: int = 512

    @property
    def shape(self) -> Shape:
        return Shape(
            dtype="bf16",
            kv_dtype="bf16",
            options=CudaOptions(graphs="on", self_test="off"),
            block_size=self.block_size,
            max_model_len=self.num_tokens + self.num_steps + 2,  # one run to warm up
            max_num_seqs=max(self.num_seqs),
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_logits_rows=256,
            num_ranks=1,
        )

    @property
    def plan(self) -> MemoryPlan:
        """As `planner` makes it, of what this run takes."""
        shape, spec = self.shape, self.spec
        kv = kv_cache_spec(spec, shape)
        num_blocks = 1 + shape.max_num_seqs * shape.blocks_per_sequence
        parts = (
            MemoryPart("kv", num_blocks * kv.block_bytes),
            MemoryPart("activations", activation_bytes(spec, shape, shape.max_num_batched_tokens)),
            MemoryPart("logits", logits_bytes(spec, shape)),
        )
        return MemoryPlan(kv, (num_blocks,), 0, parts, shape.max_num_batched_tokens, shape.max_model_len)


class RandomRunner(CudaRunner):
    """Takes no weights from files."""

    def load_random(self) -> None:
        """Normal weights, over the root of a row's length; norms of one. Raises: torch.OutOfMemoryError."""
        torch.manual_seed(0)
        device = self._device.torch_device
        self.ops.packer = _RandomPacker(device)
        self._decoder = Decoder(self._local, self.ops)
        with torch.inference_mode():
            self._decoder.load(_Shapes(self._local))

    def fill_kv(self) -> None:
        """Other keys and values in each place, so that a wrong place gives a wrong result."""
        assert self._kv is not None
        for layer in self._kv.layers:
            layer.keys.normal_()
            layer.values.normal_()

    def captured_sizes(self) -> tuple[int, ...]:
        return () if self._graphs is None else self._graphs.buckets

    def captured_and_eager(self, batch: Batch, bucket: int) -> tuple[Tensor, Tensor]:
        """The step's hidden states [S, hidden_size], replayed and run; both write the same to KV."""
        assert self._graphs is not None
        captured = self._graphs.run(batch)
        assert captured is not None
        with torch.inference_mode():
            view = StepView.of(batch, self._plan.kv.block_size, bucket, self._device.torch_device)
            return captured.clone(), self._forward(view, None)


class _Shapes:
    """`decoder.TensorSource` of tensors without values."""

    def __init__(self, spec: ModelSpec) -> None:
        self._tensors = {name: torch.empty(shape, device="meta") for name, shape in expected_tensors(spec)}

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]


class _RandomPacker(Packer):
    """Makes up the values of one rank."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(DTYPE, device, Rank(), Alone(), _no_file, shares_embedding=True)
        self._table: tuple[Tensor, Linear] | None = None

    def pack(self, name: str, parts: Sequence[Any], shard: str, bias: Tensor | None) -> Any:
        """As `Packer.pack`, of tensors without values; the models of this module have no biases."""
        assert bias is None
        if parts[0].ndim == 1:
            return Vector(torch.ones(parts[0].shape, device=self.device), None)
        if name == "head" and self._table is not None and self._table[0] is parts[0]:
            return self._table[1]
        rows, columns = sum(part.shape[0] for part in parts), parts[0].shape[1]
        values = torch.randn((rows, columns), dtype=DTYPE, device=self.device).mul_(columns**-0.5)
        linear = Linear(Plain(values), None, shard, Span(0, rows), rows, Alone())
        if name == "embed":
            self._table = (parts[0], linear)
        return linear


def _no_file(part: object) -> Plain:
    raise BackendError(f"{part} of a random model is in no file")


def run_random_model(
    table: OpTable,
    device: Device,
    runs: Runs = Runs(),
) -> Iterator[OpOutcome]:
    """Graphs against eager in every bucket, then tokens a second. Where it does not fit, it has failed."""
    errors: tuple[type[Exception], ...] = (BackendError, RuntimeError, *compiler_errors())
    runner = RandomRunner(runs.spec, runs.plan, runs.shape, device, table)
    try:
        runner.load_random()
        runner.allocate_kv()
        runner.fill_kv()
        runner.warm_up()
        yield from _graphs_against_eager(runner, runs)
        for count in runs.num_seqs:
            yield _tokens_per_s(runner, runs, count)
    except errors as error:
        yield _outcome(f"{runs.spec.architecture} model", failure=f"not run to its end: {error}")
    finally:
        runner.close()


def _outcome(
    case: str, error: float = 0.0, allowed: float = 0.0, failure: str = "", **measured: float
) -> OpOutcome:
    return OpOutcome(("decoder",), case, "bfloat16", error, allowed, failure, measured)


def _graphs_against_eager(runner: RandomRunner, runs: Runs) -> Iterator[OpOutcome]:
    """With a row of padding where the bucket has room for one. A bucket that was not captured has failed."""
    captured, smaller = runner.captured_sizes(), 0
    for bucket in runs.shape.buckets:
        count = max(smaller + 1, bucket - 1)
        smaller = bucket
        case = f"a graph of {bucket} sequences against eager, {count} of them real"
        if bucket not in captured:
            yield _outcome(case, failure="it could not be captured; the log tells why")
            continue
        replayed, eager = runner.captured_and_eager(_decodes(runs, count, 0), bucket)
        yield _outcome(case, largest_error(replayed, eager), TOLERANCES[DTYPE])


def _decodes(runs: Runs, count: int, step: int) -> Batch:
    """Step 0, 1 ... of `count` sequences, each in blocks of its own."""
    every, columns = np.arange(count, dtype=np.int32), runs.shape.blocks_per_sequence
    position = runs.num_tokens + step
    first = every * 7 % runs.spec.num_tokens
    return Batch(
        step=step,
        slots=every,
        query_start_loc=np.arange(count + 1, dtype=np.int32),
        seq_lens=np.full(count, position + 1, np.int32),
        block_tables=(1 + np.arange(count * columns, dtype=np.int32).reshape(count, columns),),
        token_ids=first.astype(np.int32) if step == 0 else np.full(count, ON_DEVICE, np.int32),
        positions=np.full(count, position, np.int32),
        logits_rows=every,
        row_seqs=every,
    )


def _greedy(count: int) -> Sampling:
    zeros, ones = np.zeros(count, np.float32), np.ones(count, np.float32)
    return Sampling(
        draws=np.ones(count, np.bool_),
        target_ids=np.full(count, NO_TARGET, np.int32),
        temperature=zeros,
        top_k=np.zeros(count, np.int32),
        top_p=ones,
        min_p=zeros,
        uniform=np.zeros((count, 2), np.float32),
    )


def _tokens_per_s(runner: RandomRunner, runs: Runs, count: int) -> OpOutcome:
    sampling = _greedy(count)
    began_s = 0.0
    for step in range(runs.num_steps + 1):
        runner.forward(_decodes(runs, count, step))
        runner.sample(step, sampling)
        if step > 0:
            runner.collect(step - 1)
        if step == 1:  # the first step warms up
            began_s = time.perf_counter()
    runner.collect(runs.num_steps)
    taken_s = max(time.perf_counter() - began_s, 1e-9)
    speed = count * runs.num_steps / taken_s
    case = f"speed, {count} sequences of {runs.num_tokens} tokens ({runs.spec.architecture})"
    return _outcome(case, tokens_per_s=speed)
