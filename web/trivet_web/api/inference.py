"""What chat and completions have in common: from token ids to a running answer."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec
from flask import request
from msgspec import structs

from trivet import metrics
from trivet.errors import RequestError, TrivetError
from trivet.messages import Submit
from trivet.sampling_params import SamplingParams
from trivet.text.reasoning import FORMATS as REASONING_FORMATS
from trivet.text.reasoning import ReasoningFormat
from trivet.text.tool_calls.formats import FORMATS as TOOL_FORMATS
from trivet.text.tool_calls.parser import ToolParser
from trivet_registry.usage_store import Tokens
from trivet_web.accounts.principal import principal_of_request
from trivet_web.answers.answer import Answer
from trivet_web.answers.request_log import CANCELLED, DONE, FAILED, Entry
from trivet_web.api.sampling_fields import SamplingFields
from trivet_web.engines.fallback import model_of_request
from trivet_web.engines.mailbox import CAPACITY_BYTES, WHOLE_CAPACITY_BYTES, ClientGone
from trivet_web.engines.routing import Deployed
from trivet_web.inner_request import inner_request
from trivet_web.metrics.request_timer import RequestTimer
from trivet_web.models.model_names import ModelName, check_known
from trivet_web.models.served_models import ServedModel
from trivet_web.request_name import request_id
from trivet_web.stream_worker.handover import handover_of_request
from trivet_web.web_process import WebProcess, now_s, web_process

logger = logging.getLogger(__name__)
MAX_SETTINGS_BYTES = 8 << 20  # of all completions of a request, each of which carries its own copy
MAX_PROMPT_SCORES = 1 << 21  # prompt logprobs of a request: 100 bytes each, here and in the engine
MAX_SCORES = 1 << 22  # logprobs of a whole answer, which is kept until its end: 100 bytes each


@dataclass(frozen=True, slots=True)
class Target:
    """The deployment that a request names, and its model's text side."""

    deployed: Deployed
    model: ServedModel
    adapter: str = ""  # of the deployment; empty: its own model answers

    @property
    def id(self) -> str:
        """As `/v1/models` has it."""
        return ModelName(self.deployed.name, self.adapter).id

    @property
    def max_model_len(self) -> int:
        return self.deployed.max_model_len or self.model.context_length

    @property
    def tool_format(self) -> type[ToolParser] | None:
        """How its model writes calls; None: unknown."""
        name = self.deployed.settings.get("tool_call_parser", "auto")
        return self.model.tool_format if name == "auto" else TOOL_FORMATS.get(name)

    @property
    def reasoning_format(self) -> ReasoningFormat | None:
        """None: it does not think, or its thinking is left in the answer."""
        name = self.deployed.settings.get("reasoning_parser", "auto")
        return self.model.reasoning_format if name == "auto" else REASONING_FORMATS.get(name)

    @property
    def trusts_request_template(self) -> bool:
        return self.deployed.settings.get("trust_request_chat_template") == "true"


def find_target(name: ModelName) -> Target:
    """The deployment, or what stands in for it (engines/fallback.py): with its adapter of the same name.

    Raises: ModelNotFound, Unavailable with state and reason, ModelFilesError.
    """
    process = web_process()
    name = replace(name, deployment=model_of_request(name.deployment))
    check_known(name)
    deployed = process.router.ready(name.deployment, name.adapter)
    return Target(deployed, process.models.get(deployed.files), name.adapter)


class Exchange:
    """One API request on its way: its answer, its watched socket, its slot. `close` ends all of it."""

    def __init__(
        self, target: Target, kind: str, *, is_streamed: bool = False, holds_thread: bool = False
    ) -> None:
        """Args: holds_thread: until it has ended, whatever the server could take over."""
        self.target = target
        self.id = f"{kind}-{secrets.token_hex(12)}"
        self.created = now_s()
        self._process: WebProcess = web_process()
        self._begun_s = time.monotonic()
        self._timer = RequestTimer(
            self._process.metrics, target.deployed.name, self._begun_s, self._process.router.place_of
        )
        self._request_id = request_id()  # of the HTTP request, as its answer has it
        self._fd = client_fd()
        self._principal = principal_of_request()
        inner = inner_request()
        takes_slot = inner is None and (holds_thread or handover_of_request() is None)
        self._give_slot_back = self._process.slots.take() if takes_slot else _nothing
        try:
            self._leave = self._process.limits.enter(self._principal)
        except BaseException:
            self._give_slot_back()
            raise
        self.answer = Answer(
            self._process.relay,
            self._process.router,
            target.deployed.name,
            self._timer.observe,
            CAPACITY_BYTES if is_streamed else WHOLE_CAPACITY_BYTES,
            is_whole=not is_streamed,
            waker=self._process.waker,
        )
        self._entry = Entry(
            id=self.id,
            at_s=time.time(),
            begun_s=self._begun_s,
            model=target.deployed.name,
            adapter=target.adapter,
            route=request.path,
            who=self._principal.name,
            is_streamed=is_streamed,
            course=self._timer.course,
            stop=self.answer.mailbox.fail,
        )
        self._process.requests.begin(self._entry)
        self.public_id = self.id  # in the answer; a client may choose it, so that two may have the same
        self.num_completions = 1  # of each prompt
        self._is_open = True
        self._has_failed = False
        self._error: BaseException | None = None
        try:
            if self._fd is not None:
                self._process.hang_up.watch(self._fd, self._on_client_gone)
            if inner is not None:
                inner.on_end(self._on_client_gone)
        except BaseException:  # without memory in the kernel, for one
            self.close()
            raise

    def start(self, prompts: Sequence[list[int]], params: SamplingParams, fields: SamplingFields) -> None:
        """Choice number * n + index is the completion `index` of prompt `number`.

        Raises: RequestError for more than is carried; ModelNotFound, Unavailable.
        """
        check_settings(params, fields.cache_salt, len(prompts), "prompt")
        _check_scores(params, sum(map(len, prompts)))
        if not self._entry.is_streamed:
            _check_kept_scores(params, [self.target.max_model_len - len(ids) for ids in prompts])
        self.num_completions = params.n
        deadline_s = self.deadline_s(fields.timeout)
        submits = [
            Submit(
                f"{self.id}-{number}-{index}",
                ids,
                params.child(index),
                priority=fields.priority or 0,
                cache_salt=fields.cache_salt or "",
                group=f"{self.id}-{number}" if params.n > 1 else "",
                index=index,
                deadline_s=deadline_s,
            )
            for number, ids in enumerate(prompts)
            for index in range(params.n)
        ]
        self.submit(submits)

    def submit(self, submits: Sequence[Submit]) -> None:
        """Raises: ModelNotFound, Unavailable."""
        sent_s = time.monotonic()
        if worst := self._principal.priority:  # a key may ask for none better than its own
            submits = [structs.replace(one, priority=max(one.priority, worst)) for one in submits]
        if adapter := self.target.adapter:
            submits = [structs.replace(one, adapter=adapter) for one in submits]
        self.answer.start(submits, self.target.max_model_len)
        self._timer.sent(sent_s, self.answer.instance_of(0))

    def deadline_s(self, timeout_s: float | None) -> float | None:
        """CLOCK_MONOTONIC, of a timeout that counts from the request's arrival."""
        return None if timeout_s is None else self._begun_s + timeout_s

    @property
    def begun_s(self) -> float:
        """CLOCK_MONOTONIC, when the request came."""
        return self._begun_s

    def close(self) -> None:
        """Idempotent."""
        if self._is_open:
            self._is_open = False
            logger.info(
                "request_id=%s answer=%s model=%s duration_s=%.3f",
                self._request_id,
                self.public_id,
                self.target.id,
                time.monotonic() - self._begun_s,
            )
            if self._fd is not None:
                self._process.hang_up.forget(self._fd)
            self.count_failure(self.answer.error)
            self.answer.close()
            self._give_slot_back()
            self._leave()
            tokens = self.answer.tokens(self.num_completions)
            self._process.usage.add(self._principal, self.target.deployed.name, tokens)
            self._log_end(tokens)

    def _log_end(self, tokens: Tokens) -> None:
        entry, error = self._entry, self.answer.error or self._error
        entry.prompt_tokens, entry.cached_tokens = tokens.prompt, tokens.cached
        entry.completion_tokens = tokens.completion
        is_cut = error is None and not self.answer.finish_reason
        if is_cut or isinstance(error, ClientGone):
            entry.status, entry.reason = CANCELLED, ClientGone.code
        elif error is not None:
            entry.status, entry.reason = FAILED, getattr(error, "code", type(error).__name__)
        else:
            entry.status, entry.reason = DONE, self.answer.finish_reason
        self._process.requests.end(entry)

    def count_failure(self, error: BaseException | None) -> None:
        """Once a request; of a client that has gone nothing failed."""
        self._error = self._error or error
        if isinstance(error, TrivetError) and not isinstance(error, ClientGone) and not self._has_failed:
            self._has_failed = True
            name = self.target.deployed.name
            self._process.metrics.count(metrics.REQUEST_FAILURES, name, error.code)

    def _on_client_gone(self) -> None:
        self.answer.mailbox.fail(ClientGone("the client closed the connection"))


def _nothing() -> None:
    """There is no slot to give back."""


def check_settings(params: SamplingParams, cache_salt: str | None, num_prompts: int, field: str) -> None:
    """50,000 biases are fine for one completion; for 128 they took the engine 8 s and a GB.

    Raises: RequestError naming n, or the field of the prompts.
    """
    num_completions = num_prompts * params.n
    size_bytes = len(msgspec.msgpack.encode(params)) + len(cache_salt or "")
    if num_completions > 1 and size_bytes * num_completions > MAX_SETTINGS_BYTES:
        raise RequestError(
            f"the settings of a sequence (logit_bias, allowed_token_ids, cache_salt, ...) take {size_bytes} "
            f"bytes and {num_completions} sequences are asked for; at most {MAX_SETTINGS_BYTES} bytes in "
            "all are carried: ask for fewer, or shorten the settings",
            param="n" if params.n > 1 else field,
        )


def _check_scores(params: SamplingParams, num_prompt_tokens: int) -> None:
    if params.prompt_logprobs is None:
        return
    num_scores = num_prompt_tokens * params.n * (1 + params.prompt_logprobs)
    if num_scores > MAX_PROMPT_SCORES:
        raise RequestError(
            f"{num_prompt_tokens} prompt tokens, n {params.n} and {params.prompt_logprobs} logprobs for each "
            f"are {num_scores} logprobs of the prompt; a request gets at most {MAX_PROMPT_SCORES}: "
            "lower n or the number of logprobs, or send fewer prompts",
            param="prompt_logprobs",
        )


def _check_kept_scores(params: SamplingParams, longest: Sequence[int]) -> None:
    """Args: longest: the most tokens that may follow each prompt."""
    if params.logprobs is None:
        return
    most = params.max_tokens
    num_tokens = sum(one if most is None else min(most, one) for one in longest)
    num_scores = num_tokens * params.n * (1 + params.logprobs)
    if num_scores > MAX_SCORES:
        raise RequestError(
            f"{num_tokens} tokens, n {params.n} and {params.logprobs} logprobs for each are {num_scores} "
            f"logprobs; an answer that is not streamed has at most {MAX_SCORES}: lower max_tokens, n or the "
            "number of logprobs, or stream it",
            param="logprobs",
        )


@contextmanager
def closing_on_error(exchange: Exchange) -> Iterator[Exchange]:
    """Close it where the block raises; else the response does, when it has been sent."""
    try:
        yield exchange
    except BaseException as error:
        exchange.count_failure(error)
        exchange.close()
        raise


def client_fd() -> int | None:
    """The client's socket under gunicorn; None where there is none to watch."""
    socket = request.environ.get("gunicorn.socket")
    return None if socket is None else int(socket.fileno())
