"""An answer whose engine is lost: what came before counts, and others are asked before the first token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trivet.errors import EngineLost, TrivetError, Unavailable
from trivet.messages import Failure, FinishReason, Piece, Submit
from trivet.sampling_params import SamplingParams
from trivet_web.answers.answer import MAX_ATTEMPTS, Answer
from trivet_web.engines.mailbox import Arrival, Mailbox
from trivet_web.engines.routing import Claim


class Engines:
    """A relay and a router at once: two replicas, of which each can be excluded."""

    def __init__(self) -> None:
        self.replicas = "ab"
        self.sent: list[str] = []
        self.request_ids: list[str] = []
        self.aborted: list[tuple[str, str]] = []
        self.seen: list[Arrival] = []
        self.on_submit: Callable[[], object] = lambda: None

    def choose(
        self, _name: str, tokens: int, exclude: frozenset[str], _prompt: list[int], _salt: str, _adapter: str
    ) -> Claim:
        left = [one for one in self.replicas if one not in exclude]
        if not left:
            raise Unavailable("nothing is left")
        return Claim(self, left[0], tokens)  # type: ignore[arg-type]

    def claim(self, instance_id: str, tokens: int) -> Claim:
        return Claim(self, instance_id, tokens)  # type: ignore[arg-type]

    def table(self, *, fresh: bool = False) -> None: ...

    def give_back(self, instance_id: str, tokens: int) -> None: ...

    def submit(self, instance_id: str, request: Submit, _mailbox: Mailbox, _choice: int) -> None:
        self.sent.append(instance_id)
        self.request_ids.append(request.request_id)
        self.on_submit()

    def abort(self, instance_id: str, request_id: str) -> None:
        self.aborted.append((instance_id, request_id))


@pytest.fixture
def engines() -> Engines:
    return Engines()


@pytest.fixture
def answer(engines: Engines) -> Answer:
    made = Answer(engines, engines, "demo", lambda new, _where: engines.seen.extend(new))  # type: ignore[arg-type]
    made.start([Submit("r-0", [1, 2], SamplingParams(max_tokens=8))], 64)
    return made


def piece(token: int, reason: FinishReason | None = None) -> Piece:
    return Piece("r-0", f"w{token} ", [token], reason)


def test_pieces_before_a_loss_are_read_before_it_is_raised(answer: Answer, engines: Engines) -> None:
    answer.mailbox.put(0, piece(1), 0.0)
    answer.mailbox.put(0, piece(2), 0.0)
    answer.mailbox.fail(EngineLost("it ended"), 0)
    assert [arrival.piece.text for arrival in answer.read(1)] == ["w1 ", "w2 "]
    assert len(engines.seen) == 2
    assert answer.num_open == 1, "a lost sequence must not look complete"
    with pytest.raises(EngineLost):
        answer.read(1)
    assert engines.sent == ["a"], "another replica would send these tokens again"


def test_loss_before_the_first_token_goes_to_a_replica_that_has_not_had_it(
    answer: Answer, engines: Engines
) -> None:
    answer.mailbox.fail(EngineLost("it ended"), 0)
    assert answer.read(0.01) == []
    assert engines.sent == ["a", "b"]
    answer.mailbox.fail(EngineLost("that one, too"), 0)
    with pytest.raises(EngineLost, match="too"):
        answer.read(1)
    assert engines.sent == ["a", "b"]


def test_a_whole_answer_begins_anew_since_nothing_of_it_was_sent(engines: Engines) -> None:
    whole = Answer(engines, engines, "demo", lambda new, _where: None, is_whole=True)  # type: ignore[arg-type]
    whole.start([Submit("r-0", [1, 2], SamplingParams(max_tokens=8))], 64)
    whole.mailbox.put(0, piece(1), 0.0)
    assert [arrival.piece.text for arrival in whole.read(1)] == ["w1 "]
    whole.mailbox.put(0, piece(2), 0.0)
    whole.mailbox.fail(EngineLost("it ended"), 0)
    assert whole.read(0.01) == [], "the second token of an attempt that does not count"
    assert (engines.sent, whole.num_restarts(0)) == (["a", "b"], 1)
    whole.mailbox.put(0, piece(1, FinishReason.STOP), 0.0)
    assert [arrival.piece.text for arrival in whole.read(1)] == ["w1 "]
    assert whole.num_open == 0


def test_a_request_that_ends_every_engine_does_not_go_through_all_of_them(
    answer: Answer, engines: Engines
) -> None:
    engines.replicas = "abcdefgh"
    for _ in range(MAX_ATTEMPTS - 1):
        answer.mailbox.fail(EngineLost("it ended"), 0)
        assert answer.read(0.01) == []
    answer.mailbox.fail(EngineLost("the last"), 0)
    with pytest.raises(EngineLost, match="last"):
        answer.read(1)
    assert engines.sent == list("abcd")


def test_a_request_that_ends_the_same_instance_each_time_it_comes_back_is_given_up(engines: Engines) -> None:
    """A deployment that is loaded on demand, of one replica: it is waited for, and met again."""
    engines.choose = lambda *_: Claim(engines, "a", 10)  # type: ignore[method-assign, assignment, arg-type]
    whole = Answer(engines, engines, "demo", lambda new, _where: None, is_whole=True)  # type: ignore[arg-type]
    whole.start([Submit("r-0", [1, 2], SamplingParams(max_tokens=8))], 64)
    for loss in range(MAX_ATTEMPTS - 1):
        assert whole.num_restarts(0) == loss, "what came of each attempt is told from the next"
        whole.mailbox.put(0, piece(1), 0.0)
        assert len(whole.read(1)) == 1
        whole.mailbox.fail(EngineLost("it ended"), 0)
        assert whole.read(0.01) == []
    whole.mailbox.fail(EngineLost("it ended"), 0)
    with pytest.raises(EngineLost):
        whole.read(1)
    assert engines.sent == ["a"] * MAX_ATTEMPTS


def test_each_try_has_an_id_of_its_own_under_which_it_is_aborted(answer: Answer, engines: Engines) -> None:
    """An engine that was frozen sends of the last one, when it has the next one already."""
    engines.choose = lambda *_: Claim(engines, "a", 10)  # type: ignore[method-assign, assignment, arg-type]
    for _ in range(2):
        answer.mailbox.fail(EngineLost("it was silent"), 0)
        assert answer.read(0.01) == []
    assert engines.sent == ["a"] * 3
    assert len(set(engines.request_ids)) == 3
    answer.close()
    assert engines.aborted == [("a", engines.request_ids[-1])]


def test_the_completions_of_one_prompt_go_to_one_replica(engines: Engines) -> None:
    turns = iter("abab")
    engines.choose = lambda _name, tokens, *_: Claim(engines, next(turns), tokens)  # type: ignore[method-assign,assign,arg-type]
    made = Answer(engines, engines, "demo", lambda new, _where: None)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=8)
    groups = ["g", "g", "g", "h", "h", "", ""]
    made.start([Submit(f"r-{n}", [1], params, group=group) for n, group in enumerate(groups)], 64)
    assert engines.sent == ["a", "a", "a", "b", "b", "a", "b"]


def test_two_replicas_that_refuse_are_one_failure_with_its_own_status(
    engines: Engines, answer: Answer
) -> None:
    refusal = Piece(
        "r-0", "", [], FinishReason.ERROR, failure=Failure("the queue is full", "overloaded", 429)
    )
    engines.on_submit = lambda: answer.mailbox.put(0, refusal, 0.0)
    answer.mailbox.put(0, refusal, 0.0)
    with pytest.raises(TrivetError, match="full") as refused:
        answer.read(1)
    assert refused.value.status == 429


def test_passed_deadline_is_not_tried_elsewhere(engines: Engines, answer: Answer) -> None:
    failure = Failure("nothing was ready", "deadline_passed", 503, 7)
    num_sent = len(engines.sent)
    answer.mailbox.put(0, Piece("r-0", "", [], FinishReason.ERROR, failure=failure), 0.0)
    with pytest.raises(TrivetError, match="nothing was ready") as refused:
        answer.read(1)
    assert refused.value.retry_after_s == 7
    assert len(engines.sent) == num_sent


def test_loss_of_the_whole_request_is_not_retried(answer: Answer, engines: Engines) -> None:
    answer.mailbox.fail(EngineLost("the server is shutting down"))
    with pytest.raises(EngineLost, match="shutting down"):
        answer.read(1)
    assert engines.sent == ["a"]


def test_sequence_that_has_ended_is_not_lost_afterwards(answer: Answer) -> None:
    answer.mailbox.put(0, piece(1, FinishReason.STOP), 0.0)
    answer.mailbox.fail(EngineLost("it ended"))
    assert len(answer.read(1)) == 1
    assert answer.num_open == 0
