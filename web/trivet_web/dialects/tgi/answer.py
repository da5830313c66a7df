"""One answer in TGI's form: token by token, and whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from trivet.errors import TrivetError
from trivet.messages import TokenLogprob
from trivet.text.detokenizer import IncrementalDetokenizer
from trivet_web.answers.sse import Chunks
from trivet_web.api.completions import ChoiceForm
from trivet_web.api.inference import Exchange
from trivet_web.api.whole_answer import Completed
from trivet_web.dialects.tgi.objects import (
    Details,
    GenerateObject,
    PrefillToken,
    StreamDetails,
    StreamObject,
    TokenObject,
    error_form,
)
from trivet_web.dialects.tgi.request import Parameters
from trivet_web.engines.mailbox import Arrival
from trivet_web.error_objects import error_body

_REASONS = {"length": "length", "stop": "eos_token"}


class TgiAnswer:
    """Of one request."""

    def __init__(self, exchange: Exchange, form: ChoiceForm, inputs: str, asked: Parameters) -> None:
        self.exchange = exchange
        self.tokenizer = exchange.target.model.tokenizer
        self.seed = form.params.seed if asked.draws else None
        self._prompt_ids = form.token_ids[0]
        self._before = inputs if asked.return_full_text else ""
        self._asked = asked

    def whole(self, done: Completed) -> GenerateObject:
        text = self._before + done.text
        if not (self._asked.details or self._asked.decoder_input_details):
            return GenerateObject(text)
        pieces = IncrementalDetokenizer(self.tokenizer, self._prompt_ids, skip_special_tokens=False)
        tokens = [self.token(one, pieces.push([one.token_id])) for one in done.logprobs]
        top = [self.likely(one) for one in done.logprobs] if self._asked.top_n_tokens else UNSET
        return GenerateObject(
            text,
            Details(reason_of(done), done.completion_tokens, self.seed, self._prefill(done), tokens, top),
        )

    def full_text(self, text: str) -> str:
        return self._before + text

    def token(self, entry: TokenLogprob, text: str) -> TokenObject:
        special = entry.token_id in self.tokenizer.special_ids
        return TokenObject(entry.token_id, text, entry.logprob, special)

    def likely(self, entry: TokenLogprob) -> list[TokenObject]:
        """The likeliest ones at its place, as they read alone."""
        special = self.tokenizer.special_ids
        return [
            TokenObject(token_id, self.tokenizer.token_text(token_id), logprob, token_id in special)
            for token_id, logprob in entry.top[: self._asked.top_n_tokens or 0]
        ]

    def _prefill(self, done: Completed) -> list[PrefillToken]:
        if not self._asked.decoder_input_details:
            return []
        logprobs: Sequence[float | None] = [None, *(one.logprob for one in done.prompt_logprobs or ())]
        return [
            PrefillToken(token_id, self.tokenizer.token_text(token_id), logprob)
            for token_id, logprob in zip(self._prompt_ids, logprobs, strict=True)
        ]


def reason_of(done: Completed) -> str:
    """TGI tells a stop string from the model's own end."""
    if done.finish_reason == "stop" and isinstance(done.stop_reason, str):
        return "stop_sequence"
    return _REASONS.get(done.finish_reason, "eos_token")


class TokenEvents(Chunks):
    """An event a token. The text of a step is with its last token: what it made certain."""

    end = b""

    def __init__(self, answer: TgiAnswer) -> None:
        self._answer = answer
        self._index = 0
        self._texts: list[str] = []

    def failed(self, error: TrivetError) -> bytes:
        body, _ = error_form(error_body(error).error, error.status)
        return self.event(body)

    def of(self, arrivals: list[Arrival]) -> Iterable[StreamObject]:
        for arrival in arrivals:
            one = Completed()
            one.add(arrival)
            yield from self._events(one)

    def last(self) -> Iterable[StreamObject]:
        return ()

    def _events(self, step: Completed) -> Iterable[StreamObject]:
        self._texts += step.texts
        for place, entry in enumerate(step.logprobs, start=1):
            is_last = place == len(step.logprobs)
            ends = is_last and bool(step.finish_reason)
            self._index += 1
            yield StreamObject(
                self._index,
                self._answer.token(entry, step.text if is_last else ""),
                self._answer.likely(entry),
                self._answer.full_text("".join(self._texts)) if ends else None,
                self._details(step) if ends else None,
            )

    def _details(self, step: Completed) -> StreamDetails:
        return StreamDetails(reason_of(step), step.completion_tokens, self._answer.seed, step.prompt_tokens)
