"""An engine core on the null runner, driven step by step, and what its tokens have to be."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trivet.contract import Batch, MemoryPlan, RunnerConfig, Sampling
from trivet.demo_model import find_demo_model
from trivet.engine.block_pool import BlockPool
from trivet.engine.commit import Update
from trivet.engine.core import CoreConfig, EngineCore
from trivet.engine.grammar import GrammarCompiler
from trivet.engine.sampler import sample_rows
from trivet.engine.scheduler import Scheduled, Scheduler
from trivet.engine.sequence import Sequence, SequenceState
from trivet.engine.swap_space import SwapCosts
from trivet.engine.uniform import uniforms
from trivet.messages import Phase
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm, Rope
from trivet.sampling_params import SamplingParams
from trivet.text.tokenizer import Tokenizer, load_tokenizer
from trivet.weights.index import WeightIndex
from trivet_null.backend import TOKEN_BYTES, NullBackend
from trivet_null.model import NullModel
from trivet_null.runner import NullRunner

sys.path.append(str(Path(__file__).parent))  # engine_under_test, grammar_texts
from engine_under_test import EngineUnderTest, Watcher
from grammar_texts import END

EOS = 2
# Of a sequence, not of its parameters.
OWN = (
    "priority", "key", "key_class", "deadline_s", "adapter", "cache_salt", "group", "index", "text",
    "bad_word_ids", "pooling",
)  # fmt: skip


def tiny_spec(vocab_size: int, num_tokens: int, max_position: int) -> ModelSpec:
    attention = Attention(num_heads=2, num_kv_heads=1, head_dim=8, scale=0.35, rope=Rope(dim=8))
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        num_tokens=num_tokens,
        hidden_size=16,
        max_position=max_position,
        kinds=(Layer(attention, MLP(32)),),
        layers=(0, 0),
        norm=Norm(),
    )


@dataclass
class Clock:
    """Time that passes only when a test says so."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


class FixedCosts(SwapCosts):
    """Copying is cheaper, whatever is measured."""

    def observe(self, batch: Batch, device_time_s: float) -> None:
        """Learns nothing."""


@dataclass
class Engine:
    """A core, its runner and the updates that came so far."""

    core: EngineCore
    runner: NullRunner
    plan: MemoryPlan
    spec: ModelSpec
    clock: Clock
    updates: dict[str, list[Update]] = field(default_factory=lambda: defaultdict(list))
    num_added: int = 0

    def add(self, prompt: TokenIds[int], request_id: str | None = None, **params: Any) -> Sequence:
        """Queue a sequence; keyword arguments that are no sampling parameters go to the sequence."""
        own = {key: params.pop(key) for key in OWN if key in params}
        params = {"temperature": 0.0, **params}
        self.num_added += 1
        sequence = Sequence(request_id or str(self.num_added), prompt, SamplingParams(**params), **own)
        self.core.add(sequence)
        return sequence

    def prompt(self, length: int, seed: float = 0) -> list[int]:
        """Ids that a vocabulary of 64 has, and none that ends; the same for the same seed."""
        return random.Random(seed).choices(range(EOS + 1, 64), k=length)

    def count_tokens(self) -> list[int]:
        """Grows by the number of tokens that each step computes from now on."""
        forward, counts = self.runner.forward, []

        def counting(batch: Batch) -> None:
            counts.append(len(batch.token_ids))
            forward(batch)

        self.runner.forward = counting  # type: ignore[method-assign]
        return counts

    def step(self) -> list[Update]:
        updates = self.core.step()
        self.core.block_pool.check_integrity()
        for update in updates:
            self.updates[update.sequence.request_id].append(update)
        return updates

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(max_steps):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError(f"work is left after {max_steps} steps: {self.core.load()}")

    def finish_reason(self, sequence: Sequence) -> str | None:
        return self.updates[sequence.request_id][-1].finish_reason

    def expected(self, sequence: Sequence) -> list[int]:
        """The sequence's output, computed alone, one token after the other, without KV."""
        model, params = NullModel(self.spec.num_tokens), sequence.params
        token_ids, output = list(sequence.prompt_token_ids), []
        limit = self.core.max_model_len - len(token_ids)
        limit = limit if params.max_tokens is None else min(limit, params.max_tokens)
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
        while len(output) < limit:
            last = np.array([len(token_ids) - 1], np.int32)
            logits = model.logits(int(model.states(np.array(token_ids, np.int32), last)[0]))[None].copy()
            logits = edited(logits, token_ids, sequence)
            if len(output) < params.min_tokens:
                logits[:, [token for token in ends if token < self.spec.num_tokens]] = -np.inf
            token = draw_alone(logits, params, sequence.seed, len(token_ids))
            token_ids.append(token)
            output.append(token)
            if token in ends:
                break
        return output


def edited(logits: Any, token_ids: list[int], sequence: Sequence) -> Any:
    """Penalties, bias, bad words and allowed tokens, by their definition over the whole vocabulary."""
    params, output = sequence.params, token_ids[sequence.num_prompt_tokens :]
    for token in range(logits.shape[1]):
        value, count = logits[0, token], output.count(token)
        mul = np.float32(params.repetition_penalty if token in token_ids else 1)
        add = (params.logit_bias or {}).get(token, 0.0)
        add -= params.presence_penalty * (count > 0) + params.frequency_penalty * count
        logits[0, token] = (value / mul if value > 0 else value * mul) + np.float32(add)
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            logits[0, token] = -np.inf
    for *before, last in sequence.bad_word_ids:
        if len(output) >= len(before) and output[len(output) - len(before) :] == before:
            logits[0, last] = -np.inf
    return logits


def draw_alone(logits: Any, params: SamplingParams, seed: int, position: int) -> int:
    """One row of the reference sampler (which has tests of its own)."""
    sampling = Sampling(
        draws=np.ones(1, np.bool_),
        target_ids=np.full(1, -1, np.int32),
        temperature=np.array([params.temperature], np.float32),
        top_k=np.array([max(params.top_k, 0)], np.int32),
        top_p=np.array([params.top_p], np.float32),
        min_p=np.array([params.min_p], np.float32),
        uniform=uniforms(np.array([seed], np.uint64), np.array([position])),
    )
    forbidden = logits == -np.inf  # as edits, because raw logits have to be finite
    sampling = replace(
        sampling,
        edit_start=np.array([0, forbidden.sum()], np.int32),
        edit_ids=np.flatnonzero(forbidden[0]).astype(np.int32),
        edit_mul=np.ones(forbidden.sum(), np.float32),
        edit_add=np.full(forbidden.sum(), -np.inf, np.float32),
    )
    raw = np.where(forbidden, np.float32(0), logits)
    return int(sample_rows(raw, sampling, np.zeros(1, np.int32), 1).token_ids[0])


EngineFactory = Callable[..., Engine]


@pytest.fixture(params=[1, 2])
def depth(request: pytest.FixtureRequest) -> int:
    """Steps in flight: a test that takes it runs at both depths of the loop."""
    return int(request.param)


@pytest.fixture
def count_calls() -> Callable[[Callable[[], object]], int]:
    """How many functions are called by one: the cost of a step, where timings are no verdict."""

    def count(function: Callable[[], object]) -> int:
        calls = 0

        def profile(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            function()
        finally:
            sys.setprofile(before)
        return calls

    return count


@pytest.fixture
def make_engine() -> Iterator[EngineFactory]:
    """Builds engines and closes them."""
    runners: list[NullRunner] = []

    def make(
        *,
        depth: int = 2,
        block_size: int = 4,
        num_blocks: int | None = None,
        max_model_len: int = 128,
        max_num_seqs: int = 4,
        token_budget: int = 32,
        vocab_size: int = 64,
        num_tokens: int | None = None,
        num_host_blocks: int = 0,
        options: dict[str, str] | None = None,
        **core: Any,
    ) -> Engine:
        spec = tiny_spec(vocab_size, num_tokens or vocab_size, max_model_len)
        backend, weights = NullBackend(), WeightIndex(())
        config = RunnerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=token_budget,
            num_blocks=num_blocks,
            block_size=block_size,
            swap_bytes=num_host_blocks * block_size * TOKEN_BYTES,
            options={"max_in_flight": str(depth), **(options or {})},
        )
        devices = backend.probe(1.0)
        # A backend may hold fewer blocks than one sequence of full length needs.
        plan = replace(backend.plan(spec, weights, config, devices), max_model_len=max_model_len)
        runner = backend.create_runner(spec, config, plan, devices)
        assert isinstance(runner, NullRunner)
        runners.append(runner)
        runner.load(weights, lambda done, total: None)
        runner.allocate_kv()
        runner.warm_up()
        clock = Clock()
        core_config = CoreConfig(
            eos_token_ids=(EOS,),
            vocab_size=vocab_size,
            num_tokens=spec.num_tokens,
            max_num_seqs=max_num_seqs,
            **core,
        )
        engine = Engine(EngineCore(runner, plan, core_config, clock), runner, plan, spec, clock)
        if swap := engine.core.scheduler.swap:  # the null device computes for nothing
            swap.costs = FixedCosts(0.0, 1.0)
        return engine

    yield make
    for runner in runners:
        runner.close()


@dataclass
class World:
    """A scheduler whose steps are collected at once, with token 7 for everybody."""

    scheduler: Scheduler
    pool: BlockPool
    clock: Clock
    num_steps: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    seeds: random.Random = field(default_factory=lambda: random.Random(0))

    def unique_tokens(self, count: int) -> list[int]:
        """That no other prompt of this world shares."""
        return [self.seeds.randrange(10, 10**6) for _ in range(count)]

    def add(self, prompt: int | list[int], max_tokens: int = 50, **own: Any) -> Sequence:
        tokens = prompt if isinstance(prompt, list) else self.unique_tokens(prompt)
        sequence = Sequence(f"r{len(self.sequences)}", tokens, SamplingParams(), **own)
        sequence.arrival, sequence.arrival_s = len(self.sequences), self.clock.now_s
        sequence.max_total_tokens = len(tokens) + max_tokens
        self.sequences.append(sequence)
        self.scheduler.waiting.push(sequence)
        return sequence

    def submit(self) -> list[Scheduled]:
        step = self.scheduler.schedule()
        self.pool.check_integrity()
        self.num_steps += 1
        self.scheduler.submitted(step, self.num_steps)
        for part in step:
            part.sequence.first_scheduled_s = part.sequence.first_scheduled_s or 1.0
        return step

    def commit(self, step: list[Scheduled], number: int | None = None) -> None:
        self.pool.confirm(self.num_steps if number is None else number)
        for part in step:
            sequence = part.sequence
            if part.draws and sequence.state is not SequenceState.FINISHED:
                sequence.num_pending_tokens -= 1
                sequence.token_ids.append(7)
                if len(sequence.token_ids) >= sequence.max_total_tokens:
                    self.scheduler.finish(sequence)

    def step(self) -> dict[Sequence, int]:
        """Submit and commit; what each sequence got."""
        step = self.submit()
        self.commit(step)
        return {part.sequence: part.num_tokens for part in step}


WorldFactory = Callable[..., World]


@pytest.fixture
def make_world() -> WorldFactory:
    """Builds a scheduler over a block pool, without an engine."""

    def make(
        *,
        num_blocks: int = 100,
        block_size: int = 4,
        max_num_seqs: int = 8,
        budget: int = 16,
        caches: bool = True,
    ) -> World:
        pool = BlockPool(num_blocks, block_size, max_num_seqs, max_model_len=(num_blocks - 1) * block_size)
        clock = Clock()
        scheduler = Scheduler(
            pool, max_num_seqs=max_num_seqs, token_budget=budget, enable_prefix_caching=caches, clock=clock
        )
        return World(scheduler, pool, clock)

    return make


@pytest.fixture
def watch() -> Iterator[Callable[[Path, str], Watcher]]:
    """Watch an engine by its run directory and instance id."""
    opened: list[Watcher] = []

    def open_one(run_dir: Path, instance_id: str) -> Watcher:
        opened.append(Watcher(run_dir, instance_id))
        return opened[-1]

    yield open_one
    for watcher in opened:
        watcher.close()


@pytest.fixture(scope="module")
def lasting_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineUnderTest]:
    settings = {"options.step_ms": "1"}
    engine = EngineUnderTest(tmp_path_factory.mktemp("run"), find_demo_model(), settings, Watcher)
    engine.beat_where(lambda beat: beat.phase is Phase.READY)
    yield engine
    engine.close()
    engine.watcher.close()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(find_demo_model())


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, [END])
