"""A null runner that is driven by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from trivet.contract import Batch, MemoryPlan, RunnerConfig, Sampling, StepOutput
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.weights.index import TensorInfo, WeightIndex
from trivet_null.backend import NullBackend
from trivet_null.runner import NullRunner

WEIGHTS = WeightIndex((TensorInfo("embed.weight", (50, 8), "f32", "/nowhere", 0, 1600),))


def make_spec(vocab_size: int = 50, num_tokens: int = 48) -> ModelSpec:
    attention = Attention(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, rope=Rope(dim=8))
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        num_tokens=num_tokens,
        hidden_size=8,
        max_position=1000,
        kinds=(Layer(attention, MLP(8)),),
        layers=(0, 0, 0),
        norm=Norm(),
    )


@dataclass
class Hand:
    """Builds batches out of plain lists; block size 4."""

    runner: NullRunner
    plan: MemoryPlan
    spec: ModelSpec
    step: int = 0
    batches: list[Batch] = field(default_factory=list)

    def batch(self, *sequences: tuple[int, list[int], int, list[int]], **changes: Any) -> Batch:
        """Sequences of slot, blocks, first position and tokens; each wants its last token's logits."""
        self.step += 1
        lengths = [len(tokens) for *_, tokens in sequences]
        width = max((len(blocks) for _, blocks, _, _ in sequences), default=0)
        table = np.zeros((len(sequences), width), np.int32)
        for row, (_, blocks, _, _) in enumerate(sequences):
            table[row, : len(blocks)] = blocks
        members: dict[str, Any] = {
            "step": self.step,
            "slots": np.array([slot for slot, *_ in sequences], np.int32),
            "query_start_loc": np.cumsum([0, *lengths], dtype=np.int32),
            "seq_lens": np.array([start + len(tokens) for _, _, start, tokens in sequences], np.int32),
            "block_tables": (table,),
            "token_ids": np.array([token for *_, tokens in sequences for token in tokens], np.int32),
            "positions": np.array(
                [start + at for _, _, start, tokens in sequences for at in range(len(tokens))], np.int32
            ),
            "logits_rows": np.cumsum(lengths, dtype=np.int32) - 1,
            "row_seqs": np.arange(len(sequences), dtype=np.int32),
        }
        return Batch(**{**members, **changes})

    def sampling(self, num_rows: int, **columns: Any) -> Sampling:
        """Greedy, unless columns say otherwise."""
        members: dict[str, Any] = {
            "draws": np.ones(num_rows, np.bool_),
            "target_ids": np.full(num_rows, -1, np.int32),
            "temperature": np.zeros(num_rows, np.float32),
            "top_k": np.zeros(num_rows, np.int32),
            "top_p": np.ones(num_rows, np.float32),
            "min_p": np.zeros(num_rows, np.float32),
            "uniform": np.zeros((num_rows, 2), np.float32),
        }
        return Sampling(**{**members, **columns})

    def run(self, batch: Batch) -> StepOutput:
        self.runner.forward(batch)
        self.runner.sample(batch.step, self.sampling(len(batch.logits_rows)))
        return self.runner.collect(batch.step)

    def expected(self, token_ids: list[int]) -> int:
        return int(NullBackend().reference_logits(self.spec, token_ids)[-1].argmax())


@pytest.fixture
def make_hand() -> Iterator[Callable[..., Hand]]:
    runners = []

    def make(**options: str) -> Hand:
        spec, backend = make_spec(), NullBackend()
        config = RunnerConfig(max_num_seqs=4, block_size=4, num_blocks=20, options=options)
        devices = backend.probe(1.0)
        plan = backend.plan(spec, WEIGHTS, config, devices)
        runner = backend.create_runner(spec, config, plan, devices)
        assert isinstance(runner, NullRunner)
        runners.append(runner)
        runner.load(WEIGHTS, lambda done, total: None)
        runner.allocate_kv()
        runner.warm_up()
        return Hand(runner, plan, spec)

    yield make
    for runner in runners:
        runner.close()


@pytest.fixture
def hand(make_hand: Callable[..., Hand]) -> Hand:
    return make_hand()
