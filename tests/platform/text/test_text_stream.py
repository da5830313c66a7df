from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.sampling_params import SamplingParams
from trivet.text.text_stream import TextStream
from trivet.text.tokenizer import Tokenizer


def run(tokenizer: Tokenizer, pieces: list[list[int]], **params: object) -> tuple[list[str], str | None, int]:
    """Pieces of text, the stop string that ended it, and the number of tokens taken."""
    stream = TextStream(tokenizer, [1], SamplingParams(**params))  # type: ignore[arg-type]
    texts, taken = [], 0
    for piece in pieces:
        step = stream.push(piece)
        texts.append(step.text)
        taken += step.num_tokens
        if step.stop_reason is not None:
            assert stream.finish() == ""
            return texts, step.stop_reason, taken
    texts.append(stream.finish())
    return texts, None, taken


def singly(ids: list[int]) -> list[list[int]]:
    return [[token_id] for token_id in ids]


@pytest.mark.parametrize("include", [False, True])
def test_streamed_and_whole_text_are_the_same_for_every_stop_setting(
    smollm: Tokenizer, include: bool
) -> None:
    text = "Thought: look it up\nAction: search[你好🙂]\nObservation: found\nDE DEF"
    ids = smollm.encode(text)
    for stops in (("\nObservation",), ("DE",), ("never",), ("🙂]",), ("你", "search"), ("x", "look it")):
        settings: dict[str, object] = {"stop": stops, "include_stop_str_in_output": include}
        texts, stop, taken = run(smollm, singly(ids), **settings)
        whole = run(smollm, [ids], **settings)
        assert ("".join(texts), stop, taken) == ("".join(whole[0]), whole[1], whole[2])
        if stop is None:
            assert "".join(texts) == text
        else:
            assert "".join(texts) == text[: text.index(stop) + (len(stop) if include else 0)]


def test_stop_string_inside_a_token_cuts_the_text_and_ends_it(smollm: Tokenizer) -> None:
    ids = smollm.encode("ab DEFG")
    texts, stop, _ = run(smollm, singly(ids), stop=(" DE",))
    assert ("".join(texts), stop) == ("ab", " DE")


def test_tokens_after_the_stop_string_are_not_taken(smollm: Tokenizer) -> None:
    ids = smollm.encode("one two three four")
    texts, stop, taken = run(smollm, [ids], stop=("two",))
    assert ("".join(texts), stop, taken) == ("one ", "two", 2)


def test_stop_string_counts_only_after_min_tokens(smollm: Tokenizer) -> None:
    ids = smollm.encode("one two one two one")
    assert len(ids) == 5
    for min_tokens, expected in ((0, "one"), (2, "one two one"), (4, "one two one two one")):
        texts, stop, _ = run(smollm, singly(ids), stop=(" two",), min_tokens=min_tokens)
        assert "".join(texts) == expected
        assert stop == (None if min_tokens == 4 else " two")


def test_text_of_the_free_tokens_is_not_held_back(smollm: Tokenizer) -> None:
    ids = smollm.encode("one two")
    assert run(smollm, singly(ids), stop=("one two three",), min_tokens=2)[0] == ["one", " two", ""]


def test_unfinished_character_and_held_text_come_at_the_end(smollm: Tokenizer) -> None:
    ids = smollm.encode("stop🙂")[:-1]
    texts, stop, _ = run(smollm, singly(ids), stop=("stopping",))
    assert "".join(texts) == "stop\ufffd"
    assert stop is None


def test_special_tokens_are_hidden_from_stop_strings_unless_shown(smollm: Tokenizer) -> None:
    ids = [*smollm.encode("hi"), 2, *smollm.encode("more")]
    assert run(smollm, singly(ids), stop=("<|im_end|>",))[1] is None
    texts, stop, _ = run(smollm, singly(ids), stop=("<|im_end|>",), skip_special_tokens=False)
    assert ("".join(texts), stop) == ("hi", "<|im_end|>")


@given(
    text=st.text(alphabet="abc 你🙂\n", max_size=25),
    stops=st.lists(st.text(alphabet="abc 你🙂\n", min_size=1, max_size=4), max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=25, max_size=25),
    min_tokens=st.integers(0, 6),
)
def test_any_grouping_of_tokens_gives_the_same_text(
    smollm: Tokenizer, text: str, stops: list[str], sizes: list[int], min_tokens: int
) -> None:
    ids = smollm.encode(text)
    pieces, start = [], 0
    for size in [*sizes, len(ids)]:
        pieces.append(ids[start : start + size])
        start += size
    settings: dict[str, object] = {"stop": tuple(stops), "min_tokens": min_tokens, "max_tokens": None}
    grouped = run(smollm, pieces, **settings)
    single = run(smollm, singly(ids), **settings)
    assert ("".join(grouped[0]), *grouped[1:]) == ("".join(single[0]), *single[1:])
    if grouped[1] is None:
        assert "".join(grouped[0]) == text
