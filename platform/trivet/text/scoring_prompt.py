"""The prompt by which a reranker is asked whether a document answers a query."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trivet.errors import RequestError
from trivet.text.tokenizer import Tokenizer

# The model card of Qwen3-Reranker; other models' templates are given by the caller.
QWEN3_RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_PLACE = re.compile(r"\{(instruction|query|document)\}")


class ScoringPrompt:
    """A template, read once.

    Special tokens count in the template only: a document that spells "<|im_end|>" cannot end the turn.
    """

    def __init__(self, template: str, tokenizer: Tokenizer) -> None:
        """Raises: RequestError for a template without the places of query and document."""
        missing = {"query", "document"} - set(_PLACE.findall(template))
        if missing:
            raise RequestError(
                f"the template has no place {{{min(missing)}}}; write {{query}}, {{document}} and, where the "
                "model wants one, {instruction}",
                param="template",
            )
        special = {tokenizer.token_text(token_id): token_id for token_id in tokenizer.special_ids}
        longest_first = sorted(filter(None, special), key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._parts = [part for part in re.split(f"({pattern})", template) if part]
        self._special = special
        self._tokenizer = tokenizer

    def token_ids(self, pairs: Sequence[tuple[str, str]], instruction: str) -> list[list[int]]:
        """Of each pair of query and document."""
        prompts: list[list[int]] = [[] for _ in pairs]
        for part in self._parts:
            if part in self._special:
                for prompt in prompts:
                    prompt.append(self._special[part])
                continue
            texts = [_filled(part, query, document, instruction) for query, document in pairs]
            encoded = self._tokenizer.encode_batch(
                texts, add_special_tokens=False, parse_special_tokens=False
            )
            for prompt, ids in zip(prompts, encoded, strict=True):
                prompt.extend(ids)
        return prompts


def _filled(part: str, query: str, document: str, instruction: str) -> str:
    """In one pass: what stands in braces in a document stays as it is."""
    values = {"query": query, "document": document, "instruction": instruction}
    return _PLACE.sub(lambda place: values[place[1]], part)


def single_token(tokenizer: Tokenizer, word: str) -> int:
    """Raises: RequestError where the word is not one token."""
    ids = tokenizer.encode(word, add_special_tokens=False)
    if len(ids) != 1:
        raise RequestError(
            f"{word!r} is {len(ids)} tokens in this model's vocabulary; name a word that is one token, or "
            "give score_token_ids",
            param="score_tokens",
        )
    return ids[0]
