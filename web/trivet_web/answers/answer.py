"""The sequences of one API request: sent to engines, read through one mailbox, retried, aborted.

A sequence that is lost before a token of it has gone to the client is sent again, to a replica that has
not had it: of a stream before its first token, of a whole answer at any time. Later it cannot be: other
random numbers would continue another answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from trivet.errors import DeadlinePassed, GenerationError, TrivetError, Unavailable
from trivet.messages import Failure, FinishReason, Piece, Submit
from trivet_registry.usage_store import Tokens
from trivet_web.engines.mailbox import CAPACITY_BYTES, Arrival, Item, Loss, Mailbox
from trivet_web.engines.relay import Relay
from trivet_web.engines.routing import NOWHERE, Claim, Router
from trivet_web.engines.waking import InstanceReady, Waker

Observer = Callable[[list[Arrival], Callable[[int], str]], None]  # arrivals, and instance by choice
MAX_ATTEMPTS = 4  # a request that ends every engine which takes it must not go through all of them
_RETRIED_STATUSES = (429, 503)  # this replica is full, draining or gone; another may not be


class EngineFailure(TrivetError):
    """A `Failure` that an engine sent, with the code and status it gave."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.code, self.status = failure.code, failure.status
        self.retry_after_s, self.param = failure.retry_after_s, failure.param


@dataclass(slots=True)
class _Sequence:
    submit: Submit
    tokens: int  # prompt and completion, at most
    claim: Claim
    tried: frozenset[str] = frozenset()  # instances that have lost or refused it
    num_losses: int = 0  # more than it has tried, where one has come back
    num_tokens: int = 0
    has_ended: bool = False
    last: Piece | None = None  # the newest that was read

    @property
    def request_id(self) -> str:
        """At its engine; of this try alone: an engine that was taken for lost may still send of the last."""
        return f"{self.submit.request_id}~{self.num_losses}" if self.num_losses else self.submit.request_id


class Answer:
    """One reader; `close` at the end, whatever happened."""

    __slots__ = (
        *("mailbox", "num_open", "error", "_is_whole", "_waker", "_relay", "_router", "_deployment"),
        *("_observe", "_sequences"),
    )

    def __init__(
        self,
        relay: Relay,
        router: Router,
        deployment: str,
        observe: Observer,
        capacity_bytes: int = CAPACITY_BYTES,
        *,
        is_whole: bool = False,
        waker: Waker | None = None,
    ) -> None:
        """Nothing is sent before `start`.

        Args:
            waker: for a deployment that is loaded when a request comes.
            capacity_bytes: of what has come and has not been read.
            is_whole: the reader keeps everything until all has come, and heeds `num_restarts`.
        """
        self._is_whole = is_whole
        self._waker = waker
        self.mailbox = Mailbox(capacity_bytes)
        self._relay = relay
        self._router = router
        self._deployment = deployment
        self._observe = observe
        self._sequences: list[_Sequence] = []
        self.num_open = 0  # sequences whose last piece has not been read
        self.error: TrivetError | None = None  # raised when what came before it has been read

    def start(self, submits: Sequence[Submit], max_model_len: int) -> None:
        """Send them all; choice n is `submits[n]`. Those of a group go to one instance, to share KV there.

        Raises: ModelNotFound, Unavailable.
        """
        instances: dict[str, str] = {}  # by group
        for submit in submits:
            tokens = _num_tokens(submit, max_model_len)
            if submit.group in instances:
                claim = self._router.claim(instances[submit.group], tokens)
            else:
                claim = self._choose(submit, tokens)
            if submit.group:
                instances[submit.group] = claim.instance_id
            self._sequences.append(_Sequence(submit, tokens, claim))
        self.num_open = len(submits)
        for choice in range(len(submits)):
            self._send(choice)

    @property
    def finish_reason(self) -> str:
        """Of the first sequence; empty while it has not ended."""
        last = self._sequences[0].last if self._sequences else None
        return "" if last is None else str(last.finish_reason or "")

    def instance_of(self, choice: int) -> str:
        """Where that sequence runs."""
        return self._sequences[choice].claim.instance_id

    def num_restarts(self, choice: int) -> int:
        """How often a whole sequence began anew; what `read` returned of it before does not count."""
        sequence = self._sequences[choice]
        return sequence.num_losses if self._is_whole else 0

    def read(self, timeout_s: float) -> list[Arrival]:
        """Pieces that have come, in order; empty after `timeout_s` without any.

        Raises: EngineLost, ClientGone, or what an engine reported, once the pieces before it have been
            returned; then the answer is over.
        """
        arrivals: list[Arrival] = []
        while not arrivals:
            if self.error is not None:
                raise self.error
            items = self.mailbox.read(timeout_s)
            if not items:
                break
            try:
                for item in items:
                    if isinstance(item, Loss) or item.piece.finish_reason or item.piece.failure:
                        self._take(item, arrivals)
                    else:  # nearly all: without one call more for each
                        self._count(item)
                        arrivals.append(item)
            except TrivetError as error:
                self.error = error
            # Without arrivals these were losses, each of which has gone to another replica.
        self._observe(arrivals, self.instance_of)
        return arrivals

    def tokens(self, num_completions: int) -> Tokens:
        """What was read of one request; a prompt counts once for all of its completions."""
        read = [sequence.last for sequence in self._sequences]
        prompts = [piece for piece in read[::num_completions] if piece is not None]
        return Tokens(
            requests=1,
            prompt=sum(piece.prompt_tokens for piece in prompts),
            cached=sum(piece.cached_tokens for piece in prompts),
            completion=sum(piece.completion_tokens for piece in read if piece is not None),
        )

    def close(self) -> None:
        """Abort what still runs. Idempotent."""
        if self._waker is not None:
            self._waker.forget(self.mailbox)
        for sequence in self._sequences:
            if not sequence.has_ended:
                sequence.has_ended = True
                self._relay.abort(sequence.claim.instance_id, sequence.request_id)
            sequence.claim.release()
        self.num_open = 0

    def _take(self, item: Item, arrivals: list[Arrival]) -> None:
        """Raises: what ends the answer."""
        if isinstance(item, Loss):
            self._on_loss(item, arrivals)
        elif (error := _error_of(item.piece)) is not None:
            self._on_loss(Loss(item.choice, error), arrivals)
        else:
            self._count(item)
            arrivals.append(item)

    def _count(self, arrival: Arrival) -> None:
        sequence, piece = self._sequences[arrival.choice], arrival.piece
        count = len(piece.token_ids)
        if sequence.num_tokens == 0:
            sequence.claim.use(len(sequence.submit.prompt_token_ids))
        sequence.num_tokens += count
        sequence.claim.use(count)
        sequence.last = piece
        if piece.finish_reason is not None:
            sequence.has_ended = True
            self.num_open -= 1
            sequence.claim.release()

    def _on_loss(self, loss: Loss, arrivals: list[Arrival]) -> None:
        """Retry on another replica and drop what came of it, or raise the error."""
        if loss.choice is None:
            raise loss.error
        sequence = self._sequences[loss.choice]
        if isinstance(loss.error, InstanceReady):
            sequence.claim.release()
            sequence.claim = self._choose_with_group(sequence)
            self._send(loss.choice)
            return
        is_retried = (
            loss.error.status in _RETRIED_STATUSES
            and loss.error.code != DeadlinePassed.code  # it has passed everywhere
            and sequence.num_losses < MAX_ATTEMPTS - 1
            and (self._is_whole or sequence.num_tokens == 0)
        )
        sequence.tried |= {sequence.claim.instance_id}
        sequence.num_losses += 1
        sequence.claim.release()
        if not is_retried:
            raise loss.error
        try:
            self._router.table(fresh=True)
            sequence.claim = self._choose(sequence.submit, sequence.tokens, sequence.tried)
        except Unavailable:
            raise loss.error from None
        sequence.num_tokens = 0
        arrivals[:] = [arrival for arrival in arrivals if arrival.choice != loss.choice]
        self._send(loss.choice)

    def _choose_with_group(self, sequence: _Sequence) -> Claim:
        """Where the first of its group went, when what they all waited for is there."""
        submit = sequence.submit
        for other in self._sequences if submit.group else ():
            is_placed = other.claim.instance_id != NOWHERE and not other.num_losses
            if other.submit.group == submit.group and is_placed:
                return self._router.claim(other.claim.instance_id, sequence.tokens)
        return self._choose(submit, sequence.tokens)

    def _choose(self, submit: Submit, tokens: int, tried: frozenset[str] = frozenset()) -> Claim:
        return self._router.choose(
            self._deployment, tokens, tried, submit.prompt_token_ids, submit.cache_salt, submit.adapter
        )

    def _send(self, choice: int) -> None:
        sequence = self._sequences[choice]
        if sequence.claim.instance_id == NOWHERE and self._waker is not None:
            self._waker.wait(self._deployment, self.mailbox, choice, sequence.submit.deadline_s)
            return
        submit = sequence.submit
        if sequence.num_losses:
            submit = msgspec.structs.replace(submit, request_id=sequence.request_id)
        self._relay.submit(sequence.claim.instance_id, submit, self.mailbox, choice)


def _num_tokens(submit: Submit, max_model_len: int) -> int:
    prompt = len(submit.prompt_token_ids)
    completion = submit.params.max_tokens
    return prompt + (max_model_len - prompt if completion is None else completion)


def _error_of(piece: Piece) -> TrivetError | None:
    if piece.failure is not None:
        return EngineFailure(piece.failure)
    if piece.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
        return GenerationError("the engine ended this sequence before it was complete; send it again")
    return None
