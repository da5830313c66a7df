"""What each weight format costs in accuracy: SmolLM2-135M against float32 over the same weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from trivet.contract import RunnerConfig
from trivet.contract_suite.driver import Driver, scoring_work
from trivet.demo_model import find_demo_model
from trivet.models.model_files import ModelFiles, open_model
from trivet.text.tokenizer import load_tokenizer
from trivet.weights.dequantize import dequantize
from trivet_cpu.backend import CpuBackend

Float32 = NDArray[np.float32]
TEXTS = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of "
    "France is Paris. It lies on the river Seine and has more than two million inhabitants.<|im_end|>\n"
    "<|im_start|>user\nWhat is 12 times 7?<|im_end|>\n<|im_start|>assistant\n12 times 7 is 84.<|im_end|>\n",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n\n\n"
    "print([fibonacci(n) for n in range(10)])  # [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]\n",
    "The sky appears blue because molecules in the air scatter blue light from the sun more than they "
    "scatter red light. Towards the sun at sunset we see red and orange, because the blue light has been "
    "scattered out of the line of sight. In 1871 Lord Rayleigh published a paper on small particles.",
)
# KL divergence from float32, mean over the tokens, and the mean error of the next token's logprob.
# Measured over 220 tokens (AVX-512): bf16 2.3e-4 and 0.013; q8_0 5.3e-4 and 0.025, q4_0 6.0e-4 and 0.021,
# q4_1 4.4e-4 and 0.019, q4_k 6.0e-4 and 0.022. Were the largest activations in 8 bits, too, it would be 3e-3
# and 0.05 (q4_1).
BOUNDS = {"bf16": (5e-4, 0.03), "auto": (1.2e-3, 0.035)}


def _q4_k(rows: Float32) -> NDArray[np.uint8]:
    """Blocks of 256: the file format's, its 6-bit scales plainly rounded (llama.cpp, ggml-common.h)."""
    groups = rows.reshape(-1, 8, 32)
    low = np.minimum(groups.min(-1), 0)
    steps = np.stack([(groups.max(-1) - low) / 15, -low])  # [2, blocks, 8]
    units = (steps.max(-1) / 63).astype(np.float16)  # [2, blocks]
    inverse = 1 / np.maximum(units.astype(np.float32), 1e-8)
    factors = np.clip(np.rint(steps * inverse[..., None]), 0, 63).astype(np.uint8)
    scale, minimum = (factors * units[..., None].astype(np.float32))[..., None]
    numbers = np.clip(np.rint((groups + minimum) / np.maximum(scale, 1e-8)), 0, 15).astype(np.uint8)
    (a, b), packed = factors, np.empty((len(groups), 144), np.uint8)
    packed[:, :4] = units.T.copy().view(np.uint8)
    packed[:, 4:8] = a[:, :4] | (a[:, 4:] >> 4 << 6)
    packed[:, 8:12] = b[:, :4] | (b[:, 4:] >> 4 << 6)
    packed[:, 12:16] = (a[:, 4:] & 15) | (b[:, 4:] & 15) << 4
    packed[:, 16:] = (numbers[:, 0::2] | numbers[:, 1::2] << 4).reshape(-1, 128)
    return packed.reshape(len(rows), -1)


def _requantised(rows: Float32, form: str) -> tuple[NDArray[np.uint8], gguf.GGMLQuantizationType]:
    """In `form`; Q8_0 where its blocks are longer than a row."""
    if form == "q4_k" and rows.shape[1] % 256 == 0:
        return _q4_k(rows), gguf.GGMLQuantizationType.Q4_K
    kind = gguf.GGMLQuantizationType["Q8_0" if form == "q4_k" else form.upper()]
    return gguf.quants.quantize(rows, kind), kind


class DemoModel:
    """The demo model's file as the `gguf` package reads it, which takes seconds for the vocabulary."""

    def __init__(self) -> None:
        source = gguf.GGUFReader(find_demo_model())
        self.tensors = source.tensors
        self.fields = [
            (
                field.name,
                field.contents(),
                field.types[0],
                field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None,
            )
            for field in source.fields.values()
            if field.types and not field.name.startswith(("GGUF.", "general.architecture"))
        ]


@pytest.fixture(scope="module")
def demo_model() -> DemoModel:
    return DemoModel()


def _write(source: DemoModel, target: Path, form: str) -> None:
    """The demo model with all matrices in another format."""
    writer = gguf.GGUFWriter(target, "llama")
    for field in source.fields:
        writer.add_key_value(*field)
    for tensor in source.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        if len(shape) == 1:
            writer.add_tensor(tensor.name, np.array(tensor.data))
            continue
        rows = dequantize(np.array(tensor.data), tensor.tensor_type.name.lower(), shape)
        blocks, kind = _requantised(np.asarray(rows, np.float32), form)
        writer.add_tensor(tensor.name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _logprobs(files: ModelFiles, prompts: list[list[int]], dtype: str, step_tokens: int = 160) -> Float32:
    """[tokens, vocabulary] after each token but the last of every prompt, in steps of so many tokens."""
    assert files.spec is not None
    backend = CpuBackend()
    options = {"kernels": "native", "num_threads": "1"}  # other tests have the other cores
    config = RunnerConfig(dtype=dtype, max_num_seqs=4, max_model_len=160, options=options)
    devices = backend.probe(1.0)
    plan = backend.plan(files.spec, files.weights, config, devices)
    runner = backend.create_runner(files.spec, config, plan, devices)
    runner.load(files.weights, lambda done, total: None)
    runner.allocate_kv()
    driver = Driver(runner, plan, vocab_size=files.spec.vocab_size, max_num_seqs=4)
    every_id = np.arange(files.spec.num_tokens, dtype=np.int32)
    rows = []
    for prompt in prompts:
        driver.reset()
        sequence = driver.add(prompt)
        for start in range(0, len(prompt) - 1, step_tokens):
            work = scoring_work(sequence, min(step_tokens, len(prompt) - 1 - start))
            _, output = driver.run([work], extra_ids=every_id)
            assert output.extra_logprobs is not None
            rows.append(output.extra_logprobs.copy())
    runner.close()
    return np.concatenate(rows)


@pytest.mark.parametrize("form", ["q8_0", "q4_0", "q4_1", "q4_k"])
def test_every_weight_format_stays_close_to_float32(demo_model: DemoModel, form: str, tmp_path: Path) -> None:
    """q4_1 is the demo model's own file; with it bf16 is measured, too. test_smollm2.py has float32."""
    file = find_demo_model() if form == "q4_1" else tmp_path / "model.gguf"
    if form != "q4_1":
        _write(demo_model, file, form)
    files = open_model(file)
    tokenizer = load_tokenizer(files.path)
    prompts = [list(tokenizer.encode(text)) for text in TEXTS]
    given = np.concatenate([prompt[1:] for prompt in prompts])[:, None]
    reference = _logprobs(files, prompts, "f32").astype(np.float64)
    # Steps of few rows multiply integers, and with AMX those of many bfloat16.
    cases = (("auto", 160), ("auto", 8), ("bf16", 160)) if form == "q4_1" else (("auto", 160), ("auto", 8))
    for dtype, step_tokens in cases:
        errors = _logprobs(files, prompts, dtype, step_tokens) - reference
        divergence = -(np.exp(reference) * errors).sum(-1).mean()
        error = np.abs(np.take_along_axis(errors, given, -1)).mean()
        most, most_error = BOUNDS[dtype]
        case = f"{form} {dtype}, {step_tokens} tokens a step"
        print(f"{case}: KL {divergence:.2e}, logprob error {error:.1e}, {len(given)} tokens")
        assert divergence <= most, (form, dtype, divergence)
        assert error <= most_error, (form, dtype, error)
