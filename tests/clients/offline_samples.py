"""Samples that need no server, in Trivet's own Python: `python offline_samples.py NAME MODEL.gguf`."""

from __future__ import annotations

import sys
from pathlib import Path

from trivet import LLM, SamplingParams


def batch(model: str) -> None:
    """The offline batch of every manual of vLLM."""
    prompts = ["Hello, my name is", "The capital of France is", "人工智能的未来是"]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=50)
    llm = LLM(model=model, dtype="half")
    outputs = llm.generate(prompts, sampling_params)
    assert [output.prompt for output in outputs] == prompts
    for output in outputs:
        assert len(output.outputs[0].token_ids) <= 50
        assert isinstance(output.outputs[0].text, str)


def ignored_end(model: str) -> None:
    """Every token that was asked for, whatever the model says."""
    params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=512, ignore_eos=True)
    (output,) = LLM(model=model).generate(["Once"], params)
    assert len(output.outputs[0].token_ids) == 512
    assert output.outputs[0].finish_reason == "length"


def loop(model: str) -> None:
    """transformers' loop by hand, prefill and then one token at a time, has our greedy tokens."""
    import torch

    from trivet.contract_suite.gguf_oracle import read_gguf_model  # transformers' own wants accelerate

    llm = LLM(model=model, backend="cpu", dtype="float32", max_model_len=256)
    ids = llm.get_tokenizer().encode("The capital of France is")
    (output,) = llm.generate([{"prompt_token_ids": ids}], SamplingParams(temperature=0, max_tokens=16))
    reference = read_gguf_model(Path(model)).eval()
    given, past, greedy = torch.tensor([ids]), None, []
    with torch.inference_mode():
        for _ in range(16):
            step = reference(input_ids=given, past_key_values=past, use_cache=True)
            past = step.past_key_values
            given = step.logits[:, -1:].argmax(-1)
            greedy.append(int(given))
    assert list(output.outputs[0].token_ids) == greedy


if __name__ == "__main__":
    {"batch": batch, "ignored_end": ignored_end, "loop": loop}[sys.argv[1]](sys.argv[2])
