"""What of a ModelSpec no model of the contract suite has: the native step against torch's, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trivet.contract import RunnerConfig
from trivet.contract_suite.driver import Driver, scoring_work
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.steps import DrivenSequence, Work
from trivet.models.expected_tensors import expected_tensors
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.weights.index import TensorInfo, WeightIndex
from trivet_cpu.backend import CpuBackend
from trivet_cpu.core_shares import CoreShare

PLAIN = Attention(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, rope=Rope(16))
SILU = MLP(80)
SPEC = ModelSpec(
    architecture="Made up",
    vocab_size=150,
    num_tokens=150,
    hidden_size=48,
    max_position=512,
    kinds=(Layer(PLAIN, SILU),),
    layers=(0, 0),
    norm=Norm("rms", 1e-5),
)


def _with(attention: Attention = PLAIN, mlp: MLP = SILU) -> ModelSpec:
    return replace(SPEC, kinds=(Layer(attention, mlp),))


SPECS = {
    "plain": SPEC,
    "scales": replace(SPEC, embed_scale=1.7, residual_scale=0.6, logits_scale=0.4),
    "every bias": replace(
        _with(replace(PLAIN, qkv_bias=True, out_bias=True), MLP(80, bias=True)), head_bias=True
    ),
    "not gated": _with(mlp=MLP(80, "gelu", gated=False, bias=True)),
    "gelu_tanh": _with(mlp=MLP(80, "gelu_tanh")),
    "relu": _with(mlp=MLP(80, "relu")),
    "norms add one": replace(
        _with(replace(PLAIN, qk_norm=Norm("rms", 1e-3, add_one=True))), norm=Norm("rms", 1e-5, add_one=True)
    ),
    "part of a head is turned": _with(replace(PLAIN, rope=Rope(8, theta=500.0))),
    "no positions": _with(replace(PLAIN, rope=None)),
    "five queries a key": _with(Attention(10, 2, 16, 0.3, Rope(16))),
    "as wide as with a billion weights": replace(
        SPEC, hidden_size=2048, kinds=(Layer(Attention(32, 8, 64, 0.125, Rope(64)), MLP(8192)),), layers=(0,)
    ),
    "layers of two kinds": replace(
        SPEC,
        kinds=(Layer(PLAIN, MLP(80)), Layer(Attention(3, 3, 32, 0.2, Rope(32, 1e6), window=5), MLP(33))),
        layers=(0, 1, 0),
    ),
}


def _weights(spec: ModelSpec, folder: Path) -> WeightIndex:
    """Random and large enough for every part to show in the logits."""
    generator = np.random.default_rng(7)
    infos, offset, file = [], 0, folder / "weights"
    with open(file, "wb") as out:
        for name, shape in expected_tensors(spec):
            values = generator.normal(size=shape) * (1.5 / shape[-1] ** 0.5 if len(shape) > 1 else 0.3)
            if "norm" in name and not spec.norm.add_one:
                values += 1
            out.write(values.astype(np.float32).tobytes())
            infos.append(TensorInfo(name, tuple(shape), "f32", str(file), offset, 4 * values.size))
            offset += 4 * values.size
    return WeightIndex(tuple(infos))


@contextmanager
def _driver(spec: ModelSpec, weights: WeightIndex, kernels: str, num_threads: int) -> Iterator[Driver]:
    backend = CpuBackend()
    devices = backend.probe(1.0)
    config = RunnerConfig(
        dtype="f32",
        max_num_seqs=4,
        max_model_len=288,
        options={"kernels": kernels, "num_threads": str(num_threads)},
    )
    plan = backend.plan(spec, weights, config, devices)
    runner = backend.create_runner(spec, config, plan, devices)
    try:
        runner.load(weights, lambda done, total: None)
        runner.allocate_kv()
        runner.warm_up()
        yield Driver(runner, plan, vocab_size=spec.num_tokens, max_num_seqs=4)
    finally:
        runner.close()


def _logprobs(spec: ModelSpec, weights: WeightIndex, kernels: str, num_threads: int) -> list[np.ndarray]:
    """Of three sequences that are computed together, two in chunks, at every token.

    In the longest chunk each of three threads has tokens of its own. In the end of each sequence some tokens
    more, with logits of the last only, or of none.
    """
    with _driver(spec, weights, kernels, num_threads) as driver:
        sequences = [driver.add(random_prompt(n, n)) for n in (260, 19, 5)]
        found: list[list[np.ndarray]] = [[] for _ in sequences]
        for counts in ((1, 18, 4), (40, 0, 0), (218, 0, 0)):
            works = [scoring_work(s, count) for s, count in zip(sequences, counts, strict=True) if count]
            step, output = driver.run(works)
            for sequence, parts in zip(sequences, found, strict=True):
                if any(work.sequence is sequence for work in step.works):
                    parts.append(output.logprobs[step.rows_of(sequence)])
        for counts in ((0, 9, 1), (20, 3, 2)):
            works = [
                _last_rows(s, count, has_logits=count != 20)
                for s, count in zip(sequences, counts, strict=True)
                if count
            ]
            step, output = driver.run(works)
            for sequence, parts in zip(sequences[1:], found[1:], strict=True):
                parts.append(output.logprobs[step.rows_of(sequence)])
        return [np.concatenate(parts) for parts in found]


def _last_rows(sequence: DrivenSequence, count: int, *, has_logits: bool) -> Work:
    """`count` tokens more than the sequence has, with the logits of the last of them."""
    sequence.token_ids.extend(random_prompt(count, 40 + count))
    row = RowSampling(draws=False, target=7)
    return Work(sequence, count, (count - 1,) * has_logits, (row,) * has_logits)


@pytest.mark.parametrize("name", SPECS)
def test_the_native_step_agrees_with_torch_s(name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    weights = _weights(spec, tmp_path)
    expected = _logprobs(spec, weights, "torch", 1)
    assert max(float(np.ptp(part)) for part in expected) > 1, "logits are flat: nothing would show"
    for num_threads in (1, 3):
        for found, wanted in zip(_logprobs(spec, weights, "native", num_threads), expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=2e-4)


def test_steps_in_flight_outlive_a_change_of_the_engine_s_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is queued behind one under way, and a stream of other threads takes the place of theirs."""
    weights = _weights(SPEC, tmp_path)

    def generated(num_threads: int) -> list[list[int]]:
        with _driver(SPEC, weights, "native", num_threads) as driver:
            return driver.generate([driver.add(random_prompt(n, n)) for n in (40, 7, 3)], 24)

    expected = generated(1)
    monkeypatch.setattr(CoreShare, "refresh", lambda self: True)
    assert generated(2) == expected
