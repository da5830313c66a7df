"""Prompt texts to token ids, with a bound on what one request can cost.

8 MB of text took 12 s and 0.8 GB to tokenise, only to be refused for its number of tokens. No text of
more bytes than a full context of the tokenizer's longest tokens can fit, and bytes are counted at once.
(A normaliser that drops most of a text could make an exception; such a text is refused as well.)
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from trivet.errors import ContextLengthExceeded, RequestTooLarge
from trivet_web.models.served_models import ServedModel

LARGE_BYTES = 64 << 10  # takes some 30 ms; larger ones take turns
MAX_LIST_BYTES = 1 << 20  # of the prompts of one request together, where one alone may not have more


class PromptEncoder:
    """One for a web process: of large texts it tokenises one at a time, which bounds its memory."""

    def __init__(self) -> None:
        self._large = threading.Lock()

    def encode(
        self,
        model: ServedModel,
        texts: Sequence[str],
        max_model_len: int,
        param: str,
        *,
        add_special_tokens: bool,
    ) -> list[list[int]]:
        """Ids of each text. `param` is the request's field that the texts come from.

        Raises: ContextLengthExceeded for a text that is too long to fit, whatever its tokens are;
            RequestTooLarge for texts that are too long together.
        """
        with self.turn(model, [size_of(text) for text in texts], max_model_len, param):
            return model.tokenizer.encode_batch(texts, add_special_tokens)

    def turn(
        self, model: ServedModel, sizes: Sequence[int], max_model_len: int, param: str
    ) -> AbstractContextManager[object]:
        """Where texts of so many bytes each may be put together and tokenised. Raises: as `encode`."""
        _check_sizes(sizes, model.tokenizer.max_token_bytes, max_model_len, param)
        return self._large if sum(sizes) > LARGE_BYTES else nullcontext()


def size_of(text: str) -> int:
    """Bytes of UTF-8."""
    return len(text.encode("utf-8", "surrogatepass"))


def _check_sizes(sizes: Sequence[int], max_token_bytes: int, max_model_len: int, param: str) -> None:
    """`sizes` in bytes of UTF-8."""
    most = max_model_len * max_token_bytes
    for index, size in enumerate(sizes):
        if size > most:
            raise ContextLengthExceeded(
                f"the prompt has {size} bytes, and a context of {max_model_len} tokens holds at most {most}: "
                f"the longest token has {max_token_bytes}; shorten the prompt",
                param=param if len(sizes) == 1 else f"{param}[{index}]",
            )
    most_together = max(most, MAX_LIST_BYTES)
    if sum(sizes) > most_together:
        raise RequestTooLarge(
            f"the {len(sizes)} prompts have {sum(sizes)} bytes together, and one request may have "
            f"{most_together}; send them in several requests",
            param=param,
        )
