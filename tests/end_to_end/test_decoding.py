"""Decoding through every layer: choices, logprobs, echo and forms, by the official OpenAI client."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import psutil
import pytest

CPU_TICK_PERCENT = 0.5  # the kernel counts hundredths of a second: of the two that are looked at
PROMPT = "The capital of France is"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
ASK = [{"role": "user", "content": "Describe a person as JSON."}]


@pytest.fixture(scope="module")
def sdk(shared_site: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{shared_site.base_url}/v1", api_key="unused", max_retries=0)


def chat(sdk: openai.OpenAI, **fields: Any) -> Any:
    return sdk.chat.completions.create(**{"model": "smol", "messages": ASK, "max_tokens": 80, **fields})


def test_n_answers_keep_to_a_schema_streamed_and_not(sdk: openai.OpenAI) -> None:
    whole = chat(sdk, n=3, seed=1, response_format=FORMAT)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = {choice.index: choice.message.content for choice in whole.choices}
    assert len(set(texts.values())) == 3
    for text in texts.values():
        jsonschema.validate(json.loads(text), PERSON)
    streamed = dict.fromkeys(range(3), "")
    for chunk in chat(sdk, n=3, seed=1, response_format=FORMAT, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    for text in streamed.values():
        jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [
        ({"response_format": {"type": "json_object"}, "max_tokens": 5}, lambda text: text[0] == "{"),
        ({"extra_body": {"guided_regex": r"\d{3}-\d{4}"}}, lambda text: len(text) == 8),
        ({"extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}}, ("yes", "no").__contains__),
        ({"extra_body": {"guided_grammar": 'root ::= "a" "b"* "c"'}}, lambda t: t[0] + t[-1] == "ac"),
    ],
    ids=["json_object", "regex", "choice", "grammar"],
)
def test_every_form_is_kept_to(sdk: openai.OpenAI, fields: dict[str, Any], is_kept: Any) -> None:
    (choice,) = chat(sdk, **fields).choices
    assert choice.finish_reason == "stop" or "response_format" in fields, "any object may be a long one"
    assert is_kept(choice.message.content)


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_carried_out_is_400_that_names_the_part(
    sdk: openai.OpenAI, stream: bool
) -> None:
    schema = {"type": "object", "properties": {"a": {"items": {"uniqueItems": True}}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(sdk, response_format=form, stream=stream)
    assert caught.value.param == "response_format.json_schema.schema"
    assert "response_format.json_schema.schema cannot be carried out at /properties/a/items" in str(
        caught.value
    )
    assert "uniqueItems" in str(caught.value)


def test_heavy_grammars_hold_up_nobody(sdk: openai.OpenAI) -> None:
    """Catastrophic forms and a schema of a megabyte, while others are answered, as the next one is."""
    huge = {"enum": [f"x{n}" * 10 for n in range(17_000)]}
    heavy = [
        {"guided_regex": "(a?){5000}a{5000}"},
        {"guided_regex": "[\\x00-\u2e7f]+"},
        {"guided_json": huge},
        {"guided_grammar": 'root ::= "a" root | root root | ""'},
        {"guided_json": {"allOf": [{"type": "string", "pattern": f".*a.{{{n}}}b"} for n in range(1, 30)]}},
        {"guided_grammar": "\n".join(["start: r0", *(f"r{n}: r{n + 1} r{n + 1}" for n in range(3000))])},
    ]

    def ask(extra: dict[str, Any]) -> str:
        try:
            return str(chat(sdk, extra_body=extra, max_tokens=5).choices[0].finish_reason)
        except (openai.BadRequestError, openai.InternalServerError) as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, [*heavy, {}, {}, {}, {}]))
    assert all(answer in ("length", "stop") or "guided_" in answer for answer in answers), answers
    assert set(answers[len(heavy) :]) <= {"length", "stop"}
    assert ask({}) in ("length", "stop")


def test_an_echo_with_logprobs_is_what_lm_eval_reads(sdk: openai.OpenAI) -> None:
    """Token ids in, one token out, and a logprob for each token of the prompt but the first."""
    ids = [504, 3575, 282, 4649, 314]
    done = sdk.completions.create(
        model="smol", prompt=[ids], echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1
    )
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == len(ids) + 1
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])
    assert all(len(likely) in (1, 2) for likely in logprobs.top_logprobs[1:])
    assert done.choices[0].text == "".join(logprobs.tokens)
    again = sdk.completions.create(model="smol", prompt=[ids], echo=True, logprobs=1, max_tokens=0)
    assert again.choices[0].logprobs is not None
    assert again.choices[0].logprobs.token_logprobs is not None
    assert again.choices[0].logprobs.token_logprobs[1:] == pytest.approx(
        logprobs.token_logprobs[1:-1], abs=1e-3
    )


def test_penalties_biases_and_words_reach_the_engine(sdk: openai.OpenAI) -> None:
    def text(**fields: Any) -> str:
        wish = {"model": "smol", "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **fields}
        return sdk.completions.create(**wish).choices[0].text

    free = text()
    assert "Paris" in free
    assert "Paris" not in text(extra_body={"bad_words": ["Paris"]})
    assert len(set(text(logit_bias={"1000": 100}).split())) <= 1
    assert text(presence_penalty=2, frequency_penalty=2) != free
    assert text(extra_body={"repetition_penalty": 3.0}) != free
    allowed = text(extra_body={"allowed_token_ids": [33, 34, 35]})
    assert len(allowed) == 8


def test_wishes_that_leave_no_token_are_the_requests_fault(sdk: openai.OpenAI) -> None:
    wish = {"structured_outputs": {"regex": "[0-9]+"}, "allowed_token_ids": [1000]}
    with pytest.raises(openai.BadRequestError, match="leave no token after 0 tokens") as refused:
        sdk.completions.create(model="smol", prompt=PROMPT, max_tokens=4, extra_body=wish)
    assert refused.value.param == "allowed_token_ids"


def test_prompt_logprobs_are_vllms(sdk: openai.OpenAI) -> None:
    done: Any = sdk.completions.create(
        model="smol", prompt=PROMPT, max_tokens=1, extra_body={"prompt_logprobs": 1}
    )
    first, *others = done.choices[0].prompt_logprobs
    assert first is None
    assert {"logprob", "rank", "decoded_token"} == set(next(iter(others[0].values())))
    assert len(others) == done.usage.prompt_tokens - 1


def test_engines_that_have_answered_use_no_core_while_they_are_idle(
    sdk: openai.OpenAI, shared_site: Any
) -> None:
    """Under 2 % of one each, also the CPU's, whose threads wait awake for their next step."""
    sdk.completions.create(model="smol", prompt=[PROMPT] * 4, max_tokens=8)
    with shared_site.client() as client:
        shared_site.wait_for(
            "nothing runs",
            lambda: all(one.load and not one.load.num_running for one in client.instances.list()),
        )
    engines = [psutil.Process(pid) for pid in shared_site.engine_pids()]
    assert len(engines) == 2
    for engine in engines:
        engine.cpu_percent()  # from here on
    psutil.cpu_percent(interval=2.0)
    assert max(engine.cpu_percent() for engine in engines) < 2 + CPU_TICK_PERCENT


# ---- the same text streamed or not, on the null backend: it says anything ----


def completed(sdk: openai.OpenAI, **fields: Any) -> list[tuple[str, str | None, list[str]]]:
    """Text, reason and scored tokens of each choice, which a stream has to bring as well."""
    wish = {"model": "null", "prompt": "go on", "max_tokens": 40, "temperature": 1, "seed": 5, **fields}
    whole = [
        (one.text, one.finish_reason, (one.logprobs and one.logprobs.tokens) or [])
        for one in sdk.completions.create(**wish).choices
    ]
    texts, tokens = [""] * len(whole), [list[str]() for _ in whole]
    reasons: list[str | None] = [None] * len(whole)
    for chunk in sdk.completions.create(**wish, stream=True):
        for one in chunk.choices:
            texts[one.index] += one.text
            tokens[one.index] += (one.logprobs and one.logprobs.tokens) or []
            reasons[one.index] = one.finish_reason or reasons[one.index]
    assert list(zip(texts, reasons, tokens, strict=True)) == whole
    return whole


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_a_stop_cuts_the_same_text_streamed_or_not(
    sdk: openai.OpenAI, n: int, logprobs: int | None, include: bool
) -> None:
    free = completed(sdk, n=n, logprobs=logprobs, extra_body={"ignore_eos": True})
    first = max(re.findall("[^\ufffd]+", free[0][0]), key=len)  # characters that the tokens have whole
    assert len(first) >= 8
    stops = [first[2:4], first[1:7], first[:-1], first[3]]
    for stop in ([stops[0]], [stops[1]], [stops[2], "never"], stops):
        extra = {"ignore_eos": True, "include_stop_str_in_output": include}
        came = completed(sdk, n=n, logprobs=logprobs, stop=stop, extra_body=extra)
        for (text, reason, tokens), (whole, _, all_tokens) in zip(came, free, strict=True):
            ends = [whole.index(one) + len(one) for one in stop if one in whole]
            if not ends:
                assert (text, reason) == (whole, "length")
                continue
            longest = max((one for one in stop if whole[: min(ends)].endswith(one)), key=len)
            assert (text, reason) == (whole[: min(ends) - (0 if include else len(longest))], "stop")
            assert tokens == all_tokens[: len(tokens)]


def test_stops_that_are_none_change_nothing_and_an_empty_one_is_refused(sdk: openai.OpenAI) -> None:
    free = completed(sdk)
    for stop in (None, [], "no such text", ["no such text"]):
        assert completed(sdk, stop=stop) == free
    with pytest.raises(
        openai.BadRequestError, match=r"stop is .* made of strings that are not empty"
    ) as caught:
        completed(sdk, stop="")
    assert caught.value.param == "stop"


def test_characters_of_many_tokens_are_streamed_whole(sdk: openai.OpenAI) -> None:
    text = "漢字🙂🎉日本語"
    wish = {"model": "null", "stream": True, "extra_body": {"structured_outputs": {"choice": [text]}}}
    for limit in (64, 7):
        chunks = [
            one.text
            for chunk in sdk.completions.create(**wish, prompt="go on", max_tokens=limit)
            for one in chunk.choices
        ]
        talk = [
            one.delta.content or ""
            for chunk in sdk.chat.completions.create(**wish, messages=ASK, max_tokens=limit)
            for one in chunk.choices
        ]
        for pieces in (chunks, talk):
            joined = "".join(pieces)
            assert joined == text if limit == 64 else text.startswith(joined.rstrip("\ufffd"))
            assert sum("\ufffd" in piece for piece in pieces) <= (limit == 7), "only where the limit cuts one"


@pytest.mark.parametrize("skips", [True, False])
def test_special_tokens_are_hidden_or_shown_streamed_or_not(sdk: openai.OpenAI, skips: bool) -> None:
    extra = {"skip_special_tokens": skips, "min_tokens": 3}
    for n in (1, 2):
        for text, reason, _ in completed(sdk, n=n, logit_bias={"2": 100}, extra_body=extra):
            assert reason == "stop"
            assert text.endswith("<|im_end|>") is not skips
            assert len(text) > len("<|im_end|>") or skips


@pytest.mark.parametrize("logprobs", [None, 1])
def test_the_shortest_answers_are_the_same_streamed_or_not(sdk: openai.OpenAI, logprobs: int | None) -> None:
    free = completed(sdk, n=2, logprobs=logprobs)
    for limit in (0, 1, 2):
        for (text, reason, tokens), (whole, _, _) in zip(
            completed(sdk, n=2, logprobs=logprobs, max_tokens=limit), free, strict=True
        ):
            assert reason == "length"
            assert whole.startswith(text.rstrip("\ufffd"))
            assert len(tokens) == (0 if logprobs is None else limit)
    (first, _, _), _ = free
    (text, reason, _), _ = completed(sdk, n=2, logprobs=logprobs, stop=first[:1])
    assert (text, reason) == ("", "stop"), "nothing came before it"


def test_a_stop_string_is_sought_in_the_completion_only(sdk: openai.OpenAI) -> None:
    """Not in an echoed prompt, nor across its end."""
    ((free, _, _),) = completed(sdk, prompt="go on END", extra_body={"ignore_eos": True})
    for stop in ("END", "go on", "D" + free[:2]):
        ((text, _, _),) = completed(
            sdk, prompt="go on END", stop=stop, echo=True, extra_body={"ignore_eos": True}
        )
        assert text == "go on END" + free
