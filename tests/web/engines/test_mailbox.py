from __future__ import annotations

import threading

import pytest

from trivet.errors import EngineLost
from trivet.messages import FinishReason, Piece, TokenLogprob
from trivet_web.engines.mailbox import MAX_READ, Arrival, ClientGone, Loss, Mailbox


def piece(text: str = "x") -> Piece:
    return Piece("r", text, [1])


def test_items_come_in_order_in_bounded_turns() -> None:
    mailbox = Mailbox()
    for number in range(MAX_READ + 3):
        assert mailbox.put(0, piece(str(number)), float(number))
    first, second = mailbox.read(0), mailbox.read(0)
    assert [item.at_s for item in first + second if isinstance(item, Arrival)] == list(range(MAX_READ + 3))
    assert (len(first), len(second)) == (MAX_READ, 3)
    assert mailbox.read(0) == []


@pytest.mark.parametrize("meets", ["before it sleeps", "asleep"])
def test_reader_that_waits_in_a_thread_misses_nothing(monkeypatch: pytest.MonkeyPatch, meets: str) -> None:
    mailbox = Mailbox()

    class Meeting(threading.Event):
        """A piece comes at the worst moment."""

        def __init__(self) -> None:
            super().__init__()
            if meets == "before it sleeps":
                mailbox.put(0, piece(), 1.0)

        def wait(self, timeout: float | None = None) -> bool:
            assert not mailbox.num_unread, "it sleeps beside a piece"
            mailbox.put(0, piece(), 1.0)
            assert self.is_set(), "nobody wakes it"
            return True

    monkeypatch.setattr(threading, "Event", Meeting)
    assert [item.at_s for item in mailbox.read(600.0) if isinstance(item, Arrival)] == [1.0]


def test_reader_that_stays_behind_is_refused_until_it_reads() -> None:
    mailbox = Mailbox(capacity_bytes=1000)
    taken = 0
    while mailbox.put(0, piece(), 0.0):
        taken += 1
    assert 0 < taken < 20
    mailbox.read(0)
    assert mailbox.put(0, piece(), 0.0)


@pytest.mark.parametrize(
    "large",
    [
        Piece("r", "x" * 2500, [1]),
        Piece("r", "x", [1] * 400),
        Piece("r", "x", [1], logprobs=[TokenLogprob(1, -1.0, 1, [(i, -1.0) for i in range(100)])]),
        Piece("r", "x", [1], prompt_logprobs=[TokenLogprob(1, -1.0, 1, [])] * 70),
        Piece("r", "", [], embedding=bytes(10_000)),
    ],
    ids=["text", "tokens", "top logprobs", "prompt logprobs", "embedding"],
)
def test_whatever_a_piece_holds_counts(large: Piece) -> None:
    mailbox = Mailbox(capacity_bytes=10_000)
    assert mailbox.put(0, piece(), 0.0)
    assert not mailbox.put(0, large, 0.0)


def test_loss_always_fits() -> None:
    mailbox = Mailbox(capacity_bytes=0)
    assert mailbox.put(0, piece(), 0.0), "a reader who has read all takes a piece of any size"
    assert not mailbox.put(0, piece(), 0.0)
    mailbox.read(0)
    error = EngineLost("gone")
    mailbox.fail(error, 0)
    assert mailbox.read(0) == [Loss(0, error)]


def test_reader_is_told_once_until_it_reads_and_of_each_loss() -> None:
    mailbox = Mailbox()
    told: list[int] = []
    mailbox.put(0, piece(), 0.0)
    mailbox.listen(lambda: told.append(mailbox.num_unread))
    mailbox.put(0, piece(), 0.0)
    assert told == [1], "of what was there; the second piece is found with the first"
    mailbox.read(0)
    mailbox.put(0, piece(), 0.0)
    assert told == [1, 1]
    mailbox.fail(ClientGone("it left"))
    assert (told, mailbox.is_abandoned) == ([1, 1, 2], True)


@pytest.mark.parametrize("end", [FinishReason.ERROR, FinishReason.ABORT])
def test_reader_knows_before_it_reads_that_another_replica_may_be_asked(end: FinishReason) -> None:
    mailbox = Mailbox()
    mailbox.put(0, piece(), 0.0)
    assert not mailbox.may_wait
    mailbox.put(0, Piece("r", "", [], end), 0.0)
    assert mailbox.may_wait
    mailbox.read(0)
    assert not mailbox.may_wait
    mailbox.fail(EngineLost("gone"), 0)
    assert mailbox.may_wait


def test_reader_knows_before_it_reads_of_an_end_that_is_slow() -> None:
    mailbox = Mailbox()
    mailbox.ends_slowly = True
    for number in range(MAX_READ):
        mailbox.put(0, piece(str(number)), 0.0)
    assert not mailbox.may_wait
    mailbox.put(0, Piece("r", "", [], FinishReason.STOP), 0.0)
    assert mailbox.may_wait
    mailbox.read(0)
    assert mailbox.may_wait, "the end is still there"
    mailbox.read(0)
    assert not mailbox.may_wait
