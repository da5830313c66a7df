"""The offline API, on the null backend; real text comes from the end-to-end tests."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from trivet import LLM, LoRARequest, SamplingParams
from trivet.contract import Batch
from trivet.demo_model import find_demo_model
from trivet.errors import (
    ConfigError,
    ContextLengthExceeded,
    RequestError,
    Unavailable,
    Unsupported,
)
from trivet.structured_outputs import StructuredOutputsParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
ONE = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


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


def test_token_ids_may_stand_in_arrays(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("Hello, you")
    plain = llm.generate(ids, GREEDY, use_tqdm=False)[0]
    array = np.array(ids)
    forms: list[Any] = [array, list(array), tuple(ids), torch.tensor(ids), {"prompt_token_ids": array}]
    for form in forms:
        (output,) = llm.generate(form, GREEDY, use_tqdm=False)
        assert output.prompt_token_ids == ids
        assert {type(one) for one in output.prompt_token_ids} == {int}
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
    many: list[Any] = [np.array([ids, ids]), [array, torch.tensor(ids)]]
    for form in many:
        outputs = llm.generate(form, GREEDY, use_tqdm=False)
        assert [one.prompt_token_ids for one in outputs] == [ids, ids]


def test_prompts_of_lower_priority_run_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that the engine's queue has no place for: here two may wait, and one runs."""
    with LLM(find_demo_model(), backend="null", max_num_seqs=1, max_num_waiting=2) as llm:
        ended: list[str] = []
        step = llm.engine.core.step

        def watch() -> Any:
            updates = step()
            ended.extend(one.sequence.request_id for one in updates if one.finish_reason is not None)
            return updates

        monkeypatch.setattr(llm.engine.core, "step", watch)
        prompts = [f"prompt {n}" for n in range(6)]
        plain = llm.generate(prompts, ONE, use_tqdm=False)
        assert ended == [f"{n}-0" for n in range(6)]
        ended.clear()
        outputs = llm.generate(prompts, ONE, use_tqdm=False, priority=np.array([9, 0, 5, 0, -2, 30]))
        assert ended == [f"{6 + n}-0" for n in (4, 1, 3, 2, 0, 5)]
        assert [one.prompt for one in outputs] == prompts, "results stand in the prompts' order"
        assert [one.outputs[0].token_ids for one in outputs] == [o.outputs[0].token_ids for o in plain]
        ended.clear()
        talks = [[{"role": "user", "content": text}] for text in ("Hello", "Bye")]
        llm.chat(talks, ONE, use_tqdm=False, priority=[1, 0])
        assert ended == ["13-0", "12-0"]


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
    assert [len(entry) for entry in completion.logprobs] == [2, 2, 2]
    drawn = [entry[token] for entry, token in zip(completion.logprobs, completion.token_ids, strict=True)]
    assert completion.cumulative_logprob == pytest.approx(sum(one.logprob for one in drawn))
    assert [one.rank for one in drawn] == [1, 1, 1], "greedy"
    assert "".join(one.decoded_token for one in drawn) == completion.text


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


def test_without_sampling_params_the_models_own_defaults_count(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its generation_config, as in vLLM, and alike whether the text is streamed."""
    files = replace(llm.engine.files, generation_defaults={"top_k": 3, "temperature": 0.5})
    monkeypatch.setattr(llm, "_engine", replace(llm.engine, files=files))
    seen: list[SamplingParams] = []
    prepare = llm._prepare

    def watch(prompts: Any, params: Any, *others: Any) -> Any:
        seen.extend(params)
        return prepare(prompts, params, *others)

    monkeypatch.setattr(llm, "_prepare", watch)
    llm.generate(["Hello", "Bye"], use_tqdm=False)
    llm.chat([{"role": "user", "content": "Hello"}], use_tqdm=False)
    "".join(llm.stream("Hello"))
    assert seen == [SamplingParams(top_k=3, temperature=0.5)] * 4


def test_several_conversations_are_answered_in_their_order(llm: LLM) -> None:
    talks = [[{"role": "user", "content": text}] for text in ("Hello", "Bye")]
    alone = [llm.chat(talk, GREEDY, use_tqdm=False)[0] for talk in talks]
    together = llm.chat(talks, GREEDY, use_tqdm=False)
    assert [(one.prompt, one.outputs[0].token_ids) for one in together] == [
        (one.prompt, one.outputs[0].token_ids) for one in alone
    ]
    assert [len(one.outputs[0].token_ids) for one in llm.chat(talks, [GREEDY, ONE], use_tqdm=False)] == [
        12,
        1,
    ]


def test_a_chat_takes_the_options_of_its_template(llm: LLM) -> None:
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good"}]
    (going_on,) = llm.chat(talk, ONE, use_tqdm=False, continue_final_message=True)
    assert str(going_on.prompt).endswith("assistant\nGood")
    (bare,) = llm.chat(talk[:1], ONE, use_tqdm=False, add_generation_prompt=False)
    assert "assistant\n" not in str(bare.prompt)
    for name in ("messages", "add_generation_prompt"):
        with pytest.raises(RequestError, match=f"chat_template_kwargs must not set {name};"):
            llm.chat(talk, chat_template_kwargs={name: []})
    with pytest.raises(RequestError, match="messages is empty"):
        llm.chat([])


def test_after_its_end_nothing_is_answered() -> None:
    with LLM(find_demo_model(), backend="null") as llm:
        pass
    with pytest.raises(Unavailable, match="this LLM is closed"):
        llm.generate([[1, 2]], use_tqdm=False)
    with pytest.raises(Unavailable, match="this LLM is closed"):
        llm.embed([[1, 2]], use_tqdm=False)


@pytest.mark.parametrize("member", ["forward", "sample", "collect"])
def test_ctrl_c_leaves_a_model_that_answers(llm: LLM, monkeypatch: pytest.MonkeyPatch, member: str) -> None:
    """It falls into a step, as it nearly always does."""
    assert threading.current_thread() is threading.main_thread()
    alone = llm.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    whole = "".join(llm.stream("Bye", GREEDY))
    other = llm.stream("Bye", GREEDY)
    begun = next(other)
    called, num_calls = getattr(llm.engine.runner, member), 0

    def interrupted(*given: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            signal.raise_signal(signal.SIGINT)
        return called(*given)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.runner, member, interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("Hello", GREEDY, use_tqdm=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert begun + "".join(other) == whole, "a stream that was open loses nothing"
    assert llm.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == alone


def test_settings_may_be_python_values() -> None:
    settings = {"dtype": torch.float32, "max_model_len": None, "options": {"num_threads": 3}}
    with LLM(find_demo_model(), backend="null", **settings) as llm:
        config = llm.engine.placement.config
    assert (config.dtype, config.max_model_len, config.options) == ("f32", None, {"num_threads": "3"})
    with pytest.raises(ConfigError, match="options"):
        LLM(find_demo_model(), backend="null", options=["num_threads"])


def test_bad_arguments_are_named(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"2 sampling_params for 1 prompts"):
        llm.generate("x", [GREEDY, GREEDY])
    with pytest.raises(RequestError, match=r"temperature is -1"):
        llm.generate("x", SamplingParams(temperature=-1))
    with pytest.raises(RequestError, match=r"seed is 1.5; it must be of type int"):
        llm.generate("x", SamplingParams(seed=1.5))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"neither 'prompt' nor 'prompt_token_ids'"):
        llm.generate({"text": "x"}, GREEDY)
    with pytest.raises(ConfigError, match=r"max_model_len"):
        LLM(find_demo_model(), backend="null", max_model_length=5)
    with pytest.raises(Unsupported, match=r"'tpu' is not installed"):
        LLM(find_demo_model(), backend="tpu")


def test_n_completions_have_the_tokens_of_seeds_that_count_up(llm: LLM) -> None:
    wish = SamplingParams(n=3, seed=5, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate("Hello", wish, use_tqdm=False)
    assert [one.index for one in output.outputs] == [0, 1, 2]
    assert output.finished
    for index, one in enumerate(output.outputs):
        alone = SamplingParams(seed=5 + index, max_tokens=8, ignore_eos=True)
        assert one.token_ids == llm.generate("Hello", alone, use_tqdm=False)[0].outputs[0].token_ids
    assert len({tuple(one.token_ids) for one in output.outputs}) == 3


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_n_completions_compute_their_prompt_once(caches: bool, prompt_logprobs: int | None) -> None:
    """But for the last, partly filled block (128 tokens here), which each of them writes into."""
    with LLM(find_demo_model(), backend="null", enable_prefix_caching=caches) as llm:
        prompt = list(range(100, 100 + 128 * 4 + 7))
        wish = SamplingParams(n=4, max_tokens=3, ignore_eos=True, prompt_logprobs=prompt_logprobs)
        held, computed = [], []
        block_pool, forward = llm.engine.core.block_pool, llm.engine.runner.forward

        def watch(batch: Batch) -> None:
            computed.append(len(batch.token_ids))
            held.append(block_pool.num_usable - block_pool.num_free)
            forward(batch)

        llm.engine.runner.forward = watch  # type: ignore[method-assign]
        (output,) = llm.generate([prompt], wish, use_tqdm=False)
        assert all(len(one.token_ids) == 3 for one in output.outputs)
        assert max(held) == 4 + 4, "four shared blocks, and one of its own for each"
        assert sum(computed) == len(prompt) + 3 * 7 + 4 * 2, "the shared blocks once, then 7 tokens each"
        assert output.num_cached_tokens == 0, "its first completion found nothing"
        assert len(output.prompt_logprobs or ()) == (0 if prompt_logprobs is None else len(prompt))
        once = sum(computed)
        llm.generate([prompt], wish, use_tqdm=False)
        kept = 2 * once - sum(computed)
        is_kept = caches and prompt_logprobs is None  # a prompt that is scored is computed
        assert kept == (4 * 128 if is_kept else 0), "without a cache, nothing is kept for others"


def test_a_stream_has_one_completion(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"n is 2"):
        next(llm.stream("Hello", SamplingParams(n=2)))


def test_prompt_logprobs_are_one_for_each_prompt_token_and_none_for_the_first(llm: LLM) -> None:
    wish = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=2)
    (output,) = llm.generate("The capital of France is", wish, use_tqdm=False)
    assert output.prompt_logprobs is not None
    first, *others = output.prompt_logprobs
    assert first is None
    assert len(others) == len(output.prompt_token_ids) - 1
    for token, entry in zip(output.prompt_token_ids[1:], others, strict=True):
        assert entry is not None
        assert token in entry
        assert len(entry) in (2, 3), "two likely ones, and its own where it is no such"
    again = llm.generate("The capital of France is", wish, use_tqdm=False)[0]
    assert again.prompt_logprobs == output.prompt_logprobs, "whatever the prefix cache holds"


def test_prompt_logprobs_without_a_completion(llm: LLM) -> None:
    wish = SamplingParams(max_tokens=0, prompt_logprobs=0)
    (output,) = llm.generate("The capital of France is", wish, use_tqdm=False)
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ([], "length")
    assert output.prompt_logprobs is not None
    assert [None if one is None else len(one) for one in output.prompt_logprobs] == [None, 1, 1, 1, 1]


def test_bad_words_never_come_and_allowed_tokens_are_all_that_come(llm: LLM) -> None:
    (free,) = llm.generate("Hello", GREEDY, use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    words = [tokenizer.token_text(token).strip() for token in free.outputs[0].token_ids]
    words = [word for word in words if word.isascii() and word.isalpha()]
    assert words
    wish = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, bad_words=words)
    (output,) = llm.generate("Hello", wish, use_tqdm=False)
    came = {tokenizer.token_text(token).strip() for token in output.outputs[0].token_ids}
    assert not came & set(words)
    allowed = SamplingParams(max_tokens=12, ignore_eos=True, allowed_token_ids=[100, 200])
    (output,) = llm.generate("Hello", allowed, use_tqdm=False)
    assert set(output.outputs[0].token_ids) <= {100, 200}


def test_a_token_that_the_model_does_not_have_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"logit_bias has token id 49152"):
        llm.generate("Hello", SamplingParams(logit_bias={49152: 1.0}), use_tqdm=False)


def test_forms_are_kept_to_with_two_steps_in_flight(llm: LLM) -> None:
    """The null model draws anything that a mask allows; masks are made after the step before is known."""
    assert llm.engine.runner.max_in_flight == 2
    form = StructuredOutputsParams(regex="[a-c]{3}(-[0-9]{2}){2}")
    wishes = [
        SamplingParams(n=4, max_tokens=40, structured_outputs=form),
        SamplingParams(n=2, max_tokens=40, structured_outputs=form, presence_penalty=2.0, min_tokens=2),
        SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=form, logprobs=1, stop="-"),
        GREEDY,
    ]
    outputs = llm.generate(["Hello"] * 4, wishes, use_tqdm=False)
    texts = [one.text for output in outputs[:2] for one in output.outputs]
    assert all(re.fullmatch("[a-c]{3}(-[0-9]{2}){2}", text) for text in texts)
    drawn = [one.token_ids[-1] for output in outputs[:2] for one in output.outputs]
    assert llm.get_tokenizer().id_of("<|im_end|>") not in drawn, "no step is spent on an end token"
    assert re.fullmatch("[a-c]{3}", outputs[2].outputs[0].text)
    assert (
        outputs[3].outputs[0].token_ids
        == llm.generate("Hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    )
    assert {one.finish_reason for output in outputs[:3] for one in output.outputs} == {"stop"}


def test_a_form_that_could_end_goes_on_where_the_end_is_ignored(llm: LLM) -> None:
    end = llm.get_tokenizer().id_of("<|im_end|>")
    assert end is not None
    form = StructuredOutputsParams(regex="[a-c]*")
    wish = {"temperature": 0.0, "max_tokens": 20, "structured_outputs": form, "logit_bias": {end: 100.0}}
    (stops,) = llm.generate("Hello", SamplingParams(**wish), use_tqdm=False)
    assert (stops.outputs[0].token_ids, stops.outputs[0].finish_reason) == ([end], "stop")
    (goes_on,) = llm.generate("Hello", SamplingParams(**wish, ignore_eos=True), use_tqdm=False)
    assert end not in goes_on.outputs[0].token_ids
    assert (len(goes_on.outputs[0].token_ids), goes_on.outputs[0].finish_reason) == (20, "length")
    assert re.fullmatch("[a-c]+", goes_on.outputs[0].text)


def test_an_adapter_that_is_not_there_is_refused_wherever_it_is_given(llm: LLM) -> None:
    for ask in (llm.generate, llm.embed):
        with pytest.raises(RequestError, match=r"^there is no adapter 'sql': this engine has none$"):
            ask(["a"], lora_request="sql")
    with pytest.raises(RequestError, match="'sql' has no slot: 0 of 0 are taken"):
        llm.chat([{"role": "user", "content": "a"}], lora_request=LoRARequest("sql", 1, "/sql"))
    with pytest.raises(RequestError, match="no adapter 'sql'"):
        llm.score("a", "b", lora_request="sql")
    with pytest.raises(RequestError, match="2 of lora_request for 1 prompts"):
        llm.generate(["a"], lora_request=["", "sql"])
