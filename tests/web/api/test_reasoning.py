"""Thinking apart from the answer, by both of its names, and its tokens counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from trivet.text.reasoning import FORMATS
from trivet_web.api.chat_reader import ReasoningCount

if TYPE_CHECKING:
    from conftest import Speaker

SAID = "<think>\nLet me see.\n\nYes.\n</think>\n\nParis."
THOUGHT, ANSWER = "Let me see.\n\nYes.", "Paris."


def test_whole_answer_has_thinking_and_content_apart(speaker: Speaker) -> None:
    answer = speaker.ask(SAID)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == THOUGHT
    assert message["content"] == ANSWER
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]


def test_stream_brings_thinking_first_then_content(speaker: Speaker) -> None:
    *chunks, last = speaker.events(SAID, stream_options={"include_usage": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    kinds = ["r" if "reasoning" in d else "c" for d in deltas if d.get("content") or "reasoning" in d]
    assert "".join(kinds) == "r" * kinds.count("r") + "c" * kinds.count("c")
    assert "".join(d.get("reasoning_content", "") for d in deltas) == THOUGHT
    assert "".join(d.get("content", "") for d in deltas) == ANSWER
    whole = speaker.ask(SAID)["usage"]
    assert last["usage"] == whole


def test_thinking_can_be_left_out(speaker: Speaker) -> None:
    message = speaker.choice(SAID, include_reasoning=False)["message"]
    assert set(message) == {"content", "role", "refusal"}
    assert message["content"] == ANSWER
    assert all(
        "reasoning" not in c["choices"][0]["delta"] for c in speaker.events(SAID, include_reasoning=False)
    )


@pytest.mark.parametrize(
    "fields", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
def test_a_prompt_that_ends_the_thinking_leaves_content_only(
    speaker: Speaker, fields: dict[str, object]
) -> None:
    answer = speaker.ask(ANSWER, **fields)
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_a_template_that_begins_the_thinking_is_seen(speaking: Callable[..., Speaker]) -> None:
    speaker = speaking("{{ messages[0].content }}<think>\n")
    message = speaker.choice("Hm.</think>Yes")["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", "Yes")
    assert speaker.choice("Hm")["message"]["content"] is None, "the tokens were used up by thinking"


def test_a_form_without_a_mark_to_begin_after_is_the_answer(speaking: Callable[..., Speaker]) -> None:
    """This vocabulary has no </think>: the grammar holds from the first token on, and nothing is thought."""
    speaker = speaking("{{ messages[0].content }}<think>\n")
    form = {"guided_choice": ["blue", "red"]}
    message = speaker.choice("blue", **form)["message"]
    assert (message["content"], "reasoning" in message) == ("blue", False)
    deltas = [c["choices"][0]["delta"] for c in speaker.events("blue", **form)]
    assert "".join(d.get("content") or "" for d in deltas) == "blue"


def test_a_family_that_always_thinks_needs_no_mark(speaking: Callable[..., Speaker]) -> None:
    speaker = speaking("{{ messages[0].content }}", reasoning_format=FORMATS["deepseek_r1"])
    assert speaker.choice("Hm.</think>Yes")["message"]["reasoning"] == "Hm."


def test_a_model_that_does_not_think_keeps_its_words(speaking: Callable[..., Speaker]) -> None:
    speaker = speaking(reasoning_format=None)
    answer = speaker.ask(SAID)
    assert answer["choices"][0]["message"]["content"] == SAID
    assert "completion_tokens_details" not in answer["usage"]


def test_thinking_of_earlier_turns_reaches_the_template_by_either_name(
    speaking: Callable[..., Speaker],
) -> None:
    speaker = speaking("{% for m in messages %}{{ m.reasoning_content or '' }}{% endfor %}")
    for name in ("reasoning", "reasoning_content"):
        messages = [{"role": "assistant", "content": "x", name: "thought " * 20}]
        assert speaker.ask("x", messages=messages)["usage"]["prompt_tokens"] >= 20


def test_tokens_are_counted_up_to_the_mark_where_it_is_one() -> None:
    class Words:
        def id_of(self, token: str) -> int:
            return 9

    count = ReasoningCount(Words())  # type: ignore[arg-type]
    count.add([5], [], has_begun=False)
    count.add([5, 6], [], has_begun=True)
    count.add([6, 9, 4], [], has_begun=True)
    count.add([4, 9], [], has_begun=True)
    assert count.num_tokens == 4
