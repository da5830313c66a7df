"""A request's sequences: one for each of its completions, with the text side that the engine needs."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds

from trivet.engine.grammar import Grammar
from trivet.engine.sequence import Sequence
from trivet.sampling_params import SamplingParams
from trivet.text.bad_words import bad_word_ids
from trivet.text.text_stream import TextStream
from trivet.text.tokenizer import Tokenizer


def make_sequence(
    tokenizer: Tokenizer,
    request_id: str,
    prompt_token_ids: TokenIds[int],
    params: SamplingParams,
    *,
    priority: int = 0,
    key: str = "",
    key_class: int = 0,
    deadline_s: float | None = None,
    adapter: str = "",
    cache_salt: str = "",
    group: str = "",
    index: int = 0,
    grammar: Grammar | None = None,
) -> Sequence:
    """One completion (`params.n` is 1). Raises: RequestError for parameters that are out of range."""
    params.check()
    return Sequence(
        request_id,
        prompt_token_ids,
        params,
        priority=priority,
        key=key,
        key_class=key_class,
        deadline_s=deadline_s,
        adapter=adapter,
        cache_salt=cache_salt,
        group=group,
        index=index,
        grammar=grammar,
        text=TextStream(tokenizer, prompt_token_ids, params),
        bad_word_ids=bad_word_ids(tokenizer, params.bad_words) if params.bad_words else (),
    )
