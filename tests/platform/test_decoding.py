"""Decoding on the real SmolLM2 in float32: the cases that other engines got wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from trivet import LLM, SamplingParams
from trivet.demo_model import find_demo_model
from trivet.errors import RequestError
from trivet.outputs import CompletionOutput
from trivet.structured_outputs import StructuredOutputsParams

PROMPT = "The capital of France is"
LIST = "A list of fruits:\n1. Apple\n2."
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


FLOAT32 = {"dtype": "float32", "num_threads": 1}  # other tests have the other cores
NARROW = {**FLOAT32, "max_model_len": 96, "num_gpu_blocks_override": 9}  # just over one sequence


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(find_demo_model(), **FLOAT32, max_model_len=256, max_num_seqs=32) as llm:
        yield llm


def complete(llm: LLM, prompt: Any, **params: Any) -> CompletionOutput:
    params = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True, **params}
    (output,) = llm.generate(prompt, SamplingParams(**params), use_tqdm=False)
    assert output.error is None
    return output.outputs[0]


def person(llm: LLM) -> dict[str, Any]:
    return llm.chat_prompt([{"role": "user", "content": "Describe a person as JSON."}])


# ---- stops ----


def test_a_stop_string_inside_a_token_cuts_the_text_before_it(llm: LLM) -> None:
    free = complete(llm, PROMPT)
    texts = [llm.get_tokenizer().token_text(token) for token in free.token_ids]
    stop = next(text for text in texts[3:] if len(text) > 4)[2:4]
    cut = complete(llm, PROMPT, stop=stop)
    assert cut.text == free.text[: free.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    kept = complete(llm, PROMPT, stop=[stop], include_stop_str_in_output=True)
    assert kept.text == cut.text + stop


@pytest.mark.parametrize("stop", ["\nObservation", "\n3", "\n3. X", "e\n", ("zzz", "3. "), ()])
def test_a_stream_is_the_whole_text_and_leaks_nothing_of_a_stop(llm: LLM, stop: Any) -> None:
    whole = complete(llm, LIST, stop=stop)
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, stop=stop)
    pieces = list(llm.stream(LIST, params))
    assert "".join(pieces) == whole.text
    assert len(pieces) > 1
    for one in (stop,) if isinstance(stop, str) else stop:
        assert one not in whole.text


def test_a_stop_string_that_never_comes_changes_nothing(llm: LLM) -> None:
    free = complete(llm, PROMPT).text
    assert complete(llm, PROMPT, stop="no such text").text == free
    assert complete(llm, PROMPT, stop=None).text == complete(llm, PROMPT, stop=[]).text == free
    with pytest.raises(RequestError, match="strings that are not empty"):
        complete(llm, PROMPT, stop="")


def test_no_stop_counts_before_min_tokens(llm: LLM) -> None:
    free = complete(llm, LIST)
    cut = complete(llm, LIST, stop="\n", min_tokens=5)
    assert len(cut.token_ids) > 5
    assert free.text.startswith(cut.text)
    assert "\n" in cut.text


# ---- characters and special tokens ----


def test_characters_of_many_tokens_are_streamed_whole(llm: LLM) -> None:
    text = "日本語🙂🎉漢字"
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=[text]), max_tokens=64)
    pieces = list(llm.stream(PROMPT, params))
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces)
    count = len(complete(llm, PROMPT, structured_outputs=params.structured_outputs, max_tokens=64).token_ids)
    assert count > len(text), "characters take several tokens each"
    for limit in range(1, count, 3):
        cut = complete(llm, PROMPT, structured_outputs=params.structured_outputs, max_tokens=limit)
        assert cut.text.count("�") <= 1
        assert text.startswith(cut.text.rstrip("�"))
        assert cut.finish_reason == "length"


def test_special_tokens_are_hidden_or_shown_as_asked_streamed_or_not(llm: LLM) -> None:
    prompt = llm.chat_prompt([{"role": "user", "content": "Say hi."}])
    wish = {"temperature": 0.0, "max_tokens": 40}
    for skips in (True, False):
        params = SamplingParams(**wish, skip_special_tokens=skips)
        (output,) = llm.generate(prompt, params, use_tqdm=False)
        assert output.outputs[0].finish_reason == "stop"
        assert output.outputs[0].text.endswith("<|im_end|>") is not skips
        assert "".join(llm.stream(prompt, params)) == output.outputs[0].text


# ---- alone and in a crowd ----


def crowd() -> list[tuple[str, SamplingParams]]:
    """28 requests of many kinds."""
    forms = [None, StructuredOutputsParams(regex="[a-z ]{5,40}"), StructuredOutputsParams(json=PERSON)]
    return [
        (
            f"{PROMPT} {'word ' * (n * 3 % 17)}",
            SamplingParams(
                temperature=(0.0, 0.7, 1.3)[n % 3],
                top_p=(1.0, 0.8)[n % 2],
                top_k=(0, 20, 0)[n % 3],
                max_tokens=3 + n % 11,
                presence_penalty=(0.0, 1.0)[n % 2],
                repetition_penalty=(1.0, 1.2, 0.9)[n % 3],
                logit_bias={100 + n: 5.0} if n % 4 == 0 else None,
                bad_words=["the", "Paris"] if n % 5 == 0 else [],
                logprobs=(None, 2)[n % 2],
                prompt_logprobs=1 if n % 7 == 0 else None,
                seed=n if n % 3 else None,
                structured_outputs=forms[n % 3],
            ),
        )
        for n in range(28)
    ]


def test_a_request_has_the_same_tokens_alone_and_among_32(llm: LLM) -> None:
    """Greedy, seeded, with penalties, and with a schema."""
    wishes = [
        SamplingParams(max_tokens=12, **wish)
        for wish in (
            {"temperature": 0.0},
            {"temperature": 0.9, "seed": 11},
            {
                "temperature": 0.0,
                "presence_penalty": 1.0,
                "frequency_penalty": 0.5,
                "repetition_penalty": 1.3,
            },
            {"seed": 3, "structured_outputs": StructuredOutputsParams(json=PERSON)},
        )
    ]
    alone = [llm.generate(PROMPT, wish, use_tqdm=False)[0].outputs[0].token_ids for wish in wishes]
    others = crowd()
    prompts = [prompt for prompt, _ in others]
    params = [wish for _, wish in others]
    for place, wish in enumerate(wishes):
        prompts.insert(7 * place + 3, PROMPT)
        params.insert(7 * place + 3, wish)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert len(outputs) == 32
    assert all(output.error is None for output in outputs)
    assert [outputs[7 * place + 3].outputs[0].token_ids for place in range(4)] == alone


def test_the_prefix_cache_changes_no_token_and_hardly_a_logprob(llm: LLM) -> None:
    prompt = (
        "Once upon a time, in a small village by the sea, there lived a girl who could talk to birds. " * 2
    )
    first, second = (complete(llm, prompt, logprobs=0, max_tokens=12) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert first.logprobs is not None
    assert second.logprobs is not None
    for token, one, other in zip(first.token_ids, first.logprobs, second.logprobs, strict=True):
        assert one[token].logprob == pytest.approx(other[token].logprob, abs=1e-4)
    (output,) = llm.generate(prompt, SamplingParams(max_tokens=1), use_tqdm=False)
    assert output.num_cached_tokens > 16
    (fresh,) = llm.generate(prompt, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    assert fresh.num_cached_tokens == 0, "the other prompt logprobs would be missing"


def test_eight_requests_in_a_pool_of_just_over_one_have_the_text_they_have_with_room(llm: LLM) -> None:
    """Which is the one that they have alone, as above."""
    prompts = [f"{n} and {n + 1} are numbers. {PROMPT}" for n in range(8)]
    wish = SamplingParams(temperature=0.0, max_tokens=28, ignore_eos=True)
    with_room = llm.generate(prompts, wish, use_tqdm=False)
    with LLM(find_demo_model(), **NARROW) as narrow:
        outputs = narrow.generate(prompts, wish, use_tqdm=False)
        load = narrow.engine.core.load()
        assert load.num_preemptions > 0
        assert load.kv_usage == 0
    found, wanted = ([each.outputs[0].token_ids for each in one] for one in (outputs, with_room))
    assert found == wanted


# ---- logprobs ----


def test_logprobs_are_the_models_own_whatever_the_sampling(llm: LLM) -> None:
    def first(**wish: Any) -> dict[int, float]:
        found = complete(llm, PROMPT, max_tokens=1, logprobs=5, **wish).logprobs
        assert found is not None
        return {token: entry.logprob for token, entry in found[0].items() if entry.rank <= 5}

    raw = first(temperature=1.0)
    assert len(raw) == 5
    wishes = [
        {"temperature": 0.5, "top_p": 0.3},
        {"repetition_penalty": 1.5, "logit_bias": {260: 50.0}},
        {"structured_outputs": StructuredOutputsParams(regex="[0-9]+")},
    ]
    for wish in wishes:
        assert first(**wish) == pytest.approx(raw, abs=1e-5)


def test_logprobs_without_top_ones_are_the_drawn_tokens(llm: LLM) -> None:
    completion = complete(llm, PROMPT, logprobs=0, max_tokens=3)
    assert completion.logprobs is not None
    assert [list(entry) for entry in completion.logprobs] == [[token] for token in completion.token_ids]


def test_prompt_logprobs_are_what_the_tokens_have_when_they_are_drawn(llm: LLM) -> None:
    drawn = complete(llm, PROMPT, logprobs=2, max_tokens=6)
    ids = llm.get_tokenizer().encode(PROMPT) + drawn.token_ids
    (output,) = llm.generate([ids], SamplingParams(max_tokens=0, prompt_logprobs=2), use_tqdm=False)
    assert output.prompt_logprobs is not None
    assert drawn.logprobs is not None
    for token, one, other in zip(drawn.token_ids, output.prompt_logprobs[-6:], drawn.logprobs, strict=True):
        assert one is not None
        assert one[token].logprob == pytest.approx(other[token].logprob, abs=1e-4)
        assert one[token].rank == other[token].rank


# ---- penalties and their kin ----


def test_presence_and_frequency_do_not_see_the_prompt_and_repetition_does(llm: LLM) -> None:
    prompt = "Paris, Paris, Paris, Paris, Paris,"
    free = complete(llm, prompt, max_tokens=1).token_ids
    assert llm.get_tokenizer().decode(free).strip() == "Paris"
    assert complete(llm, prompt, max_tokens=1, presence_penalty=2, frequency_penalty=2).token_ids == free
    assert complete(llm, prompt, max_tokens=1, repetition_penalty=3).token_ids != free
    assert len(set(complete(llm, prompt, presence_penalty=2, frequency_penalty=2).token_ids)) > 5


def test_a_bias_of_100_forces_and_of_minus_100_forbids(llm: LLM) -> None:
    free = complete(llm, PROMPT, max_tokens=4).token_ids
    assert complete(llm, PROMPT, max_tokens=4, logit_bias={1000: 100.0}).token_ids == [1000] * 4
    assert free[0] not in complete(llm, PROMPT, max_tokens=4, logit_bias={free[0]: -100.0}).token_ids


def test_bad_words_of_several_tokens_do_not_come(llm: LLM) -> None:
    word = "Eiffel Tower"
    assert len(llm.get_tokenizer().encode(f" {word}")) > 1
    prompt = "The Eiffel Tower is in Paris. The Eiffel Tower is tall. The"
    assert word in complete(llm, prompt).text
    without = complete(llm, prompt, bad_words=[word])
    assert word not in without.text
    assert "Tower" in complete(llm, f"{prompt} Eiffel", bad_words=[word]).text, (
        "the prompt counts for nothing"
    )


@pytest.mark.parametrize(
    "wish",
    [
        {"temperature": 1e-6},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "min_p": 1.0},
    ],
)
def test_the_narrowest_settings_are_greedy(llm: LLM, wish: dict[str, float]) -> None:
    assert (
        complete(llm, PROMPT, max_tokens=8, **wish).token_ids == complete(llm, PROMPT, max_tokens=8).token_ids
    )


def test_three_completions_with_logprobs_of_a_prompt(llm: LLM) -> None:
    wish = SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True, logprobs=1, top_k=100_000, top_p=1.0)
    (output,) = llm.generate(PROMPT, wish, use_tqdm=False)
    assert [one.index for one in output.outputs] == [0, 1, 2]
    assert len({one.text for one in output.outputs}) == 3
    assert all(one.logprobs is not None and len(one.logprobs) == 6 for one in output.outputs)


# ---- structured outputs ----


def test_a_schema_is_kept_to_by_every_seed(llm: LLM) -> None:
    form = StructuredOutputsParams(json=PERSON)
    wishes = [
        SamplingParams(n=4, seed=7, max_tokens=120, structured_outputs=form),
        SamplingParams(n=2, max_tokens=120, structured_outputs=form, presence_penalty=1.5, top_p=0.9),
        SamplingParams(n=2, max_tokens=120, structured_outputs=form, repetition_penalty=1.5, logprobs=1),
        SamplingParams(temperature=0.0, max_tokens=120, structured_outputs=form, min_tokens=3),
        SamplingParams(temperature=2.0, max_tokens=120, structured_outputs=form, ignore_eos=True),
    ]
    outputs = llm.generate([person(llm)] * len(wishes), wishes, use_tqdm=False)
    for completion in (one for output in outputs for one in output.outputs):
        assert completion.finish_reason == "stop"
        jsonschema.validate(json.loads(completion.text), PERSON)


def test_a_form_ends_with_its_last_token_and_is_streamed(llm: LLM) -> None:
    form = StructuredOutputsParams(regex=r"\d{3}-\d{4}")
    params = SamplingParams(seed=5, structured_outputs=form)
    whole = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0]
    assert len(whole.text) == 8
    assert (whole.finish_reason, whole.stop_reason) == ("stop", None)
    assert "".join(llm.stream(PROMPT, params)) == whole.text


def test_a_form_that_max_tokens_cuts_ends_with_length(llm: LLM) -> None:
    cut = complete(llm, person(llm), structured_outputs=StructuredOutputsParams(json=PERSON), max_tokens=5)
    assert (cut.finish_reason, len(cut.token_ids)) == ("length", 5)


def test_a_stop_string_ends_a_form_early(llm: LLM) -> None:
    form = StructuredOutputsParams(json=PERSON)
    cut = complete(llm, person(llm), structured_outputs=form, stop='"age"', max_tokens=60)
    assert (cut.finish_reason, cut.stop_reason) == ("stop", '"age"')
    assert '"name"' in cut.text


def test_a_form_that_leaves_no_token_fails_alone_with_the_reason(llm: LLM) -> None:
    form = StructuredOutputsParams(regex="[0-9]+")
    wishes = [
        SamplingParams(max_tokens=4, structured_outputs=form, allowed_token_ids=[1000]),
        SamplingParams(max_tokens=4, structured_outputs=form, temperature=0.0),
    ]
    failed, fine = llm.generate([PROMPT] * 2, wishes, use_tqdm=False)
    assert failed.error is not None
    assert failed.error == (
        "structured_outputs.regex and allowed_token_ids together leave no token after 0 tokens of this "
        "completion; allow more"
    )
    assert fine.error is None
    assert fine.outputs[0].text.isdigit()


def test_what_cannot_be_carried_out_is_refused_and_the_next_request_answered(llm: LLM) -> None:
    for form in (
        StructuredOutputsParams(json={"properties": {"a": {"not": {}}}}),
        StructuredOutputsParams(regex="(a"),
    ):
        with pytest.raises(RequestError, match="cannot be carried out"):
            complete(llm, PROMPT, structured_outputs=form)
    assert complete(llm, PROMPT, max_tokens=2).text


def test_forms_survive_preemption() -> None:
    """A pool of just over one sequence; five of them."""
    wish = SamplingParams(seed=3, max_tokens=60, structured_outputs=StructuredOutputsParams(json=PERSON))
    with LLM(find_demo_model(), **NARROW) as llm:
        prompts = [f"{n}: a person as JSON:" for n in range(5)]
        outputs = llm.generate(prompts, wish, use_tqdm=False)
        assert llm.engine.core.load().num_preemptions > 0
        for output in outputs:
            assert output.outputs[0].finish_reason == "stop"
            jsonschema.validate(json.loads(output.outputs[0].text), PERSON)
