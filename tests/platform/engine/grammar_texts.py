"""What texts a grammar takes, over the demo model's 49,152 tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from trivet.engine.grammar import Grammar, GrammarCompiler
from trivet.structured_outputs import StructuredOutputsParams
from trivet.text.tokenizer import Tokenizer

END = 2  # <|im_end|>


def allowed(grammar: Grammar, compiler: GrammarCompiler) -> Any:
    """[V]"""
    bits = np.zeros(-(-compiler.num_tokens // 32), np.uint32)
    grammar.fill_mask(bits)
    return np.unpackbits(bits.view(np.uint8), bitorder="little")[: compiler.num_tokens].view(np.bool_)


def takes(compiler: GrammarCompiler, tokenizer: Tokenizer, text: str, **params: Any) -> bool:
    """Whether the text is a whole completion: each of its tokens is allowed, and an end after them."""
    grammar = compiler.compile(StructuredOutputsParams(**params))
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        if not allowed(grammar, compiler)[token_id]:
            return False
        grammar.advance(token_id)
    return grammar.is_over or bool(allowed(grammar, compiler)[END])
