"""Tokenizers for the tests: the real one of SmolLM2, and small ones trained and written here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from trivet.demo_model import find_demo_model
from trivet.text.tokenizer import Tokenizer, load_tokenizer

sys.path.append(str(Path(__file__).parent))  # chat_templates

TEXTS = [
    "",
    " ",
    "Hello world",
    "  Two leading spaces, and trailing  ",
    "The quick brown fox isn't WE'LL they've I'm 'tis",
    "你好\uff0c世界\uff01中文分词测试。日本語のテスト、カタカナ。한국어 텍스트",
    "emoji 🙂👍🏽👩\u200d👩\u200d👧\u200d👦🇩🇪 mixed你🙂好",
    "def f(x):\n\tif x >= 10:\n        return {'a': [1, 2.5e-3]}  # comment\r\n\r\n\n\n",
    "numbers 1 12 123 1234 12345 3.14159 0x1F ½ ² ٣٤٥",
    "tabs\t\tand    runs     of\u00a0spaces\u3000ideographic \u200b zero",
    "combining e\u0301 n\u0303 and precomposed é ñ; Привет, мир; שלום; สวัสดี; हिन्दी",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <s> </s> <unk> <0x0A>",
    "CamelCaseWords HTTPServer snake_case $money a+b=c ~tilde~ `code` ^caret | pipe",
    "null \x00 byte, escape \x1b[0m, \ufeff bom, \ufffd replacement",
    "https://example.org/a/b?c=d&e=%20 user@example.org",
]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def smollm() -> Tokenizer:
    return load_tokenizer(find_demo_model())


@pytest.fixture(scope="session")
def byte_level() -> Callable[..., Backend]:
    """Train a byte-level BPE of 600 tokens on the texts, cut into words by an expression."""

    def train(pattern: str | None = None) -> Backend:
        backend = Backend(models.BPE())
        cut = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [*cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)]
        )
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=600,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        )
        backend.train_from_iterator(TEXTS * 3, trainer)
        backend.add_tokens([AddedToken("<think>", normalized=False, special=False)])
        return backend

    return train


@pytest.fixture(scope="session")
def write_gguf() -> Callable[..., Path]:
    """Write a GGUF file that holds a vocabulary and no tensors."""

    def write(
        path: Path,
        *,
        model: str,
        tokens: list[str],
        types: list[int] | None = None,
        merges: list[str] | None = None,
        scores: list[float] | None = None,
        pre: str | None = None,
        **keys: int | bool,
    ) -> Path:
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tokenizer_model(model)
        writer.add_token_list(tokens)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        if types is not None:
            writer.add_token_types(types)
        if merges is not None:
            writer.add_token_merges(merges)
        if scores is not None:
            writer.add_token_scores(scores)
        for key, value in keys.items():
            add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
            add(f"tokenizer.ggml.{key}", value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    return write
