"""Offline inference in one process: `LLM(model).generate(prompts, SamplingParams(...))`.

The same core, scheduler and runner as in an engine process, driven by the caller's thread. Names and
result objects follow vLLM's offline API, so that scripts written for it run with the import changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from tqdm import tqdm

from trivet.adapters import LoRARequest, adapter_per_prompt
from trivet.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from trivet.config import home_paths
from trivet.engine.assembly import Engine, assemble
from trivet.engine.measured_peaks import PeakStore
from trivet.engine.new_sequence import make_sequence
from trivet.engine.placement import place
from trivet.engine.sequence import Sequence as EngineSequence
from trivet.engine_settings import parse_engine_settings, spelled_settings
from trivet.errors import GenerationError, Overloaded, RequestError, Unavailable
from trivet.interrupts import held_back_interrupt
from trivet.loading_bar import LoadingBar
from trivet.models.model_files import open_model
from trivet.outputs import (
    CompletionOutput,
    EmbeddingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
    score_of,
)
from trivet.plugins import load_plugins
from trivet.pooling_params import PoolingParams
from trivet.prompt_forms import (
    Conversation,
    Prompt,
    as_conversations,
    as_prompts,
    params_per_prompt,
    priority_per_prompt,
    text_pairs,
    texts_and_ids,
)
from trivet.sampling_params import SamplingParams
from trivet.text.chat_template import ChatTemplate
from trivet.text.scoring_prompt import QWEN3_INSTRUCTION, QWEN3_RERANKER, ScoringPrompt, single_token
from trivet.text.tokenizer import Tokenizer

T = TypeVar("T", RequestOutput, EmbeddingRequestOutput)
NO_DRAWS = SamplingParams(max_tokens=1)  # of a sequence that is embedded


class LLM:
    """One loaded model.

    Args:
        model: a folder in Hugging Face layout or a GGUF file.
        backend: "auto", or the name of an installed backend.
        device: uid or index of a device; None lets the backend choose.
        settings: engine settings by vLLM's names (`engine_settings.EngineSettings`), such as `dtype`,
            `max_model_len`, `max_num_seqs`, `gpu_memory_utilization`, `enable_prefix_caching`; and
            `options`, a mapping of the backend's own.

    Raises: ConfigError, ModelFilesError, BackendError.
    """

    def __init__(
        self, model: str | Path, *, backend: str = "auto", device: str | None = None, **settings: object
    ) -> None:
        parsed, peaks = parse_engine_settings(spelled_settings(settings)), PeakStore(home_paths().peaks)
        host = load_plugins()
        files = open_model(model, host)
        placement = place(host, files, parsed, backend, (device,) if device else (), peaks)
        with LoadingBar(files.name) as bar:
            self._engine: Engine = assemble(files, placement, parsed, on_progress=bar.update, peaks=peaks)
        self._num_requests = 0
        self._is_closed = False
        # Of the iterations in progress: a sequence's output, and which of its completions it is.
        self._growing: dict[str, tuple[RequestOutput | EmbeddingRequestOutput, int]] = {}

    # ---- use ----

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: object = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete the prompts, batched continuously; the results stand in the prompts' order.

        Args:
            sampling_params: of all prompts, or of each; None: `get_default_sampling_params()`.
            lora_request: an adapter of all prompts, or of each: its name, or a `LoRARequest`. None: the model
                itself.
            priority: of each prompt; the lower runs first, as with the API's `priority`. None: 0 for all.

        Raises: RequestError, ContextLengthExceeded: nothing has been generated then. A sequence that
        fails in the engine has `error` set and finish_reason "error".
        """
        many = as_prompts(prompts)
        wishes = self.get_default_sampling_params() if sampling_params is None else sampling_params
        urgencies = priority_per_prompt(priority, len(many))
        adapters = self._adapters(lora_request, len(many))
        outputs, sequences = self._prepare(many, params_per_prompt(wishes, len(many)), urgencies, adapters)
        with tqdm(total=len(many), desc="generate", unit="prompt", disable=not use_tqdm) as bar:
            for output in self._run(outputs, sequences):
                if output.finished:
                    bar.update()
        return outputs

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, lora_request: object = None
    ) -> Iterator[str]:
        """Complete one prompt, yielding text as it becomes final.

        Raises: RequestError, ContextLengthExceeded; GenerationError where the sequence fails on the way.
        """
        params = sampling_params or self.get_default_sampling_params()
        if params.n != 1:
            raise RequestError(f"n is {params.n}; a stream has one completion: use generate", param="n")
        outputs, sequences = self._prepare([prompt], [params], [0], self._adapters(lora_request, 1))
        seen = 0
        for output in self._run(outputs, sequences):
            text = output.outputs[0].text
            if len(text) > seen:
                yield text[seen:]
                seen = len(text)
        if rest := outputs[0].outputs[0].text[seen:]:  # came while another iteration ran the engine
            yield rest
        if outputs[0].error is not None:
            raise GenerationError(outputs[0].error)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: object = None,
        priority: Sequence[int] | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Complete a conversation, or each of several, through the model's chat template.

        `template_options` and errors are those of `chat_prompt` and `generate`.
        """
        prompts = [self.chat_prompt(one, **template_options) for one in as_conversations(messages)]
        return self.generate(
            prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request, priority=priority
        )

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        lora_request: LoRARequest | str | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest completions of each prompt. Raises: RequestError, ContextLengthExceeded."""
        given: object = params
        if not isinstance(given, BeamSearchParams):
            raise RequestError(f"params is {given!r}; give BeamSearchParams(...)", param="params")
        ids = [list(token_ids) for _, token_ids in self._encode(as_prompts(prompts))]

        def generate(many: list[list[int]], wish: SamplingParams) -> list[RequestOutput]:
            return self.generate(many, wish, use_tqdm=False, lora_request=lora_request)

        return beam_search(generate, self.get_tokenizer(), self._engine.files.eos_token_ids, ids, params)

    def chat_prompt(
        self,
        messages: Conversation,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The prompt of a conversation; arguments as of `ChatTemplate.render`.

        Raises: RequestError in the template's own words.
        """
        text = self._template.render(
            list(messages),
            tools,
            add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=chat_template_kwargs,
        )
        ids = self._engine.tokenizer.encode(text, add_special_tokens=False)
        return {"prompt": text, "prompt_token_ids": ids}

    @cached_property
    def _template(self) -> ChatTemplate:
        tokenizer = self._engine.tokenizer
        return ChatTemplate(self._engine.files.chat_templates, tokenizer.bos_token, tokenizer.eos_token)

    def reset_prefix_cache(self) -> None:
        """Forget every prefix; results do not depend on it."""
        self._engine.core.reset_prefix_cache()

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The defaults that the model's own generation_config asks for."""
        return msgspec.convert(self._engine.files.generation_defaults, SamplingParams, strict=False)

    @property
    def engine(self) -> Engine:
        """The engine beneath, for benchmarks and tests."""
        return self._engine

    def close(self) -> None:
        """Give the device's memory back; idempotent. Nothing can be asked of it then."""
        self._is_closed = True
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- vectors and scores ----

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        use_tqdm: bool = True,
        lora_request: object = None,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each text, in the texts' order.

        Texts are embedded as they are: an instruction that the model wants before a query is the caller's.

        Args:
            pooling: "last", "mean", or None for what the model's files ask for, else "last".
            normalize: to length 1.
            dimensions: the first so many only, for models trained that way.

        Raises: RequestError, ContextLengthExceeded, ModelFilesError: nothing has been computed then. A
        sequence that fails in the engine has `error` set and no vector.
        """
        wish = PoolingParams(pooling=pooling, normalize=normalize, dimensions=dimensions)
        params = self._engine.resolved_pooling(wish)
        outputs, sequences = [], []
        encoded = self._encode(as_prompts(prompts))
        adapters = self._adapters(lora_request, len(encoded))
        for (text, token_ids), adapter in zip(encoded, adapters, strict=True):
            self._engine.core.check_prompt(token_ids, is_embedded=True)
            outputs.append(EmbeddingRequestOutput(self._next_id(), text, token_ids))
            sequences.append(
                EngineSequence(outputs[-1].request_id, token_ids, NO_DRAWS, pooling=params, adapter=adapter)
            )
        with tqdm(total=len(outputs), desc="embed", unit="prompt", disable=not use_tqdm) as bar:
            for _ in self._run(outputs, sequences):
                bar.update()
        return outputs

    def score(
        self,
        text_1: str | Sequence[str],
        text_2: str | Sequence[str],
        *,
        instruction: str = QWEN3_INSTRUCTION,
        template: str = QWEN3_RERANKER,
        score_tokens: tuple[str, str] = ("yes", "no"),
        score_token_ids: tuple[int, int] | None = None,
        use_tqdm: bool = True,
        lora_request: object = None,
    ) -> list[ScoringRequestOutput]:
        """How well each document (`text_2`) answers the query (`text_1`): the probability of "yes".

        For rerankers that answer yes or no, such as Qwen3-Reranker. One query goes with all documents; a
        list of queries with as many documents, pair by pair.

        Args:
            template: the whole prompt, with the places {query}, {document} and {instruction}.
            score_tokens: the words for yes and no, one token each; `score_token_ids` goes before them.

        Raises: RequestError, ContextLengthExceeded: nothing has been computed then.
        """
        tokenizer = self._engine.tokenizer
        prompts = ScoringPrompt(template, tokenizer).token_ids(text_pairs(text_1, text_2), instruction)
        yes_id, no_id = score_token_ids or (single_token(tokenizer, word) for word in score_tokens)
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=0, logprob_token_ids=(yes_id, no_id))
        outputs = self.generate(prompts, params, use_tqdm=use_tqdm, lora_request=lora_request)
        return [score_of(output, yes_id, no_id) for output in outputs]

    # ---- how ----

    def _next_id(self) -> str:
        self._num_requests += 1
        return str(self._num_requests - 1)

    def _adapters(self, lora_request: object, count: int) -> list[str]:
        """Names, one for each prompt. Raises: RequestError."""
        return [self._engine.adapter_named(one) for one in adapter_per_prompt(lora_request, count)]

    def _prepare(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        priorities: Sequence[int],
        adapters: Sequence[str],
    ) -> tuple[list[RequestOutput], list[EngineSequence]]:
        outputs, sequences = [], []
        columns = self._encode(prompts), params, priorities, adapters
        for (text, token_ids), wish, priority, adapter in zip(*columns, strict=True):
            wish.check_types()
            wish.check()
            self._engine.core.check_prompt(token_ids)
            completions = [CompletionOutput(index) for index in range(wish.n)]
            outputs.append(RequestOutput(self._next_id(), text, token_ids, completions))
            sequences += self._sequences_of(outputs[-1], wish, priority, adapter)
        return outputs, sequences

    def _sequences_of(
        self, output: RequestOutput, params: SamplingParams, priority: int, adapter: str
    ) -> list[EngineSequence]:
        """One for each completion."""
        group = output.request_id if params.n > 1 else ""
        form = params.structured_outputs
        return [
            make_sequence(
                self._engine.tokenizer,
                f"{output.request_id}-{index}",
                output.prompt_token_ids,
                params.child(index),
                priority=priority,
                adapter=adapter,
                group=group,
                index=index,
                grammar=None if form is None else self._engine.grammars.compile(form),
            )
            for index in range(params.n)
        ]

    def _encode(self, prompts: Sequence[Prompt]) -> list[tuple[str | None, list[int]]]:
        """As `texts_and_ids`. Raises: RequestError; Unavailable after `close`."""
        if self._is_closed:
            raise Unavailable("this LLM is closed, its model's memory given back; make a new one")
        return texts_and_ids(self._engine.tokenizer, prompts)

    def _run(self, outputs: Sequence[T], sequences: Sequence[EngineSequence]) -> Iterator[T]:
        """Yields an output each time it has grown. Whatever ends the iteration, nothing keeps running.

        Iterations may be interleaved (a stream read while another is): each step advances them all, so
        a whole step is taken in before anything is yielded.
        """
        core, tokenizer = self._engine.core, self._engine.tokenizer
        mine = {output.request_id: output for output in outputs}
        places = [(output, index) for output in outputs for index in range(output.num_sequences)]
        ids = [sequence.request_id for sequence in sequences]
        self._growing |= zip(ids, places, strict=True)
        waiting = sorted(sequences, key=lambda one: one.priority)  # the engine's queue may not take all
        waiting.reverse()
        try:
            while waiting or (core.has_work and not all(output.finished for output in outputs)):
                while waiting and self._add(waiting[-1]):
                    waiting.pop()
                grown: dict[str, None] = {}  # ids in order
                with held_back_interrupt():
                    for update in core.step():
                        output, index = self._growing[update.sequence.request_id]
                        output.grow(index, update, tokenizer)
                        grown[output.request_id] = None
                yield from (mine[request_id] for request_id in grown if request_id in mine)
        finally:
            for request_id in ids:
                core.abort(request_id)
                del self._growing[request_id]

    def _add(self, sequence: EngineSequence) -> bool:
        """False while the engine's queue is full: offline, the caller's list is the queue."""
        try:
            self._engine.core.add(sequence)
        except Overloaded:
            return False
        return True
