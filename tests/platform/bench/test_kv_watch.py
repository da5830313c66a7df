"""KV waste, from a block pool whose books are known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trivet.bench.kv_watch import KvWatch
from trivet.demo_model import find_demo_model
from trivet.engine.core import EngineCore
from trivet.engine.sequence import Sequence
from trivet.llm import LLM
from trivet.sampling_params import SamplingParams

BLOCK = 128  # of the null backend
SETTINGS = {"max_model_len": 1024, "num_gpu_blocks_override": 33, "max_num_batched_tokens": 128}


@pytest.fixture
def core() -> Iterator[EngineCore]:
    with LLM(find_demo_model(), backend="null", **SETTINGS) as llm:
        yield llm.engine.core


def _add(core: EngineCore, name: str, first: int, num_tokens: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    core.add(Sequence(name, [first + i % 7 for i in range(num_tokens)], params))


def test_nothing_is_said_of_an_idle_engine(core: EngineCore) -> None:
    watch = KvWatch(core)
    watch.observe(1.0)
    assert watch.figures() == {}


def test_slots_behind_the_last_token_are_waste(core: EngineCore) -> None:
    _add(core, "a", 10, 96)
    core.step()
    watch = KvWatch(core)
    watch.observe(1.0)
    figures = watch.figures()
    assert core.scheduler.running[0].num_computed_tokens == 96
    assert figures["kv_waste_percent"] == pytest.approx(100 * (BLOCK - 96) / BLOCK)


def test_a_prompt_holds_no_blocks_for_the_chunks_to_come(core: EngineCore) -> None:
    _add(core, "a", 10, 512)
    core.step()  # a chunk of 128 tokens
    watch = KvWatch(core)
    watch.observe(1.0)
    assert watch.figures()["kv_waste_percent"] == pytest.approx(0.0)


def test_a_step_counts_with_its_duration(core: EngineCore) -> None:
    _add(core, "a", 10, 128 + 64)
    core.step()
    watch = KvWatch(core)
    watch.observe(3.0)  # one block, full
    core.step()
    watch.observe(1.0)  # and another, filled by half
    assert watch.figures()["kv_waste_percent"] == pytest.approx(100 * 64 / (3 * 128 + 256))


def test_shared_blocks_count_once(core: EngineCore) -> None:
    _add(core, "a", 10, 256)
    core.step()
    core.step()
    _add(core, "b", 10, 256 + 64)  # its first two blocks are a's
    core.step()
    watch = KvWatch(core)
    watch.observe(1.0)
    figures = watch.figures()
    held = core.block_pool.num_usable - core.block_pool.num_free
    a, b = core.scheduler.running
    assert b.num_cached_tokens == 256
    unused = (held * BLOCK) - (a.num_computed_tokens + b.num_computed_tokens - 256)
    assert figures["kv_waste_percent"] == pytest.approx(100 * unused / (held * BLOCK))
    assert figures["kv_sequences_fit"] == 32 // (held / 2)
    assert figures["kv_sequences_fit_contiguous"] == 32 * BLOCK // 1024
    assert figures["kv_sequences_running_peak"] == 2
