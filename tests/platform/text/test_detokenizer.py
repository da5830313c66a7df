from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from trivet.text.detokenizer import IncrementalDetokenizer, incomplete_start
from trivet.text.tokenizer import Tokenizer


def streamed(
    tokenizer: Tokenizer, prompt: list[int], pieces: list[list[int]], skip_special_tokens: bool = True
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens)
    return [*(detokenizer.push(piece) for piece in pieces), detokenizer.finish()]


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    """Ids 0 to 255 are the bytes, 256 is <s>."""
    words = ["▁Hello", "▁", "▁▁", "world", "你", "▁好"]
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + ["<s>", *words]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.add_special_tokens(["<s>"])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(backend)


def test_characters_split_over_tokens_come_out_whole(smollm: Tokenizer) -> None:
    text = "你好🙂世界👩\u200d👧é"
    ids = smollm.encode(text)
    assert len(ids) > len(text)
    pieces = streamed(smollm, [1], [[token_id] for token_id in ids])
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == text


def test_stream_of_every_text_joins_to_the_full_decode(smollm: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        for skip in (True, False):
            ids = smollm.encode(text)
            pieces = streamed(smollm, [1], [[token_id] for token_id in ids], skip)
            assert "".join(pieces) == smollm.decode(ids, skip)


@given(data=st.data())
def test_any_ids_in_any_pieces_join_to_the_full_decode(smollm: Tokenizer, data: st.DataObject) -> None:
    # Ids below 500 are mostly single bytes and special tokens: much broken UTF-8.
    ids = data.draw(st.lists(st.integers(0, 500), max_size=30))
    cut = data.draw(st.integers(0, len(ids)))
    skip = data.draw(st.booleans())
    completion = ids[cut:]
    pieces, rest = [], list(completion)
    while rest:
        size = data.draw(st.integers(1, 3))
        pieces.append(rest[:size])
        rest = rest[size:]
    whole = smollm.token_bytes.join(i for i in ids if not (skip and i in smollm.special_ids))
    prompt = smollm.token_bytes.join(i for i in ids[:cut] if not (skip and i in smollm.special_ids))
    begun = prompt[incomplete_start(prompt) :]
    expected = (begun + whole[len(prompt) :]).decode("utf-8", "replace")
    assert "".join(streamed(smollm, ids[:cut], pieces, skip)) == expected
    if not begun:
        assert smollm.decode(ids[:cut], skip) + expected == smollm.decode(ids, skip)


def test_end_in_the_middle_of_a_character_gives_one_replacement_once(smollm: Tokenizer) -> None:
    ids = smollm.encode("ok🙂")[:-1]
    assert smollm.token_bytes.join(ids)[-1:] != "🙂".encode()[-1:]
    detokenizer = IncrementalDetokenizer(smollm, [1])
    assert detokenizer.push(ids) == "ok"
    assert [detokenizer.finish(), detokenizer.finish()] == ["\ufffd", ""]


def test_character_begun_in_the_prompt_belongs_to_the_completion(smollm: Tokenizer) -> None:
    ids = smollm.encode("🙂!")
    assert len(ids) > 2
    assert "".join(streamed(smollm, ids[:1], [ids[1:]])) == "🙂!"


def test_broken_byte_does_not_hold_back_what_follows(smollm: Tokenizer) -> None:
    first_byte = smollm.encode("你")[0]
    assert len(smollm.token_bytes[first_byte]) < 3
    letter = smollm.encode("a")
    assert streamed(smollm, [1], [[first_byte], letter]) == ["", "\ufffda", ""]


def test_special_tokens_are_hidden_or_shown(smollm: Tokenizer) -> None:
    ids = [*smollm.encode("hi"), 2]
    assert "".join(streamed(smollm, [1], [ids], True)) == "hi"
    assert "".join(streamed(smollm, [1], [ids], False)) == "hi<|im_end|>"


def test_leading_space_goes_only_at_the_start_of_a_text(sentencepiece: Tokenizer) -> None:
    hello, blank, double = (sentencepiece.id_of(token) for token in ("▁Hello", "▁", "▁▁"))
    assert hello is not None
    assert blank is not None
    assert double is not None
    assert streamed(sentencepiece, [], [[hello], [hello]]) == ["Hello", " Hello", ""]
    assert streamed(sentencepiece, [256], [[hello]]) == ["Hello", ""]  # <s> shows no text
    assert streamed(sentencepiece, [256], [[hello]], skip_special_tokens=False) == [" Hello", ""]
    assert streamed(sentencepiece, [hello], [[hello]]) == [" Hello", ""]
    assert streamed(sentencepiece, [], [[blank], [hello]]) == ["", " Hello", ""]
    assert streamed(sentencepiece, [], [[double], [hello]]) == [" ", " Hello", ""]


@given(ids=st.lists(st.integers(0, 262), max_size=20), cut=st.integers(0, 20))
def test_sentencepiece_stream_joins_to_the_full_decode(
    sentencepiece: Tokenizer, ids: list[int], cut: int
) -> None:
    prompt = ids[:cut]
    data = sentencepiece.token_bytes.join(i for i in prompt if i != 256)
    pieces = streamed(sentencepiece, prompt, [[i] for i in ids[cut:]])
    if incomplete_start(data) == len(data):
        assert sentencepiece.decode(prompt) + "".join(pieces) == sentencepiece.decode(ids)


def test_byte_tokens_decode_as_in_the_library_where_they_are_utf8(sentencepiece: Tokenizer) -> None:
    ids = [*"né🙂".encode(), 257]
    assert sentencepiece.decode(ids) == sentencepiece._backend.decode(ids) == "né🙂 Hello"


@pytest.mark.parametrize(
    ("data", "complete"),
    [
        (b"", 0),
        (b"ab", 2),
        ("é".encode(), 2),
        (b"a\xc3", 1),
        (b"\xf0\x9f\x99", 0),
        (b"\x80\x80", 2),
        (b"\xff", 1),
    ],
)
def test_unfinished_character_at_the_end_is_found(data: bytes, complete: int) -> None:
    assert incomplete_start(data) == complete


def test_work_per_token_does_not_grow_with_the_text(smollm: Tokenizer) -> None:
    class CountingBytes:
        """Stands before the table and counts look-ups."""

        def __init__(self) -> None:
            self.count = 0
            self.strips_leading_space = False

        def __getitem__(self, token_id: int) -> bytes:
            self.count += 1
            return smollm.token_bytes[token_id]

    counting = CountingBytes()
    detokenizer = IncrementalDetokenizer(smollm, [1])
    detokenizer._token_bytes = counting  # type: ignore[assignment]
    for token_id in smollm.encode("a long text 你好 " * 500):
        detokenizer.push([token_id])
        assert counting.count == 1
        counting.count = 0
