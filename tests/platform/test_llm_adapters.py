"""Adapters offline: the real model in GGUF, several adapters and the base model in one batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trivet import LLM, LoRARequest, SamplingParams
from trivet.contract_suite.gguf_oracle import read_gguf_oracle
from trivet.contract_suite.sampling_oracle import log_softmax
from trivet.contract_suite.tiny_adapters import ADAPTERS, make_tiny_adapter
from trivet.demo_model import find_demo_model
from trivet.engine.agreement import bound_of
from trivet.errors import ConfigError, RequestError, Unsupported, UnsupportedParameter
from trivet.models.model_files import open_model

PROMPT = "The capital of France is Paris, and the capital of Italy is"
# In float32 the oracle is met to the fourth digit, and each adapter stands far from the others.
SETTINGS = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 128,
    "backend": "cpu",
}
SCORES = SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=0, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    spec, folder = open_model(find_demo_model()).spec, tmp_path_factory.mktemp("adapters")
    assert spec is not None
    return {f"a{index}": make_tiny_adapter(spec, index, folder / str(index), size=0.2) for index in ADAPTERS}


@pytest.fixture(scope="module")
def llm(folders: dict[str, Path]) -> Iterator[LLM]:
    with LLM(find_demo_model(), adapters=folders, max_loras=4, **SETTINGS) as llm:
        yield llm


def prompt_scores(llm: LLM, names: list[str]) -> list[np.ndarray]:
    outputs = llm.generate([PROMPT] * len(names), SCORES, lora_request=names, use_tqdm=False)
    return [
        np.array([next(iter(entry.values())).logprob for entry in output.prompt_logprobs[1:]])
        for output in outputs
    ]


def test_scores_of_the_real_model_are_those_of_merged_weights(llm: LLM, folders: dict[str, Path]) -> None:
    """In one batch: three adapters and none; each is further from the others than from its oracle."""
    names = ["", *folders]
    found = prompt_scores(llm, names)
    ids = llm.get_tokenizer().encode(PROMPT, add_special_tokens=True)
    oracle = read_gguf_oracle(find_demo_model(), 256, 49152)
    base = {key: value.clone() for key, value in oracle._model.state_dict().items()}
    wanted = []
    for name in names:
        oracle._model.load_state_dict(base)
        if name:
            oracle.adapt(folders[name])
        wanted.append(log_softmax(oracle.logits(ids))[np.arange(len(ids) - 1), ids[1:]])
    errors = np.array([[np.abs(one - other).mean() for other in wanted] for one in found])
    assert errors.diagonal().max() < bound_of("f32"), errors
    assert (errors + np.eye(4)).min() > 0.02, errors


def test_the_same_prompt_under_another_adapter_finds_no_cached_prefix(llm: LLM) -> None:
    first = prompt_scores(llm, ["a1", "a2", ""])
    again = prompt_scores(llm, ["", "a1", "a2"])
    for one, other in zip(first, [again[1], again[2], again[0]], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


def test_an_adapter_that_comes_with_its_path_takes_a_free_slot(llm: LLM, folders: dict[str, Path]) -> None:
    """As scripts written for vLLM have it; there is one slot more than adapters."""
    late = LoRARequest("late", 7, str(folders["a3"]))
    (one,) = llm.generate([PROMPT], SCORES, lora_request=late, use_tqdm=False)
    (other,) = llm.generate([PROMPT], SCORES, lora_request="a3", use_tqdm=False)
    assert one.outputs[0].token_ids == other.outputs[0].token_ids
    with pytest.raises(UnsupportedParameter, match=r"'later' has no slot: 4 of 4 are taken.*max_loras 5"):
        llm.generate([PROMPT], SCORES, lora_request=LoRARequest("later", 8, str(folders["a3"])))
    for name, right in (("late", "a3"), ("a1", "a1")):
        llm.generate([PROMPT], SCORES, lora_request=LoRARequest(name, 9, f"{folders[right]}/."))
        with pytest.raises(UnsupportedParameter, match=rf"'{name}' was loaded from .*; give one of them an"):
            llm.generate([PROMPT], SCORES, lora_request=LoRARequest(name, 9, str(folders["a2"])))
    with pytest.raises(RequestError, match="no adapter 'none': there are a1, a2, a3, late"):
        llm.generate([PROMPT], SCORES, lora_request="none")


def test_a_rank_beyond_the_setting_and_a_missing_folder_are_told_at_the_start(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(Unsupported, match=r"adapter 'a' .* has rank 8 and max_lora_rank is 4; set it to 8"):
        LLM(find_demo_model(), adapters={"a": folders["a1"]}, max_lora_rank=4, **SETTINGS)
    with pytest.raises(Exception, match=r"there is no adapter_config\.json"):
        LLM(find_demo_model(), adapters={"a": tmp_path}, **SETTINGS)
    with pytest.raises(ConfigError, match="max_loras is 1 and 2 adapters"):
        LLM(find_demo_model(), adapters={"a": tmp_path, "b": tmp_path}, max_loras=1, **SETTINGS)
