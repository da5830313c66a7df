"""A crowd of everything at once for as long as one likes: right answers, nothing kept, memory flat.

`tests/run soak` runs it for minutes; plain pytest runs the short form.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from trivet.engine.sequence import Sequence, SequenceState
from trivet.errors import ContextLengthExceeded, Overloaded
from trivet.messages import FinishReason
from trivet.pooling_params import PoolingParams

EngineFactory = Callable[..., Any]
NAN_TOKEN = 63
MAX_NUM_SEQS = 16
GROWTH_LIMIT = 0.05  # of the process, after the warm-up
ROUND = 250  # requests between two looks at what is kept
SHARED = [random.Random(n).choices(range(3, 60), k=60) for n in range(3)]


@dataclass
class Crowd:
    """Requests of every kind, and what has become of them."""

    engine: Any
    rng: random.Random
    num_requests: int = 0
    num_refused: int = 0
    living: list[Sequence] = field(default_factory=list)

    def come(self) -> None:
        """One more request, or several completions of one."""
        rng, prompt = self.rng, self.prompt()
        own = {
            "priority": rng.choice([0, 0, 1, 5]),
            "key": rng.choice(["a", "b", f"guest {self.num_requests}"]),
            "cache_salt": rng.choice(["", "", "salt"]),
            "deadline_s": self.engine.clock.now_s + rng.choice([0.2, 2.0, 60.0])
            if rng.random() < 0.2
            else None,
            "group": f"g{self.num_requests}" if rng.random() < 0.1 else "",
        }
        if rng.random() < 0.05:
            own["pooling"] = PoolingParams(pooling=rng.choice(["last", "mean"]))
        for _ in range(3 if own["group"] else 1):
            self.num_requests += 1
            try:
                self.living.append(self.engine.add(prompt, str(self.num_requests), **own, **self.wishes()))
            except (ContextLengthExceeded, Overloaded):
                self.num_refused += 1

    def prompt(self) -> list[int]:
        rng = self.rng
        own = rng.choices(range(3, NAN_TOKEN + (rng.random() < 0.05)), k=rng.randint(1, 40))
        return rng.choice(SHARED)[: rng.choice([0, 0, 20, 60])] + own * rng.choice([1, 1, 1, 9])

    def wishes(self) -> dict[str, Any]:
        rng = self.rng
        return {
            "max_tokens": rng.choice([0, 1, 3, 8, 20]),
            "temperature": rng.choice([0.0, 0.7]),
            "seed": rng.choice([None, 7]),
            "top_p": rng.choice([1.0, 0.9]),
            "ignore_eos": rng.random() < 0.5,
            "logprobs": rng.choice([None, None, 2]),
            "prompt_logprobs": rng.choice([None] * 9 + [1]),
            "frequency_penalty": rng.choice([0.0, 0.0, 0.5]),
        }

    def turn(self) -> None:
        """Some come, some go, the engine steps."""
        rng, engine = self.rng, self.engine
        for _ in range(rng.choice([0, 1, 2, 4, 16])):
            self.come()
        if self.living and rng.random() < 0.1:
            engine.core.abort(rng.choice(self.living).request_id)
        if rng.random() < 0.002:
            engine.core.reset_prefix_cache()
        for _ in range(rng.randint(1, 3)):
            engine.clock.now_s += 0.01
            engine.step()
        for sequence in self.living:
            if sequence.state is SequenceState.FINISHED:
                self.check(sequence)
        self.living = [one for one in self.living if one.state is not SequenceState.FINISHED]

    def check(self, sequence: Sequence) -> None:
        """A sample of them, against the sequence alone."""
        updates = self.engine.updates.pop(sequence.request_id, [])
        assert sum(update.finish_reason is not None for update in updates) <= 1
        is_plain = not sequence.params.frequency_penalty and sequence.pooling is None
        if is_plain and self.rng.random() < 0.05:
            output = sequence.output_token_ids
            assert output == self.engine.expected(sequence)[: len(output)]
            if updates and updates[-1].finish_reason is FinishReason.STOP:
                assert output[-1] in sequence.stop_ids

    def expect_nothing_kept(self) -> None:
        """Once all have ended."""
        self.engine.run()
        for sequence in self.living:
            self.check(sequence)
        self.living, core = [], self.engine.core
        load = core.load()
        assert (load.num_running, load.num_waiting, load.num_tokens_outstanding) == (0, 0, 0)
        assert (load.kv_usage, load.swap_usage, load.num_swapped) == (0.0, 0.0, 0)
        assert sum(load.num_finished.values()) == self.num_requests - self.num_refused
        assert core.scheduler.waiting.num_keys("nobody's") == 1
        assert len(core.scheduler._free_slots) == MAX_NUM_SEQS
        self.engine.updates.clear()


def test_a_crowd_of_everything_leaves_nothing_behind(
    make_engine: EngineFactory, soak_minutes: float, record_property: Callable[[str, object], None]
) -> None:
    """5,000 requests in the short form."""
    engine = make_engine(
        num_blocks=90,
        max_num_seqs=MAX_NUM_SEQS,
        token_budget=128,
        max_num_waiting=100,
        num_host_blocks=20,
        options={
            "nan_token": str(NAN_TOKEN),
            "out_of_memory_steps": ",".join(str(300 * n) for n in range(1, 2000)),
        },
    )
    crowd = Crowd(engine, random.Random(int(soak_minutes * 60)))
    process, end_s = psutil.Process(), time.monotonic() + 60 * soak_minutes
    rss: list[int] = []
    while crowd.num_requests < 5000 or time.monotonic() < end_s:
        goal = crowd.num_requests + ROUND
        while crowd.num_requests < goal:
            crowd.turn()
        crowd.expect_nothing_kept()
        rss.append(process.memory_info().rss)
    load = engine.core.load()
    record_property("load", str(load))  # a value that goes into a report
    assert all(load.num_finished.values())
    assert min(load.num_preemptions, load.num_swaps, load.num_deadlines_passed, load.num_refused) > 10
    assert load.prefix_hits > 0
    engine.core.reset_prefix_cache()
    assert engine.core.block_pool.num_free == engine.core.block_pool.num_usable
    growth = max(rss[-4:]) / max(rss[2:6]) - 1
    assert growth < GROWTH_LIMIT, f"{growth:.1%} more memory after {crowd.num_requests} requests: {rss}"
