"""How one request wants its tokens drawn and where it ends: shared by the API, the wire and `LLM`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec

from trivet.errors import RequestError
from trivet.structured_outputs import StructuredOutputsParams

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024  # of one
MAX_ALL_STOP_CHARACTERS = 4096  # the engine builds a state for each (1.2 us and 250 bytes)
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 256
MAX_N = 128
MAX_LOGPROBS = 20
MAX_BIAS = 100.0

Rule = tuple[str, bool, str]  # field, whether its value is good, which values are

_TYPE_FAULT = re.compile(r"Expected `(.+)`, got `.+` - at (`key` in )?`\$\.(\w+)(.*)`")
_TUPLES = (
    *("stop", "bad_words", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"),
    "visible_token_ids",
)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Field names and defaults are vLLM's. `max_tokens` None: up to the context limit.

    Lists are taken for tuples, one stop string for a tuple of one, and a dict for a form. A logit is changed
    in the order repetition_penalty; presence_penalty, frequency_penalty, logit_bias; what is forbidden;
    temperature; top_k, top_p, min_p. Logprobs are the model's own, before all that.
    """

    n: int = 1  # completions of the prompt, which is computed once; a seed counts away from 0 between them
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = all
    min_p: float = 0.0
    presence_penalty: float = 0.0  # taken from the logit of a token that the output has
    frequency_penalty: float = 0.0  # taken from it each time the output has it
    repetition_penalty: float = 1.0  # divides it where the prompt or the output has it (multiplies below 0)
    logit_bias: dict[int, float] | None = None  # added to a token's logit
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    bad_words: tuple[str, ...] = ()  # whose last token never follows the others
    seed: int | None = None  # -1 is none, too
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # None: none; k: the drawn token's and the k most likely ones'
    prompt_logprobs: int | None = None  # the same of the prompt's tokens, but the first
    structured_outputs: StructuredOutputsParams | None = None
    logprob_token_ids: tuple[int, ...] = ()  # with logprobs: these instead of the most likely ones
    visible_token_ids: tuple[int, ...] = ()  # special tokens that are not skipped: marks of calls, say

    def __post_init__(self) -> None:
        for name in _TUPLES:
            value = getattr(self, name)
            if isinstance(value, str):
                msgspec.structs.force_setattr(self, name, (value,))
            elif isinstance(value, list):
                msgspec.structs.force_setattr(self, name, tuple(value))
            elif value is None and name != "allowed_token_ids":
                msgspec.structs.force_setattr(self, name, ())
        form: object = self.structured_outputs
        if isinstance(form, dict):
            msgspec.structs.force_setattr(self, "structured_outputs", StructuredOutputsParams.of(form))
        if self.seed == -1:  # what front ends send for "draw anew", and vLLM takes so
            msgspec.structs.force_setattr(self, "seed", None)

    def check(self) -> None:
        """Raises: RequestError naming the field, its value and the values that would do."""
        for rules in (self._draw_rules(), self._edit_rules(), self._end_rules(), self._logprob_rules()):
            for name, is_good, wanted in rules:
                if not is_good:
                    raise self._wrong(name, f"it must be {wanted}")
        if self.structured_outputs is not None:
            self.structured_outputs.check()

    def check_types(self) -> None:
        """For what a caller wrote in Python; what was decoded has them right. Raises: RequestError."""
        fields = msgspec.structs.asdict(self)
        plain = {name: float(v) if isinstance(v, float) else v for name, v in fields.items()}  # NumPy's, too
        if isinstance(self.structured_outputs, msgspec.Struct):
            plain["structured_outputs"] = msgspec.structs.asdict(self.structured_outputs)
        try:
            msgspec.convert(plain, SamplingParams)
        except msgspec.ValidationError as error:
            raise self._of_wrong_type(str(error)) from None

    def _of_wrong_type(self, told: str) -> RequestError:
        """`told`: what msgspec says."""
        found = _TYPE_FAULT.fullmatch(told)
        if found is None:
            return RequestError(f"sampling params: {told}")
        kind, key, name, inside = found.groups()
        kind = kind.replace("array", "list").replace("object", "dict").replace("null", "None")
        place = "its keys" if key else f"{name}{inside}" if inside else "it"
        return self._wrong(name, f"{place} must be of type {kind}")

    def _wrong(self, name: str, wanted: str) -> RequestError:
        given = getattr(self, name)
        value = repr(list(given) if isinstance(given, tuple) else given)  # lists are what was sent
        shown = value if len(value) <= 200 else f"{value[:200]}..."
        return RequestError(f"{name} is {shown}; {wanted}", param=name)

    def check_ids(self, num_tokens: int) -> None:
        """Raises: RequestError naming a token id that the model does not have."""
        for name in ("logit_bias", "allowed_token_ids", "logprob_token_ids"):
            highest = max(getattr(self, name) or (), default=-1)
            if highest >= num_tokens:
                raise RequestError(
                    f"{name} has token id {highest}, which is not in the vocabulary; "
                    f"ids go from 0 to {num_tokens - 1}",
                    param=name,
                )

    def child(self, index: int) -> SamplingParams:
        """What the completion `index` of `n` asks for: the first one alone scores their prompt."""
        if self.n == 1:
            return self
        seed = self.seed
        if seed is not None:
            step = index if seed >= 0 else -index  # never comes to -1
            seed = (seed + 2**63 + step) % 2**64 - 2**63
        prompt_logprobs = self.prompt_logprobs if index == 0 else None
        return msgspec.structs.replace(self, n=1, seed=seed, prompt_logprobs=prompt_logprobs)

    def _draw_rules(self) -> Iterator[Rule]:
        finite = math.isfinite
        yield "n", 1 <= self.n <= MAX_N, f"between 1 and {MAX_N}"
        yield "temperature", finite(self.temperature) and self.temperature >= 0, "a number >= 0"
        yield "top_p", finite(self.top_p) and 0 <= self.top_p <= 1, "between 0 and 1"
        yield "top_k", self.top_k >= -1, "-1 or 0 (all tokens), or a count >= 1"
        yield "min_p", finite(self.min_p) and 0 <= self.min_p <= 1, "between 0 and 1"
        yield "seed", self.seed is None or -(2**63) <= self.seed < 2**63, "a 64-bit integer"

    def _edit_rules(self) -> Iterator[Rule]:
        for name in ("presence_penalty", "frequency_penalty"):
            yield name, -2 <= getattr(self, name) <= 2, "between -2 and 2"
        repetition = self.repetition_penalty
        yield "repetition_penalty", math.isfinite(repetition) and repetition > 0, "a number > 0"
        biases = self.logit_bias or {}
        yield "logit_bias", min(biases, default=0) >= 0, "a mapping of token ids >= 0"
        values = biases.values()  # looked at by C: there may be 50,000
        highest = max(max(values, default=0.0), -min(values, default=0.0))
        within = highest <= MAX_BIAS and not math.isnan(sum(values))
        yield "logit_bias", within, f"a mapping to biases between {-MAX_BIAS:g} and {MAX_BIAS:g}"
        allowed = self.allowed_token_ids
        yield "allowed_token_ids", allowed is None or len(allowed) > 0, "left out, or at least one id"
        yield "allowed_token_ids", min(allowed or (), default=0) >= 0, "made of ids >= 0"
        yield "bad_words", all(word.strip() for word in self.bad_words), "made of words that are not empty"
        longest = max(map(len, self.bad_words), default=0)
        yield (
            "bad_words",
            len(self.bad_words) <= MAX_BAD_WORDS and longest <= MAX_BAD_WORD_CHARACTERS,
            f"at most {MAX_BAD_WORDS} words of at most {MAX_BAD_WORD_CHARACTERS} characters",
        )

    def _end_rules(self) -> Iterator[Rule]:
        limit = self.max_tokens
        yield "max_tokens", limit is None or limit >= 0, "an integer >= 0"
        yield "min_tokens", self.min_tokens >= 0, "an integer >= 0"
        yield "min_tokens", limit is None or self.min_tokens <= limit, f"at most max_tokens ({limit})"
        only_stops = set(self.allowed_token_ids or (-1,)) <= set(self.stop_token_ids)
        yield "min_tokens", self.min_tokens == 0 or not only_stops, "0 where only stop tokens are allowed"
        yield "stop", all(self.stop), "made of strings that are not empty; leave it out for none"
        longest = max(map(len, self.stop), default=0)
        yield (
            "stop",
            len(self.stop) <= MAX_STOP_STRINGS and longest <= MAX_STOP_CHARACTERS,
            f"at most {MAX_STOP_STRINGS} strings of at most {MAX_STOP_CHARACTERS} characters",
        )
        yield (
            "stop",
            sum(map(len, set(self.stop))) <= MAX_ALL_STOP_CHARACTERS,
            f"at most {MAX_ALL_STOP_CHARACTERS} characters in all",
        )
        yield "stop_token_ids", all(i >= 0 for i in self.stop_token_ids), "made of ids >= 0"

    def _logprob_rules(self) -> Iterator[Rule]:
        ids = self.logprob_token_ids
        yield "logprob_token_ids", all(i >= 0 for i in ids), "made of ids >= 0"
        yield "logprob_token_ids", len(ids) <= MAX_LOGPROBS, f"at most {MAX_LOGPROBS} ids"
        yield "logprob_token_ids", not ids or self.logprobs is not None, "given with logprobs"
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            yield name, count is None or 0 <= count <= MAX_LOGPROBS, f"between 0 and {MAX_LOGPROBS}"
