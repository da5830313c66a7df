"""Where thinking begins and ends, however the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivet.engine_settings import REASONING_PARSERS
from trivet.text.answer_parser import AnswerParser, AnswerParts
from trivet.text.reasoning import FORMATS, ReasoningParser, begins_in_reasoning
from trivet.text.tool_calls.hermes import HermesParser


def split(pieces: list[str], *, inside: bool = False) -> tuple[str, str]:
    parser, parts = AnswerParser(ReasoningParser(begins_inside=inside), None), AnswerParts()
    for piece in pieces:
        parts.add(parser.push(piece))
    parts.add(parser.finish())
    return parts.reasoning, parts.content


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\nHm.\n\nSo.\n</think>\n\nYes. ", False, "Hm.\n\nSo.", "Yes. "),
        ("Hm.\n</think>\nYes", True, "Hm.", "Yes"),
        ("<think>Hm</think>Yes", True, "Hm", "Yes"),
        ("<think>\n\n</think>\n\nYes", False, "", "Yes"),
        ("<think>Hm", False, "Hm", ""),  # the tokens were used up
        ("Hm", True, "Hm", ""),
        (" Yes <think> no </think>", False, "", " Yes <think> no </think>"),
        ("<thin", False, "", "<thin"),
        ("", False, "", ""),
        ("", True, "", ""),
    ],
)
def test_reasoning_is_what_stands_between_the_marks(
    text: str, inside: bool, reasoning: str, content: str
) -> None:
    assert split([text], inside=inside) == (reasoning, content)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "\n", " ", "a", "</"]), max_size=12),
    st.booleans(),
)
def test_any_cut_of_the_stream_gives_the_same(pieces: list[str], inside: bool) -> None:
    text = "".join(pieces)
    assert split(pieces, inside=inside) == split([text], inside=inside) == split(list(text), inside=inside)


def test_a_call_that_the_model_only_thinks_of_is_none() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parser, parts = AnswerParser(ReasoningParser(begins_inside=True), HermesParser({"f": {}})), AnswerParts()
    parts.add(parser.push(f"{call}</think>{call}") + parser.finish())
    assert (parts.reasoning, parts.content, [c.name for c in parts.calls]) == (call, "", ["f"])


@pytest.mark.parametrize(
    ("prompt", "name", "begins"),
    [
        ("<|im_start|>assistant\n", "qwen3", False),
        ("<|im_start|>assistant\n<think>\n", "qwen3", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "qwen3", False),
        ("<｜Assistant｜>", "deepseek_r1", True),
        ("<｜Assistant｜></think>", "deepseek_r1", False),
    ],
)
def test_the_prompt_says_whether_the_completion_begins_with_it(prompt: str, name: str, begins: bool) -> None:
    assert begins_in_reasoning(prompt, FORMATS[name]) is begins


def test_the_settings_name_every_family() -> None:
    assert set(REASONING_PARSERS) == {"auto", "none", *FORMATS}
