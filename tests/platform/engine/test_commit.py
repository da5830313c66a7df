"""Text, stop strings and ends, on a text stream made of plain words."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from trivet.contract import StepOutput
from trivet.engine.scheduler import Scheduled
from trivet.engine.sequence import Sequence
from trivet.messages import FinishReason
from trivet.sampling_params import SamplingParams

EngineFactory = Callable[..., Any]


@dataclass(frozen=True)
class WordStep:
    text: str
    stop_reason: str | None = None


class Words:
    """Token 17 reads "17 "; the newest word is held back; a stop string is a word."""

    def __init__(self, stop: str | None = None) -> None:
        self.stop = stop
        self.held = ""
        self.pushed: list[int] = []
        self.is_finished = False

    def push(self, ids: TokenIds[int]) -> WordStep:
        assert not self.is_finished
        if not ids:  # an end token, which is hidden
            return WordStep("")
        (token,) = ids
        self.pushed.append(token)
        text, self.held = self.held, f"{token} "
        if self.held.strip() == self.stop:
            self.held = ""
            return WordStep(text, self.stop)
        return WordStep(text)

    def finish(self) -> str:
        assert not self.is_finished
        self.is_finished = True
        return self.held


def texts(engine: Any, request_id: str) -> list[str]:
    return [update.text for update in engine.updates[request_id]]


def test_the_pieces_joined_are_the_whole_text(make_engine: EngineFactory, depth: int) -> None:
    engine = make_engine(depth=depth)
    sequence = engine.add([3, 4, 5], max_tokens=6, ignore_eos=True, text=Words())
    engine.run()
    assert "".join(texts(engine, "1")) == "".join(f"{token} " for token in sequence.output_token_ids)
    assert texts(engine, "1")[0] == "", "held back, and the token is reported all the same"
    assert [update.token_ids for update in engine.updates["1"]] == [[t] for t in sequence.output_token_ids]


def test_a_stop_string_ends_the_sequence_with_itself_as_the_reason(
    make_engine: EngineFactory, depth: int
) -> None:
    engine = make_engine(depth=depth)
    probe = engine.add([3, 4, 5], max_tokens=6, ignore_eos=True)
    engine.run()
    word = str(probe.output_token_ids[3])
    sequence = engine.add([3, 4, 5], max_tokens=30, ignore_eos=True, text=Words(word))
    engine.run()
    last = engine.updates["2"][-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, word)
    assert sequence.output_token_ids == probe.output_token_ids[:4]
    assert "".join(texts(engine, "2")) == "".join(f"{token} " for token in probe.output_token_ids[:3])
    assert engine.core.block_pool.usage == 0


def test_a_stop_string_beats_the_length(make_engine: EngineFactory) -> None:
    engine = make_engine()
    probe = engine.add([3, 4, 5], max_tokens=3, ignore_eos=True)
    engine.run()
    engine.add([3, 4, 5], max_tokens=3, ignore_eos=True, text=Words(str(probe.output_token_ids[2])))
    engine.run()
    assert engine.updates["2"][-1].finish_reason is FinishReason.STOP


def test_an_end_token_flushes_the_text_stream(make_engine: EngineFactory) -> None:
    engine = make_engine(vocab_size=8, max_model_len=400)
    stream = Words()
    sequence = engine.add([3, 4], max_tokens=None, text=stream)
    engine.run()
    assert sequence.output_token_ids[-1] == 2
    assert stream.pushed == sequence.output_token_ids[:-1]
    assert stream.is_finished


@pytest.mark.parametrize("is_shown", [False, True])
def test_an_end_token_stays_out_of_the_text_whatever_the_files_call_it(
    make_engine: EngineFactory, is_shown: bool
) -> None:
    engine = make_engine()
    probe = engine.add([3, 4, 5], max_tokens=3, ignore_eos=True)
    engine.run()
    *before, end = probe.output_token_ids
    sequence = engine.add([3, 4, 5], max_tokens=9, text=Words(), skip_special_tokens=not is_shown)
    sequence.stop_ids = frozenset({end})
    engine.run()
    assert sequence.output_token_ids == [*before, end]
    assert engine.updates["2"][-1].finish_reason is FinishReason.STOP
    seen = [*before, end] if is_shown else before
    assert "".join(texts(engine, "2")) == "".join(f"{token} " for token in seen)


def test_an_aborted_sequence_is_not_touched_again(make_engine: EngineFactory) -> None:
    engine = make_engine(depth=2)
    stream = Words()
    engine.add([3, 4], max_tokens=20, ignore_eos=True, text=stream)
    for _ in range(4):
        engine.step()
    pushed = list(stream.pushed)
    engine.core.abort("1")
    engine.run()
    assert stream.pushed == pushed
    assert engine.core.load().num_finished["abort"] == 1


def test_prompt_logprobs_that_come_twice_are_taken_once(make_engine: EngineFactory) -> None:
    """A sequence that is preempted while a step of its prompt is in flight has those tokens scored again."""
    committer = make_engine().core._committer
    sequence = Sequence("r", [5, 6, 7, 8, 9, 10], SamplingParams(prompt_logprobs=0))

    def commit(first: int, count: int) -> None:
        rows = np.arange(first, first + count)
        output = StepOutput(
            step=1,
            token_ids=np.zeros(count, np.int32),
            num_tokens=np.zeros(1, np.int32),
            is_finite=np.ones(count, np.bool_),
            logprobs=(-rows).astype(np.float32),
            ranks=np.ones(count, np.int32),
            top_ids=None,
            top_logprobs=None,
            extra_logprobs=None,
            pooled=None,
            device_time_s=0.0,
        )
        assert committer.commit([Scheduled(sequence, 0, first, count, False, first, count)], output) == []

    commit(0, 3)
    commit(1, 4)
    assert [entry.token_id for entry in sequence.prompt_logprobs] == [6, 7, 8, 9, 10]
    assert [entry.logprob for entry in sequence.prompt_logprobs] == [0, -1, -2, -3, -4]
