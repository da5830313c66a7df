"""The offline API, on the null backend; real text comes from the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trivet import LLM, SamplingParams
from trivet.demo_model import find_demo_model
from trivet.errors import ConfigError, ContextLengthExceeded, RequestError, Unsupported

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(find_demo_model(), backend="null", max_num_waiting=4) as llm:
        yield llm


def test_results_stand_in_the_prompts_order_with_text_and_ids(llm: LLM) -> None:
    prompts = ["Hello, my name is", "你好", "The capital of France is"]
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert all(output.finished and len(output.outputs[0].token_ids) == 12 for output in outputs)
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)
    assert all(output.outputs[0].text for output in outputs)


def test_a_batch_equals_the_prompts_alone(llm: LLM) -> None:
    prompts = [f"prompt {n}" for n in range(9)]  # more than max_num_waiting: the caller's list is the queue
    together = llm.generate(prompts, GREEDY, use_tqdm=False)
    alone = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in prompts]
    assert [o.outputs[0].token_ids for o in together] == [o.outputs[0].token_ids for o in alone]


def test_prompts_come_as_text_ids_or_mappings(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Hello")
    forms = ["Hello", {"prompt": "Hello"}, {"prompt_token_ids": ids}, ids]
    outputs = [llm.generate(form, GREEDY, use_tqdm=False)[0] for form in forms]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1


def test_a_stream_joins_to_the_whole_text(llm: LLM) -> None:
    whole = llm.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].text
    assert "".join(llm.stream("Hello", GREEDY)) == whole


def test_streams_may_be_read_in_turns(llm: LLM) -> None:
    prompts = ["Hello", "The capital of France is", "你好"]
    alone = ["".join(llm.stream(prompt, GREEDY)) for prompt in prompts]
    first, second = llm.stream(prompts[0], GREEDY), llm.stream(prompts[1], GREEDY)
    texts = [next(first), next(second)]
    assert llm.generate(prompts[2], GREEDY, use_tqdm=False)[0].outputs[0].text == alone[2]
    texts[1] += "".join(second)
    texts[0] += "".join(first)
    assert texts == alone[:2]


def test_logprobs_come_with_their_sum(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=2)
    completion = llm.generate("Hello", params, use_tqdm=False)[0].outputs[0]
    assert completion.logprobs is not None
    assert [len(entry.top) for entry in completion.logprobs] == [2, 2, 2]
    assert completion.cumulative_logprob == pytest.approx(sum(e.logprob for e in completion.logprobs))


def test_a_prompt_beyond_the_context_is_refused_before_anything_runs(llm: LLM) -> None:
    before = llm.engine.core.load().generation_tokens
    with pytest.raises(ContextLengthExceeded, match=r"9000"):
        llm.generate([[1]] * 9 + [[1] * 9000], GREEDY, use_tqdm=False)  # the last of more than may wait
    assert not llm.engine.core.has_work
    assert llm.engine.core.load().generation_tokens == before


def test_an_abandoned_stream_leaves_nothing_behind(llm: LLM) -> None:
    stream = llm.stream("Hello", SamplingParams(max_tokens=500, ignore_eos=True))
    next(iter(stream))
    del stream
    assert not llm.engine.core.has_work or llm.engine.core.load().num_running == 0


def test_bad_arguments_are_named(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"2 sampling_params for 1 prompts"):
        llm.generate("x", [GREEDY, GREEDY])
    with pytest.raises(RequestError, match=r"temperature is -1"):
        llm.generate("x", SamplingParams(temperature=-1))
    with pytest.raises(RequestError, match=r"neither 'prompt' nor 'prompt_token_ids'"):
        llm.generate({"text": "x"}, GREEDY)
    with pytest.raises(ConfigError, match=r"max_model_len"):
        LLM(find_demo_model(), backend="null", max_model_length=5)
    with pytest.raises(Unsupported, match=r"'tpu' is not installed"):
        LLM(find_demo_model(), backend="tpu")
