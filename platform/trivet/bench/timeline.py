"""When the tokens of one request came: what every figure is made of."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Timeline:
    """One request. Times are of one monotonic clock, in seconds.

    Latencies count from `due_s`, the moment at which the load wanted to send. Where the sender itself falls
    behind or waits for a free place, the users it stands for wait too; counting from `sent_s` would hide
    exactly the worst of it ("coordinated omission").
    """

    due_s: float
    max_tokens: int
    num_prompt_tokens: int = 0
    sent_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)  # of each arrival of text, ascending
    num_tokens: int = 0  # may exceed the arrivals: one may bring several tokens
    num_cached_tokens: int = 0  # of the prompt, as far as the server tells
    finished_s: float | None = None
    is_counted_by_server: bool = True  # False: `num_tokens` is the number of arrivals, an estimate
    failure: str | None = None  # the cause in a few words; None where the answer is complete

    def add(self, at_s: float, num_tokens: int) -> None:
        """`num_tokens` tokens have arrived together."""
        if num_tokens > 0:
            self.token_times_s.append(at_s)
            self.num_tokens += num_tokens

    def finish(self, at_s: float) -> None:
        """The last token has come; an answer whose tokens made no visible text arrives as a whole now."""
        self.finished_s = at_s
        if not self.token_times_s:
            self.token_times_s.append(at_s)

    def fail(self, at_s: float, cause: str) -> None:
        """The request has ended without a complete answer. The first cause stays."""
        if self.failure is None and self.finished_s is None:
            self.finished_s = at_s
            self.failure = cause

    @property
    def is_complete(self) -> bool:
        return self.failure is None and self.finished_s is not None

    @property
    def end_s(self) -> float:
        """When the answer was complete."""
        assert self.finished_s is not None, "the request is still running"
        return self.finished_s

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.token_times_s[0] - self.due_s

    @property
    def e2e_s(self) -> float:
        """Time to the last token."""
        return self.end_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None where there is only one."""
        if self.num_tokens < 2:
            return None
        return (self.end_s - self.token_times_s[0]) / (self.num_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies (ITL): from each arrival to the next."""
        return [b - a for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False)]

    @property
    def lag_s(self) -> float:
        """How late the load sent it."""
        return 0.0 if self.sent_s is None else self.sent_s - self.due_s
