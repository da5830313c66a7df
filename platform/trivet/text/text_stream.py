"""A completion's text as it may be sent: detokenised, and cut at the first stop string."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trivet.sampling_params import SamplingParams
from trivet.text.detokenizer import IncrementalDetokenizer
from trivet.text.stop_strings import StopStrings
from trivet.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextStep:
    """What some tokens added."""

    text: str
    stop_reason: str | None = None  # the stop string that is complete now: the completion ends
    num_tokens: int = 0  # of the pushed ones, up to the token that completed the stop string


class TextStream:
    """All pieces joined, `finish()` included, are the text of the completion, however it is cut.

    Stop strings are searched in the text after the first `min_tokens` tokens; one that begins before is
    none. An end token is not pushed, unless `skip_special_tokens` is false.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_token_ids, params.skip_special_tokens, params.visible_token_ids
        )
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None
        self._num_free = params.min_tokens  # tokens still to come in which no stop string counts

    def push(self, token_ids: Sequence[int]) -> TextStep:
        """Take the next tokens; after a stop string the rest of them is dropped."""
        if self._stops is None:
            return TextStep(self._detokenizer.push(token_ids), None, len(token_ids))
        pieces = []
        for count, token_id in enumerate(token_ids, start=1):
            text = self._detokenizer.push((token_id,))
            if self._num_free > 0:
                self._num_free -= 1
                pieces.append(text)
                continue
            text, stop = self._stops.push(text)
            pieces.append(text)
            if stop is not None:
                return TextStep("".join(pieces), stop, count)
        return TextStep("".join(pieces), None, len(token_ids))

    def finish(self) -> str:
        """Text that was still held back; nothing where a stop string ended it."""
        rest = self._detokenizer.finish()
        if self._stops is None:
            return rest
        text, _ = self._stops.push(rest)
        return text + self._stops.finish()
