"""How one request wants its tokens drawn and where it ends: shared by the API, the wire and `LLM`."""

from __future__ import annotations

import math

import msgspec

from trivet.errors import RequestError

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024  # of one: the engine builds a state for each (0.6 us and 600 bytes)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Field names and defaults are vLLM's. `max_tokens` None: up to the context limit."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1 = all
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # None: none; k: the drawn token's and the k most likely ones'

    def check(self) -> None:
        """Raises: RequestError naming the field, its value and the values that would do."""
        for name, is_good, wanted in self._rules():
            if not is_good:
                value = repr(getattr(self, name))
                shown = value if len(value) <= 200 else f"{value[:200]}..."
                raise RequestError(f"{name} is {shown}; it must be {wanted}", param=name)

    def _rules(self) -> list[tuple[str, bool, str]]:
        finite = math.isfinite
        return [
            ("temperature", finite(self.temperature) and self.temperature >= 0, "a number >= 0"),
            ("top_p", finite(self.top_p) and 0 <= self.top_p <= 1, "between 0 and 1"),
            ("top_k", self.top_k >= -1, "-1 or 0 (all tokens), or a count >= 1"),
            ("min_p", finite(self.min_p) and 0 <= self.min_p <= 1, "between 0 and 1"),
            ("seed", self.seed is None or -(2**63) <= self.seed < 2**63, "a 64-bit integer"),
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 0, "an integer >= 0"),
            ("min_tokens", self.min_tokens >= 0, "an integer >= 0"),
            (
                "min_tokens",
                self.max_tokens is None or self.min_tokens <= self.max_tokens,
                f"at most max_tokens ({self.max_tokens})",
            ),
            ("stop", all(self.stop), "made of non-empty strings"),
            (
                "stop",
                len(self.stop) <= MAX_STOP_STRINGS
                and max(map(len, self.stop), default=0) <= MAX_STOP_CHARACTERS,
                f"at most {MAX_STOP_STRINGS} strings of at most {MAX_STOP_CHARACTERS} characters",
            ),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, "between 0 and 20"),
            ("stop_token_ids", all(i >= 0 for i in self.stop_token_ids), "made of ids >= 0"),
        ]
