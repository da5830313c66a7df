"""Whole answers: what has come of a request is kept until all is there, and no thread waits meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flask import Response
from msgspec import UNSET

from trivet.messages import TokenLogprob
from trivet_web.answers.request_log import RequestEnded
from trivet_web.api.inference import Exchange, closing_on_error
from trivet_web.api.openai_objects import CompletionTokensDetails, PromptTokensDetails, Usage
from trivet_web.engines.mailbox import PIECE_BYTES, Arrival
from trivet_web.stream_worker.handover import handover_of_request, park
from trivet_web.stream_worker.pump import MAX_HELD_BYTES

_TEXT_BYTES = 64  # of a piece of which only the text is kept, beside the text
READ_S = 60.0  # a whole answer has no pings: only a wake-up to look around


@dataclass(slots=True)
class Completed:
    """A sequence's whole text, or as much as has come."""

    texts: list[str] = field(default_factory=list)  # to be joined once: adding to a text copies it
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] | None = None
    finish_reason: str = ""
    stop_reason: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    first_s: float = 0.0  # CLOCK_MONOTONIC, when the first of these pieces came
    last_s: float = 0.0

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, arrival: Arrival) -> None:
        piece = arrival.piece
        self.first_s, self.last_s = self.first_s or arrival.at_s, arrival.at_s
        self.texts.append(piece.text)
        self.token_ids += piece.token_ids
        self.logprobs.extend(piece.logprobs or ())
        if piece.prompt_logprobs is not None:
            self.prompt_logprobs = piece.prompt_logprobs
        self.completion_tokens = piece.completion_tokens
        self.prompt_tokens = piece.prompt_tokens
        self.cached_tokens = piece.cached_tokens
        if piece.finish_reason is not None:
            self.finish_reason = str(piece.finish_reason)
            self.stop_reason = piece.stop_reason


class Gathering:
    """All sequences of a request that has been sent."""

    def __init__(self, exchange: Exchange) -> None:
        self._answer = exchange.answer
        self._n = exchange.num_completions
        self._done = [Completed() for _ in range(self._answer.num_open)]
        self._restarts = [0] * len(self._done)
        self._kept_bytes = [0] * len(self._done)
        self._failure: Exception | None = None

    @property
    def kept_bytes(self) -> int:
        """About what has come, in memory."""
        return sum(self._kept_bytes)

    def give_up(self) -> None:
        """There is no memory for more; who answers the request says so."""
        self._failure = RequestEnded(
            f"the answers that this web process keeps until they are whole take more than "
            f"{MAX_HELD_BYTES >> 20} MiB, and this one was the largest; stream it, or ask for fewer tokens, "
            "completions or logprobs"
        )

    @property
    def is_complete(self) -> bool:
        return not self._answer.num_open

    def take(self, timeout_s: float) -> None:
        """What has come, or comes in time. Raises: what ended it early."""
        if self._failure is not None:
            raise self._failure
        for arrival in self._answer.read(timeout_s):
            choice = arrival.choice
            if self._restarts[choice] != self._answer.num_restarts(choice):
                self._restarts[choice], self._done[choice] = self._answer.num_restarts(choice), Completed()
                self._kept_bytes[choice] = 0
            self._done[choice].add(arrival)
            self._kept_bytes[choice] += arrival.size_bytes - PIECE_BYTES + _TEXT_BYTES

    def take_all(self) -> bool:
        """What has come; whether it is over. For a thread that must not wait, and that no error may end."""
        try:
            self.take(0.0)
        except Exception as error:  # a border: whoever answers the request raises it
            self._failure = error
        return self.is_complete or self._failure is not None

    def result(self) -> list[Completed]:
        """When it is complete."""
        for index, one in enumerate(self._done):
            first = self._done[index - index % self._n]  # which scores their prompt
            one.prompt_logprobs = first.prompt_logprobs
        return self._done


def whole_response(exchange: Exchange, make: Callable[[list[Completed]], Response]) -> Response:
    """What `make` makes of the whole answer; then the exchange is closed. Raises: what ended it early."""
    gathering, mailbox = Gathering(exchange), exchange.answer.mailbox

    def go_on() -> Response:
        with closing_on_error(exchange):
            gathering.take(0.0)
            while not gathering.is_complete and (mailbox.num_unread or handover_of_request() is None):
                gathering.take(READ_S)
            if not gathering.is_complete:
                return park(mailbox, math.inf, go_on, exchange.close, gathering)
            exchange.close()
            return make(gathering.result())

    return go_on()


def read_whole(exchange: Exchange) -> list[Completed]:
    """Wait for all of it, in this thread. Raises: what ended it early."""
    gathering = Gathering(exchange)
    while not gathering.is_complete:
        gathering.take(READ_S)
    return gathering.result()


def usage_of(
    done: Sequence[Completed],
    num_completions: int,
    num_reasoning: int | None = None,
    num_truncated: int = 0,
) -> Usage:
    """Sums over the sequences of a request; a prompt counts once for all of its completions.

    Args:
        num_reasoning: tokens; None where the model does not think.
        num_truncated: tokens left out of the prompt, as the request wanted.
    """
    firsts = done[::num_completions]
    prompt = sum(one.prompt_tokens for one in firsts)
    completion = sum(one.completion_tokens for one in done)
    cached = sum(one.cached_tokens for one in firsts)  # the others find what the first one computed
    details = PromptTokensDetails(cached, num_truncated or UNSET)
    reasoning = UNSET if num_reasoning is None else CompletionTokensDetails(num_reasoning)
    return Usage(prompt, completion, prompt + completion, details, reasoning)
