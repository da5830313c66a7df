"""What the OpenAI and vLLM routes answer, as typed values: completions, vectors, scores, tokens.

Fields that a newer server adds are ignored, fields that an answer may lack have a default.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the prompt was found in the prefix cache, and how much of it was left out."""

    cached_tokens: int = 0
    truncated_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the completions was thinking."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token at a place of the prompt."""

    logprob: float
    rank: int | None = None
    decoded_token: str = ""


PromptLogprobs: TypeAlias = tuple[dict[str, PromptLogprob] | None, ...]  # by token id; None: the first token


# ---- chat ----------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A likely token at one place; `bytes` are exact where `token` is half a character."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """The token that was drawn, and the likeliest ones."""

    top_logprobs: tuple[TopLogprob, ...] = ()


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One entry for each token of the message."""

    content: tuple[TokenLogprob, ...] | None = None


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """What the model calls; `arguments` is JSON text, as it wrote it."""

    name: str = ""
    arguments: str = ""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call; its result goes back as {"role": "tool", "tool_call_id": id, "content": ...}."""

    id: str
    function: CalledFunction
    type: str = "function"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The model's turn; it can be sent back as one of `messages` as it is."""

    role: str = "assistant"
    content: str | None = None
    reasoning: str | None = None  # what it thought before
    tool_calls: tuple[ToolCall, ...] | None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a chat completion."""

    index: int = 0
    message: Message = Message()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer of `/v1/chat/completions`. Properties are those of the first choice."""

    id: str = ""
    created: int = 0
    model: str = ""
    choices: tuple[ChatChoice, ...] = ()
    usage: Usage | None = None
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def message(self) -> Message:
        return self.choices[0].message if self.choices else Message()

    @property
    def text(self) -> str:
        return self.message.content or ""

    @property
    def reasoning(self) -> str:
        """What the model thought before it answered."""
        return self.message.reasoning or ""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return self.message.tool_calls or ()

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason if self.choices else None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the call of that index: the first one id and name, the others arguments."""

    index: int = 0
    function: CalledFunction = CalledFunction()
    id: str | None = None
    type: str | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to a message."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a streamed chunk."""

    index: int = 0
    delta: Delta = Delta()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat; the last one carries `usage` and no choices."""

    id: str = ""
    created: int = 0
    model: str = ""
    choices: tuple[ChunkChoice, ...] = ()
    usage: Usage | None = None

    @property
    def delta(self) -> Delta:
        return self.choices[0].delta if self.choices else Delta()

    @property
    def text(self) -> str:
        return self.delta.content or ""

    @property
    def reasoning(self) -> str:
        """What the model thinks before it answers."""
        return self.delta.reasoning or ""

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason if self.choices else None


# ---- completions ---------------------------------------------------------------------------------


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Parallel lists, one entry for each token; offsets are characters from the start of the text."""

    tokens: tuple[str, ...] = ()
    token_logprobs: tuple[float | None, ...] = ()
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None
    text_offset: tuple[int, ...] = ()


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One text of a completion, whole or one chunk of it."""

    index: int = 0
    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of `/v1/completions`, or one event of a streamed one."""

    id: str = ""
    created: int = 0
    model: str = ""
    choices: tuple[CompletionChoice, ...] = ()
    usage: Usage | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text if self.choices else ""

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason if self.choices else None


# ---- without generation --------------------------------------------------------------------------


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that `/v1/*` knows; `ready`: it answers now."""

    id: str
    created: int = 0
    max_model_len: int | None = None
    ready: bool = True
    owned_by: str = ""
    created_at: str = ""  # `created` in words
    display_name: str = ""
    type: str = "model"
    model_type: str = ""  # "LLM" | "embedding" | "rerank"
    model_ability: tuple[str, ...] = ()
    model_name: str = ""
    model_format: str = ""
    quantization: str = ""
    context_length: int | None = None
    replica: int = 0
    root: str = ""  # "model:3" in the registry; of an adapter its name
    parent: str | None = None  # of an adapter: the deployment that has it


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """Of a request that generates nothing."""

    prompt_tokens: int = 0
    total_tokens: int = 0


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The vector of one input; as text where base64 was asked for."""

    index: int = 0
    embedding: tuple[float, ...] | str = ()


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """One vector for each input, in their order."""

    data: tuple[Embedding, ...] = ()
    model: str = ""
    usage: TokenCount = TokenCount()


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How well one text answers another, 0 to 1."""

    index: int = 0
    score: float


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """One for each pair, in their order."""

    id: str = ""
    created: int = 0
    model: str = ""
    data: tuple[Score, ...] = ()
    usage: TokenCount = TokenCount()


class RankedText(msgspec.Struct, frozen=True, kw_only=True):
    """A document's text."""

    text: str


class RankedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One document; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: RankedText | None = None


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The best documents first."""

    id: str = ""
    model: str = ""
    results: tuple[RankedDocument, ...] = ()
    usage: TokenCount = TokenCount()


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Of a text or a chat's prompt; `token_strs` if asked for."""

    count: int = 0
    max_model_len: int = 0
    tokens: tuple[int, ...] = ()
    token_strs: tuple[str, ...] | None = None


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What marks a model's texts."""

    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = None
    model_max_length: int = 0
    tokenizer_class: str = ""


class DetokenizedText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of tokens."""

    prompt: str = ""
