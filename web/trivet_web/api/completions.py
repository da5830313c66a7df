"""POST /v1/completions: a prompt as text or token ids, or a list of either; no chat template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from flask import Blueprint, Response
from msgspec import UNSET, UnsetType

from trivet.errors import RequestError, UnsupportedParameter
from trivet.messages import TokenLogprob
from trivet.sampling_params import SamplingParams
from trivet.text.detokenizer import IncrementalDetokenizer
from trivet.text.tokenizer import Tokenizer
from trivet_web.accounts.rights import Right, requires
from trivet_web.answers.chunk_template import ChunkTemplate
from trivet_web.answers.sse import Chunks, stream_response
from trivet_web.api.documented import documented
from trivet_web.api.inference import Exchange, closing_on_error, find_target
from trivet_web.api.logprobs import CompletionLists, EchoedPrompt, prompt_logprobs
from trivet_web.api.openai_objects import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    PromptLogprobs,
    Usage,
)
from trivet_web.api.prompt_items import Given, Item, items_of, token_ids_of
from trivet_web.api.request_body import INSTEAD, read_body, refuse_unsupported
from trivet_web.api.sampling_fields import (
    UNSUPPORTED,
    CompletionFields,
    Integer,
    UsageInStream,
    check_context,
    public_id,
)
from trivet_web.api.truncation import truncated, truncation_of
from trivet_web.api.whole_answer import Completed, usage_of, whole_response
from trivet_web.engines.mailbox import Arrival
from trivet_web.json_response import json_response

blueprint = Blueprint("completions", __name__)
MAX_CHOICES = 256  # of a request: prompts times n
DEFAULT_MAX_TOKENS = 16  # OpenAI's

COMPLETION_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    **{name: neutral for name, neutral in UNSUPPORTED.items() if name != "best_of"},
    "suffix": ("",),
    "prompt_embeds": (),
}


class CompletionRequest(CompletionFields, kw_only=True):
    """What is read of the body."""

    prompt: Given
    logprobs: Integer | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None
    best_of: Integer | None = None

    def check(self) -> None:
        """Raises: RequestError; UnsupportedParameter where more completions are to be made than told."""
        super().check()
        if self.best_of not in (None, 1, self.n):
            raise UnsupportedParameter(
                f"best_of is {self.best_of} and n is {self.n or 1}; this version tells all that it makes: "
                f"{INSTEAD['best_of']}",
                param="best_of",
            )

    def prompts(self) -> list[Item]:
        """Each prompt by itself. Raises: RequestError."""
        items, n = items_of(self.prompt, "prompt"), self.n or 1
        if len(items) > 1 and len(items) * n > MAX_CHOICES:
            raise RequestError(
                f"prompt has {len(items)} items and n is {n}; a request makes at most "
                f"{MAX_CHOICES} completions",
                param="prompt",
            )
        return items

    @property
    def num_logprobs(self) -> int | None:
        """Raises: RequestError."""
        if self.logprobs is not None and not 0 <= self.logprobs <= 20:
            raise RequestError(f"logprobs is {self.logprobs}; it must be between 0 and 20", param="logprobs")
        return self.logprobs


@blueprint.post("/v1/completions")
@requires(Right.INFER)
@documented(Completion, body=CompletionRequest, stream=Completion)
def create() -> Response:
    """One answer to each prompt, whole or streamed. Raises: RequestError, Unavailable, EngineLost."""
    body = read_body(CompletionRequest)
    refuse_unsupported(COMPLETION_UNSUPPORTED)
    if body.max_tokens is None:
        body.max_tokens = DEFAULT_MAX_TOKENS
    with begun(body, "cmpl") as (exchange, form):
        if body.stream:
            return stream_response(exchange, CompletionChunks(exchange, form, body.usage_in_stream))
        return whole_response(exchange, lambda done: _whole(exchange, form, done))


def _whole(exchange: Exchange, form: ChoiceForm, done: list[Completed]) -> Response:
    choices = [form.part(index, one, is_first=True) for index, one in enumerate(done)]
    name = exchange.target.id
    return json_response(Completion(exchange.public_id, exchange.created, name, choices, form.usage(done)))


@contextmanager
def begun(body: CompletionRequest, kind: str) -> Iterator[tuple[Exchange, ChoiceForm]]:
    """Check the request and send it to an engine; what fails in the block ends it.

    Raises: RequestError, Unavailable.
    """
    body.check()
    prompts, max_tokens = body.prompts(), body.max_tokens
    target = find_target(body.model_name)
    params = body.sampling_params(target.model.sampling_defaults, max_tokens, body.num_logprobs)
    if body.echo and params.logprobs is not None:
        wanted = max(params.logprobs, params.prompt_logprobs or 0)
        params = msgspec.structs.replace(params, prompt_logprobs=wanted)
    truncation = truncation_of(body.truncate_prompt_tokens, max_tokens)
    with closing_on_error(Exchange(target, kind, is_streamed=bool(body.stream))) as exchange:
        exchange.public_id = public_id(kind, body.request_id, exchange.id)
        whole = token_ids_of(target, prompts, "prompt", adds_special=body.add_special_tokens is not False)
        token_ids = [truncated(ids, truncation, target.max_model_len) for ids in whole]
        if token_ids != whole:
            prompts = [*token_ids]  # what is echoed
        for ids in token_ids:
            check_context(len(ids), params.max_tokens, target.max_model_len, "prompt")
        num_truncated = sum(map(len, whole)) - sum(map(len, token_ids))
        form = ChoiceForm(body, params, target.model.tokenizer, prompts, token_ids, num_truncated)
        exchange.start(token_ids, params, body)
        yield exchange, form


class ChoiceForm:
    """Makes choices, whole ones or parts: text with the echoed prompt before it, logprobs as asked for."""

    def __init__(
        self,
        body: CompletionRequest,
        params: SamplingParams,
        tokenizer: Tokenizer,
        prompts: list[Item],
        token_ids: list[list[int]],
        num_truncated: int,
    ) -> None:
        self.num_choices = len(prompts) * params.n
        self.params = params
        self._n = params.n
        self._num_truncated = num_truncated
        self._echoes = bool(body.echo)
        self.echoes_logprobs = bool(body.echo) and params.logprobs is not None
        self._prompt_top = body.prompt_logprobs
        self._tokenizer = tokenizer
        self._skips_special = params.skip_special_tokens
        self._prompts = prompts
        self.token_ids = token_ids  # of each prompt
        top = params.logprobs
        shown = (params.skip_special_tokens, params.visible_token_ids)
        self._lists = [
            None
            if top is None
            else CompletionLists(
                tokenizer, top, IncrementalDetokenizer(tokenizer, token_ids[index // params.n], *shown)
            )
            for index in range(self.num_choices)
        ]

    def part(self, index: int, part: Completed, *, is_first: bool) -> CompletionChoice:
        """A choice of what came; `is_first`: with what comes before the first token."""
        is_echoed = self._echoes and is_first
        return CompletionChoice(
            index,
            self._prompt_text(index // self._n) + part.text if is_echoed else part.text,
            self._logprobs(index, part, is_echoed=is_echoed),
            part.finish_reason or None,
            UNSET if part.stop_reason is None else part.stop_reason,
            self._prompt_logprobs(part),
        )

    def usage(self, done: list[Completed]) -> Usage:
        """Of all choices."""
        return usage_of(done, self._n, num_truncated=self._num_truncated)

    def _prompt_text(self, number: int) -> str:
        prompt = self._prompts[number]
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt, self._skips_special)

    def _logprobs(self, index: int, part: Completed, *, is_echoed: bool) -> CompletionLogprobs | None:
        lists = self._lists[index]
        if lists is None or not (part.logprobs or is_echoed or part.finish_reason):
            return None
        number = index // self._n
        echoed = None
        if is_echoed:
            first = self.token_ids[number][0]
            echoed = EchoedPrompt(self._prompt_text(number), first, part.prompt_logprobs or ())
        return lists.of(part.logprobs, echoed)

    def _prompt_logprobs(self, part: Completed) -> PromptLogprobs | UnsetType:
        if self._prompt_top is None or part.prompt_logprobs is None:
            return UNSET
        return prompt_logprobs(part.prompt_logprobs, self._tokenizer, self._prompt_top)


class CompletionChunks(Chunks):
    """One chunk for each choice that something came for.

    Where an echoed prompt has logprobs, its completions wait for the first of them, which brings these.
    """

    def __init__(self, exchange: Exchange, form: ChoiceForm, usage: UsageInStream) -> None:
        self._exchange = exchange
        self._form = form
        self._usage = usage
        self._counts: list[Completed | None] = [None] * form.num_choices
        self._scores: dict[int, list[TokenLogprob] | None] = {}  # of the prompts, by the first choice of each
        self._early: list[Arrival] = []  # before these
        has_logprobs = form.params.logprobs is not None or form.params.prompt_logprobs is not None
        self._is_plain = not has_logprobs and usage is not UsageInStream.ALWAYS
        self._templates: dict[int, ChunkTemplate] = {}  # by choice

    def encoded(self, arrivals: list[Arrival]) -> bytes:
        arrival = arrivals[0]
        if (
            len(arrivals) > 1
            or not self._is_plain
            or self._counts[arrival.choice] is None
            or arrival.piece.finish_reason is not None
        ):
            return super().encoded(arrivals)
        return self._template(arrival.choice).of(arrival.piece.text) if arrival.piece.text else b""

    def _template(self, index: int) -> ChunkTemplate:
        if index not in self._templates:
            self._templates[index] = ChunkTemplate(
                lambda text: self.event(self._chunk([CompletionChoice(index, text)], None))
            )
        return self._templates[index]

    def of(self, arrivals: list[Arrival]) -> Iterable[Completion]:
        by_choice: dict[int, Completed] = {}
        for arrival in self._take_ready(arrivals):
            by_choice.setdefault(arrival.choice, Completed()).add(arrival)
        for index, joined in by_choice.items():
            is_first = self._counts[index] is None
            joined.prompt_logprobs = self._scores.get(self._first_of(index))
            self._counts[index] = joined
            choice = self._form.part(index, joined, is_first=is_first)
            if choice.text or choice.logprobs is not None or choice.finish_reason:
                is_counted = self._usage is UsageInStream.ALWAYS
                yield self._chunk([choice], self._usage_so_far() if is_counted else None)

    def _take_ready(self, arrivals: list[Arrival]) -> list[Arrival]:
        for arrival in arrivals:
            choice = arrival.choice
            if choice == self._first_of(choice) and choice not in self._scores:
                self._scores[choice] = arrival.piece.prompt_logprobs
        arrivals = self._early + arrivals
        self._early = [one for one in arrivals if not self._is_ready(one)]
        return [one for one in arrivals if self._is_ready(one)]

    def _is_ready(self, arrival: Arrival) -> bool:
        return not self._form.echoes_logprobs or self._first_of(arrival.choice) in self._scores

    def _first_of(self, choice: int) -> int:
        return choice - choice % self._exchange.num_completions

    def last(self) -> Iterable[msgspec.Struct]:
        if self._usage is not UsageInStream.NONE:
            yield self._chunk([], self._usage_so_far())

    def _usage_so_far(self) -> Usage:
        return self._form.usage([one or Completed() for one in self._counts])

    def _chunk(self, choices: list[CompletionChoice], usage: Usage | None) -> Completion:
        exchange = self._exchange
        shown = UNSET if self._usage is UsageInStream.NONE else usage
        return Completion(exchange.public_id, exchange.created, exchange.target.id, choices, shown)
