"""What the engine does not take, and what it takes and cannot do in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from trivet.engine.sequence import SequenceState
from trivet.errors import ContextLengthExceeded, DeadlinePassed, Overloaded, RequestError
from trivet.messages import FinishReason

EngineFactory = Callable[..., Any]


class StreamedText(NamedTuple):
    """A step of a text stream."""

    text: str
    stop_reason: str | None


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(make_engine: EngineFactory) -> None:
    engine = make_engine(max_model_len=20)
    with pytest.raises(ContextLengthExceeded, match=r"25 tokens .* 20 tokens.* raise max_model_len"):
        engine.add(engine.prompt(25))
    with pytest.raises(ContextLengthExceeded, match="one must be left to generate"):
        engine.add(engine.prompt(20))
    engine.add(engine.prompt(19))
    engine.run()


def test_what_failed_before_it_came_counts_all_the_same(make_engine: EngineFactory) -> None:
    core = make_engine().core
    for error in (Overloaded("x"), DeadlinePassed("x"), DeadlinePassed("x"), RequestError("x")):
        core.count_failure(error)
    assert (core.load().num_refused, core.load().num_deadlines_passed) == (1, 2)


def test_a_prompt_beyond_all_kv_is_refused_with_both_numbers(make_engine: EngineFactory) -> None:
    engine = make_engine(num_blocks=5, block_size=4, max_model_len=100)
    with pytest.raises(ContextLengthExceeded, match=r"30 tokens .* KV cache holds 16 tokens"):
        engine.add(engine.prompt(30))
    assert not engine.core.has_work


@pytest.mark.parametrize(
    ("prompt", "words"), [([], "no tokens"), ([3, -1], "-1"), ([3, 64, 5], "token id 64 .* 0 to 63")]
)
def test_a_prompt_that_is_no_prompt_is_refused(
    make_engine: EngineFactory, prompt: list[int], words: str
) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=words) as caught:
        engine.add(prompt)
    assert caught.value.param == "prompt"
    assert not engine.core.has_work


def test_a_request_id_that_is_in_use_is_refused(make_engine: EngineFactory) -> None:
    engine = make_engine()
    engine.add([3], request_id="a")
    with pytest.raises(RequestError, match="'a' is in use"):
        engine.add([3], request_id="a")
    engine.run()
    engine.add([3], request_id="a")


def test_a_full_queue_refuses_and_says_when_to_retry(make_engine: EngineFactory) -> None:
    engine = make_engine(max_num_waiting=3)
    for _ in range(3):
        engine.add([3, 4])
    with pytest.raises(Overloaded, match="the queue has 3 requests and max_num_waiting is 3") as caught:
        engine.add([3, 4])
    assert caught.value.retry_after_s >= 1
    engine.step()
    engine.add([3, 4])  # the three run now


def test_retry_after_follows_from_how_fast_the_queue_moves(make_engine: EngineFactory) -> None:
    waits = []
    for step_s in (0.1, 1.0):
        engine = make_engine(depth=1, max_num_seqs=2, max_num_waiting=20)
        for _ in range(40):
            if len(engine.core.scheduler.waiting) < 20:
                engine.add([3, 4], max_tokens=4, ignore_eos=True)
            engine.clock.now_s += step_s
            engine.step()
        while len(engine.core.scheduler.waiting) < 20:
            engine.add([3, 4], max_tokens=4)
        with pytest.raises(Overloaded) as caught:
            engine.add([3, 4])
        waits.append(caught.value.retry_after_s)
    # two sequences in four steps are admitted, and ten places shall be free
    assert waits == [pytest.approx(2, abs=1), pytest.approx(20, abs=2)]
    assert engine.core.load().num_refused == 1


def test_a_key_that_fills_the_queue_does_not_shut_others_out(make_engine: EngineFactory) -> None:
    engine = make_engine(max_num_waiting=8)
    for _ in range(8):
        engine.add([3, 4], key="flood")
    with pytest.raises(Overloaded):
        engine.add([3, 4], key="flood")
    for _ in range(4):
        engine.add([3, 4], key="other")
    with pytest.raises(Overloaded):
        engine.add([3, 4], key="other")


def test_a_deadline_in_the_queue_is_503_and_says_when_to_retry(
    make_engine: EngineFactory, depth: int
) -> None:
    engine = make_engine(depth=depth, max_num_seqs=1)
    first = engine.add(engine.prompt(9), max_tokens=30, ignore_eos=True)
    late = engine.add(engine.prompt(9), max_tokens=5, deadline_s=engine.clock.now_s + 2)
    for _ in range(4):
        engine.clock.now_s += 1
        engine.step()
    (update,) = engine.updates[late.request_id]
    assert (update.failure.status, update.failure.code) == (503, "deadline_passed")
    assert update.failure.retry_after_s >= 1
    assert "after 2.000 s" in update.failure.message
    engine.run()
    assert first.output_token_ids == engine.expected(first)
    assert engine.core.load().num_deadlines_passed == 1
    assert engine.core.block_pool.find(first.block_keys) != [], "what they share stays in the cache"


def test_a_deadline_while_it_runs_ends_with_what_there_is(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth)
    late = engine.add(engine.prompt(9), max_tokens=50, ignore_eos=True, deadline_s=engine.clock.now_s + 6)
    mate = engine.add(engine.prompt(9, 1), max_tokens=20, ignore_eos=True)
    for _ in range(8):
        engine.clock.now_s += 1
        engine.step()
    last = engine.updates[late.request_id][-1]
    assert (last.finish_reason, last.stop_reason, last.failure) == (FinishReason.LENGTH, "deadline", None)
    engine.run()
    assert 3 <= late.num_output_tokens <= 6
    assert late.output_token_ids == engine.expected(late)[: late.num_output_tokens]
    assert mate.output_token_ids == engine.expected(mate)
    assert engine.core.block_pool.usage == 0


def test_a_preempted_sequence_that_runs_out_of_time_has_begun(make_engine: EngineFactory) -> None:
    engine = make_engine(depth=1, num_blocks=12, max_model_len=40, max_num_seqs=8)
    sequences = [
        engine.add(engine.prompt(12, seed), max_tokens=25, ignore_eos=True, deadline_s=1000.0)
        for seed in range(3)
    ]
    while engine.core.load().num_preemptions == 0:
        engine.step()
    preempted = [s for s in sequences if s.state is SequenceState.WAITING and s.num_output_tokens]
    assert preempted
    engine.clock.now_s = 1000.0
    engine.step()
    assert {engine.finish_reason(sequence) for sequence in preempted} == {FinishReason.LENGTH}
    assert not engine.core.has_work


def test_a_deadline_flushes_the_text_that_was_held_back(make_engine: EngineFactory) -> None:
    class Held:
        def push(self, ids: Any) -> Any:
            return StreamedText("", None)

        def finish(self) -> str:
            return "held"

    engine = make_engine(depth=1)
    late = engine.add(engine.prompt(9), max_tokens=50, deadline_s=engine.clock.now_s + 2, text=Held())
    for _ in range(3):
        engine.clock.now_s += 1
        engine.step()
    assert "".join(update.text for update in engine.updates[late.request_id]) == "held"
