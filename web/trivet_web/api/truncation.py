"""vLLM's `truncate_prompt_tokens`: the last tokens of a prompt, because the request says so."""

from __future__ import annotations

from dataclasses import dataclass

from trivet.errors import RequestError


@dataclass(frozen=True, slots=True)
class TruncatedPrompt:
    """`limit` in tokens; -1: as many as the context holds beside `max_tokens` of the completion."""

    limit: int
    max_tokens: int | None

    def check(self) -> None:
        """Raises: RequestError."""
        if self.limit < -1 or self.limit == 0:
            raise RequestError(
                f"truncate_prompt_tokens is {self.limit}; it must be a number of tokens, or -1 for the "
                "context",
                param="truncate_prompt_tokens",
            )


def truncation_of(limit: int | None, max_tokens: int | None) -> TruncatedPrompt | None:
    """None: a prompt that is too long is refused. Raises: RequestError."""
    if limit is None:
        return None
    wanted = TruncatedPrompt(limit, max_tokens)
    wanted.check()
    return wanted


def truncated(
    ids: list[int],
    wanted: TruncatedPrompt | None,
    max_model_len: int,
    ends: frozenset[int] | None = None,
) -> list[int]:
    """The end of a prompt, which is what a completion goes on from.

    Args:
        ends: keep the start instead, and behind it the last token where it is one of these.
    """
    if wanted is None:
        return ids
    limit = wanted.limit
    if limit == -1:
        limit = max(1, max_model_len - max(1, wanted.max_tokens or 1))
    if ends is None or len(ids) <= limit:
        return ids[-limit:]
    end = ids[-1:] if ids[-1] in ends else []
    return ids[: limit - len(end)] + end
