from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from trivet.errors import ModelFilesError
from trivet.text.tokenizer import Tokenizer, load_tokenizer


def test_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"absent\.gguf does not exist"):
        load_tokenizer(tmp_path / "absent.gguf")


def test_batch_equals_texts_one_by_one(smollm: Tokenizer, texts: list[str]) -> None:
    assert smollm.encode_batch(texts) == [smollm.encode(text) for text in texts]
    assert smollm.encode_batch([]) == []


def test_truncation_and_padding_of_the_file_are_off(byte_level: Callable[..., Backend]) -> None:
    backend = byte_level()
    backend.enable_truncation(max_length=4)
    backend.enable_padding(length=8, pad_id=0)
    assert len(Tokenizer(backend).encode("many words that are longer than four tokens")) > 8
    assert len(Tokenizer(backend).encode("a")) == 1


def test_vocabulary_size_is_one_above_the_highest_id(byte_level: Callable[..., Backend]) -> None:
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.vocab_size == 601
    assert tokenizer.id_of("<think>") == 600
    assert tokenizer.id_of("<absent>") is None


def test_half_a_surrogate_pair_is_encoded_as_a_replacement_character(smollm: Tokenizer) -> None:
    assert smollm.decode(smollm.encode("a\ud83d b")) == "a\ufffd b"
    assert smollm.decode(smollm.encode("\ud83d\ude42")) == "🙂"


def test_decode_hides_special_tokens_unless_told_not_to(smollm: Tokenizer) -> None:
    ids = smollm.encode("<|im_start|>hi<|im_end|>")
    assert smollm.decode(ids) == "hi"
    assert smollm.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"


def test_ids_outside_the_vocabulary_spell_nothing(smollm: Tokenizer) -> None:
    ids = smollm.encode("hi")
    assert smollm.decode([-1, *ids, smollm.vocab_size, 10**12]) == "hi"


def test_token_text_shows_one_token_and_part_of_a_character_as_a_replacement(smollm: Tokenizer) -> None:
    assert smollm.token_text(2) == "<|im_end|>"
    assert smollm.token_text(smollm.encode("a world")[1]) == " world"
    parts = smollm.encode("🙂")
    assert b"".join(smollm.token_bytes[part] for part in parts) == "🙂".encode()
    assert "\ufffd" in smollm.token_text(parts[0])


def test_added_token_reads_as_it_is_written(byte_level: Callable[..., Backend]) -> None:
    backend = byte_level()
    backend.add_tokens(["é", "两 字"])
    tokenizer = Tokenizer(backend)
    assert tokenizer.decode(tokenizer.encode("aé两 字b")) == "aé两 字b"


def test_other_threads_run_while_a_long_text_is_encoded(smollm: Tokenizer) -> None:
    # The point is that the GIL is free, not how fast it is: while it is held no turn at all is made.
    text = "The quick brown fox. " * 40_000
    turns, done = [0], threading.Event()

    def spin() -> None:
        while not done.is_set():
            turns[0] += 1
            time.sleep(0)

    spinner = threading.Thread(target=spin)
    spinner.start()
    before = turns[0]
    smollm.encode(text)
    during = turns[0] - before
    done.set()
    spinner.join()
    assert during > 20


@pytest.mark.parametrize(
    ("decoder", "tokens", "text"),
    [
        (decoders.ByteLevel(), ["Ġhi", "ĠÃ©", "<é>", "é"], " hi é<\ufffd>\ufffd"),
        (decoders.Metaspace(), ["▁a", "b▁", "▁c"], "ab  c"),
        (decoders.Metaspace(prepend_scheme="never"), ["▁a", "b"], " ab"),
        (
            decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
            ["▁a", "<0xE4>", "<0xBD>", "<0xA0>", "▁"],
            " a你 ",
        ),
        (
            decoders.Sequence(
                [
                    decoders.Replace("▁", " "),
                    decoders.ByteFallback(),
                    decoders.Fuse(),
                    decoders.Strip(" ", 1, 0),
                ]
            ),
            ["▁▁a", "<0x0A>", "▁b"],
            " a\n b",
        ),
        (decoders.Fuse(), ["a", "b"], "ab"),
    ],
    ids=["byte level", "metaspace", "metaspace without prefix", "fallback", "sentencepiece", "fuse"],
)
def test_each_streamable_decoder_reads_as_in_the_library(
    decoder: decoders.Decoder, tokens: list[str], text: str
) -> None:
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.decoder = decoder
    assert Tokenizer(backend).decode(range(len(tokens))) == text == backend.decode(list(range(len(tokens))))


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
        decoders.Strip(" ", 0, 1),
    ],
)
def test_decoder_that_cannot_be_streamed_is_refused(decoder: decoders.Decoder) -> None:
    backend = Backend(models.BPE({"a": 0}, []))
    backend.decoder = decoder
    with pytest.raises(ModelFilesError, match="cannot be streamed"):
        Tokenizer(backend)
