"""One prompt on its way to a completion: its tokens, its place and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from trivet.engine.key_account import KeyAccount
from trivet.errors import RequestError
from trivet.messages import TokenLogprob
from trivet.sampling_params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trivet.engine.grammar import Grammar
    from trivet.pooling_params import PoolingParams

NUM_CLASSES = 10  # of priority, counted from the key's own; a request that asks for less gets the last


class SequenceState(StrEnum):
    """WAITING ⇄ RUNNING (admission, preemption); FINISHED is final."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class TextStep(Protocol):
    """What some tokens added to a completion's text."""

    @property
    def text(self) -> str:
        """Text that is final: no part of it can still become a stop string."""

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended the text, if one did."""


class TextStream(Protocol):
    """Turns the tokens of one completion into text as they come (`trivet.text.text_stream`)."""

    def push(self, ids: TokenIds[int], /) -> TextStep:
        """Take the next tokens."""

    def finish(self) -> str:
        """The text that was held back; nothing after a stop string."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The engine's view of a request.

    The caller fills what stands before `state`; all else belongs to the engine. With steps in flight the
    counts run ahead of the tokens: `num_computed_tokens` counts what has been submitted, and a token that
    has been drawn on the device but not yet collected is pending.
    """

    request_id: str
    prompt_token_ids: TokenIds[int]
    params: SamplingParams
    _: KW_ONLY
    priority: int = 0  # lower runs first
    key: str = ""  # whose it is: keys share the engine fairly
    key_class: int = 0  # the most urgent priority that the key may have
    deadline_s: float | None = None  # monotonic; then it ends, whatever it has
    adapter: str = ""  # "": the base model
    cache_salt: str = ""  # sequences of different salts, or adapters, never share KV blocks
    group: str = ""  # of the completions of one prompt, which share its KV whatever the settings are
    index: int = 0  # in the group: the first one's prompt is counted, and scored
    text: TextStream | None = None  # None: token ids only
    bad_word_ids: TokenIds[tuple[int, ...]] = ()  # of `params.bad_words`
    grammar: Grammar | None = None  # of `params.structured_outputs`, at its start
    pooling: PoolingParams | None = None  # embed the prompt and draw nothing; `pooling.pooling` is resolved

    state: SequenceState = field(init=False, default=SequenceState.WAITING)
    token_ids: list[int] = field(init=False)  # prompt and known output
    arrival: int = field(init=False, default=0)  # counts up: first come, first served
    seed: int = field(init=False, default=0)  # 0 <= seed < 2**64
    stop_ids: frozenset[int] = field(init=False, default=frozenset())  # end tokens that end this one
    max_total_tokens: int = field(init=False, default=0)  # prompt and output; ends there with "length"
    priority_class: int = field(init=False)  # now: waiting makes it more urgent
    account: KeyAccount = field(init=False)  # of its key; the queue's, from its arrival on
    slot: int = field(init=False, default=0)  # meaningful while RUNNING
    num_computed_tokens: int = field(init=False, default=0)  # whose KV has been submitted
    num_pending_tokens: int = field(init=False, default=0)  # drawn by a step that is in flight
    num_cached_tokens: int = field(init=False, default=0)  # of the prompt, found in the prefix cache
    block_keys: list[bytes] = field(init=False, default_factory=list)  # of the full blocks, in order
    num_published_blocks: int = field(init=False, default=0)  # leading blocks that the prefix cache knows
    prompt_logprobs: list[TokenLogprob] = field(init=False, default_factory=list)  # from the 2nd token on

    is_walled_in: bool = field(init=False, default=False)  # its masks together allow no token
    pooled_sum: NDArray[np.float64] | None = field(init=False, default=None)  # of the chunks so far

    # Monotonic seconds; None until it happens.
    arrival_s: float = field(init=False, default=0.0)
    first_scheduled_s: float | None = field(init=False, default=None)
    first_token_s: float | None = field(init=False, default=None)
    finished_s: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)
        self.priority_class = self.lowest_class

    @property
    def lowest_class(self) -> int:
        """The class of a sequence that has just come."""
        return min(max(self.priority, self.key_class), self.key_class + NUM_CLASSES - 1)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    def check_ids(self, num_tokens: int) -> None:
        """Raises: RequestError naming a token id for which the model has no logit."""
        self.params.check_ids(num_tokens)
        highest = max(self.prompt_token_ids)
        if self.params.prompt_logprobs is not None and highest >= num_tokens:
            raise RequestError(
                f"the prompt has token id {highest}, for which the model has no logprob: ids of tokens go "
                f"from 0 to {num_tokens - 1}; leave prompt_logprobs and echo out, or the token",
                param="prompt_logprobs",
            )

    @property
    def num_unscored(self) -> int:
        """Prompt tokens whose logprob is wanted and has not come; the first has none."""
        if self.params.prompt_logprobs is None:
            return 0
        return len(self.prompt_token_ids) - 1 - len(self.prompt_logprobs)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def num_tokens(self) -> int:
        """Known and pending."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def can_read_cache(self) -> bool:
        """False for a mean over all tokens, and for prompt logprobs: the cache keeps no hidden states."""
        is_mean = self.pooling is not None and self.pooling.pooling == "mean"
        return not is_mean and self.num_unscored <= 0

    @property
    def order(self) -> tuple[int, int]:
        """Who comes first: the most urgent, then the oldest. The last in order is preempted first."""
        return self.priority_class, self.arrival
