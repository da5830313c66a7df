"""Beam search: on logprobs made up here, and on the null backend through `LLM`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import pytest

from trivet import LLM, SamplingParams
from trivet.beam_search import BeamSearchParams, beam_search
from trivet.demo_model import find_demo_model
from trivet.errors import RequestError
from trivet.outputs import CompletionOutput, Logprob, RequestOutput
from trivet.text.tokenizer import Tokenizer

TOKENS = (10, 11, 12, 2)
END = 2


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(find_demo_model(), backend="null") as llm:
        yield llm


@pytest.fixture(scope="module")
def tokenizer(llm: LLM) -> Tokenizer:
    return llm.get_tokenizer()


def logprob(before: tuple[int, ...], token: int) -> float:
    """Of a small model of four tokens: a distribution that depends on all that came before."""
    weights = {one: 1.0 + (7 * sum(before) + 13 * one * (len(before) + 1)) % 11 for one in TOKENS}
    return math.log(weights[token] / sum(weights.values()))


def generate(prompts: list[list[int]], wish: SamplingParams) -> list[RequestOutput]:
    assert (wish.max_tokens, wish.temperature) == (1, 0.0)
    outputs = []
    for number, prompt in enumerate(prompts):
        ranked = sorted(TOKENS, key=lambda token: -logprob(tuple(prompt), token))[: wish.logprobs]
        likely = {t: Logprob(logprob(tuple(prompt), t), rank, "") for rank, t in enumerate(ranked, start=1)}
        completion = CompletionOutput(token_ids=ranked[:1], logprobs=[likely], finish_reason="length")
        outputs.append(RequestOutput(str(number), None, prompt, [completion], finished=True))
    return outputs


def total(prompt: list[int], completion: tuple[int, ...]) -> float:
    return sum(logprob((*prompt, *completion[:n]), token) for n, token in enumerate(completion))


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_of_all_texts(tokenizer: Tokenizer, length_penalty: float) -> None:
    """Of three tokens at most there are 39 that end or are cut; a beam of 9 leaves none of them out."""
    prompt = [5, 6]
    plain = TOKENS[:-1]
    texts = [*product(plain, repeat=3)]
    texts += [(*before, END) for length in range(3) for before in product(plain, repeat=length)]

    def score(text: tuple[int, ...]) -> float:
        length = len(text) - (text[-1] == END)
        return total(prompt, text) / max(length, 1) ** length_penalty

    best = sorted(texts, key=score, reverse=True)[:9]
    params = BeamSearchParams(beam_width=9, max_tokens=3, length_penalty=length_penalty)
    (output,) = beam_search(generate, tokenizer, [END], [prompt], params)
    assert [one.tokens for one in output.sequences] == [[*prompt, *text] for text in best]
    for one, text in zip(output.sequences, best, strict=True):
        assert one.cum_logprob == pytest.approx(total(prompt, text))
        assert one.finish_reason == ("stop" if text[-1] == END else "length")


def test_without_ends_every_beam_has_its_full_length(tokenizer: Tokenizer) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=4, ignore_eos=True)
    outputs = beam_search(generate, tokenizer, [END], [[5], [6, 7]], params)
    assert [[len(one.tokens) for one in output.sequences] for output in outputs] == [[5] * 3, [6] * 3]


def test_special_tokens_are_hidden_or_shown_as_asked(tokenizer: Tokenizer) -> None:
    for skips in (True, False):
        params = BeamSearchParams(beam_width=9, max_tokens=2, length_penalty=0.0, skip_special_tokens=skips)
        (output,) = beam_search(generate, tokenizer, [END], [[1000]], params)
        ended = [one for one in output.sequences if one.finish_reason == "stop"]
        assert ended
        assert all(one.text.endswith("<|im_end|>") is not skips for one in ended)


def test_the_end_token_may_be_shown_where_others_are_skipped(tokenizer: Tokenizer) -> None:
    def ended(**wish: bool) -> list[str]:
        params = BeamSearchParams(beam_width=9, max_tokens=2, length_penalty=0.0, **wish)
        (output,) = beam_search(generate, tokenizer, [END], [[1000]], params)
        return [one.text for one in output.sequences if one.finish_reason == "stop"]

    shown = ended(include_stop_str_in_output=True)
    assert shown == [f"{text}<|im_end|>" for text in ended()]
    assert len(shown) > 1
    for text in ended(include_stop_str_in_output=True, skip_special_tokens=False):
        assert (text.count("<|im_end|>"), text.endswith("<|im_end|>")) == (1, True)


def test_a_temperature_is_taken_and_weighs_nothing(llm: LLM) -> None:
    cold, hot = (
        llm.beam_search("Hello", BeamSearchParams(beam_width=3, max_tokens=4, temperature=one))[0].sequences
        for one in (0.0, 2.0)
    )
    assert [(one.tokens, one.cum_logprob) for one in cold] == [(one.tokens, one.cum_logprob) for one in hot]


def test_a_beam_of_one_is_greedy_and_a_wider_one_no_worse(llm: LLM) -> None:
    wish = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logprobs=0)
    greedy = llm.generate("Hello", wish, use_tqdm=False)[0].outputs[0]
    (one,) = llm.beam_search("Hello", BeamSearchParams(beam_width=1, max_tokens=5, ignore_eos=True))
    assert one.sequences[0].tokens[-5:] == greedy.token_ids
    assert one.sequences[0].cum_logprob == pytest.approx(greedy.cumulative_logprob, abs=1e-4)
    many = llm.beam_search(["Hello", "Bye"], BeamSearchParams(beam_width=4, max_tokens=5, ignore_eos=True))
    assert [len(output.sequences) for output in many] == [4, 4]
    assert many[0].sequences[0].cum_logprob >= one.sequences[0].cum_logprob - 1e-4


def test_what_is_out_of_range_is_named(llm: LLM) -> None:
    for params, words in (
        (BeamSearchParams(beam_width=11, max_tokens=1), "beam_width is 11; it must be between 1 and 10"),
        (BeamSearchParams(beam_width=1, max_tokens=0), "max_tokens is 0"),
        (BeamSearchParams(beam_width=1, max_tokens=1, temperature=-1.0), "temperature is -1.0"),
    ):
        with pytest.raises(RequestError, match=words):
            llm.beam_search("Hello", params)


def test_without_beam_search_params_there_is_no_search(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"params is None; give BeamSearchParams"):
        llm.beam_search(["a"], None)  # type: ignore[arg-type]
