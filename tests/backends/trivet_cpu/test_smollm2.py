"""Both runners on the real SmolLM2-135M: numbers against transformers, memory against the plan."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

from trivet import LLM
from trivet.contract import PoolKind, RunnerConfig
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.gguf_oracle import read_gguf_oracle
from trivet.contract_suite.oracle import Oracle, scores
from trivet.contract_suite.steps import Work
from trivet.demo_model import find_demo_model
from trivet.engine.agreement import Scores, compare
from trivet.models.model_files import ModelFiles, open_model
from trivet.text.tokenizer import load_tokenizer
from trivet_cpu.backend import CpuBackend

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n <",
    "Once upon a time, in a small village by the sea, there lived a girl who",
)
NUM_TOKENS = 64
MAX_MODEL_LEN = 160
BACKEND = CpuBackend()


class Kind(NamedTuple):
    """Of a driver, which takes seconds to load: tests of one kind follow each other and share it."""

    dtype: str
    kernels: str


F32, F32_TORCH = Kind("f32", "native"), Kind("f32", "torch")
BF16, BF16_TORCH = Kind("bf16", "native"), Kind("bf16", "torch")
AS_STORED = Kind("auto", "native")


@dataclass(frozen=True)
class Continued:
    """The prompts and what the float32 runner made of them, greedily."""

    files: ModelFiles
    oracle: Oracle
    prompts: list[list[int]]
    sequences: list[list[int]]


def _driver(files: ModelFiles, dtype: str, kernels: str = "torch", arch: str | None = None) -> Driver:
    """On one thread: other tests have the other cores.

    `arch`: as if the CPU had these instruction sets only.
    """
    assert files.spec is not None
    options = {"kernels": kernels, "num_threads": "1"}
    config = RunnerConfig(
        dtype=dtype,
        max_num_seqs=4,
        max_model_len=MAX_MODEL_LEN,
        options=options,
    )
    (device,) = BACKEND.probe(1.0)
    devices = [device if arch is None else replace(device, arch=arch)]
    plan = BACKEND.plan(files.spec, files.weights, config, devices)
    runner = BACKEND.create_runner(files.spec, config, plan, devices)
    runner.load(files.weights, lambda done, total: None)
    runner.allocate_kv()
    runner.warm_up()
    return Driver(runner, plan, vocab_size=files.spec.vocab_size, max_num_seqs=4)


@pytest.fixture(scope="module")
def continued() -> Continued:
    files = open_model(find_demo_model())
    assert files.spec is not None
    tokenizer = load_tokenizer(files.path)
    prompts = [list(tokenizer.encode(text)) for text in PROMPTS]
    driver = _driver(files, "f32", "native")
    sequences = [driver.add(prompt) for prompt in prompts]
    driver.generate(sequences, NUM_TOKENS)
    driver.runner.close()
    oracle = read_gguf_oracle(find_demo_model(), MAX_MODEL_LEN, files.spec.num_tokens)
    return Continued(files, oracle, prompts, [sequence.token_ids for sequence in sequences])


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def driver(kind: Kind, continued: Continued) -> Iterator[Driver]:
    made = _driver(continued.files, *kind)
    yield made
    made.runner.close()


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> None:
    if "driver" in request.fixturenames:
        request.getfixturevalue("driver").reset()


def test_float32_greedy_ids_equal_those_of_transformers(continued: Continued) -> None:
    """Each token is the oracle's first choice after the tokens before it: by induction, its greedy ids."""
    for prompt, sequence in zip(continued.prompts, continued.sequences, strict=True):
        assert len(sequence) == len(prompt) + NUM_TOKENS
        chosen = continued.oracle.logits(sequence)[len(prompt) - 1 : -1].argmax(-1)
        assert sequence[len(prompt) :] == chosen.tolist()


@pytest.mark.parametrize("kind", [F32, F32_TORCH], indirect=True, ids="-".join)
def test_float32_greedy_ids_are_the_same_again(continued: Continued, driver: Driver, kind: Kind) -> None:
    """A step in torch takes 0.2 s of processor time; scored below are all."""
    num_tokens = NUM_TOKENS if kind is F32 else 16
    sequences = [driver.add(prompt) for prompt in continued.prompts]
    driver.generate(sequences, num_tokens)
    wanted = zip(continued.prompts, continued.sequences, strict=True)
    assert [sequence.token_ids for sequence in sequences] == [
        tokens[: len(prompt) + num_tokens] for prompt, tokens in wanted
    ]


MEAN_ERRORS = {F32: 1e-4, F32_TORCH: 1e-4, BF16: 0.03, BF16_TORCH: 0.06, AS_STORED: 0.05}


@pytest.mark.parametrize("kind", MEAN_ERRORS, indirect=True, ids="-".join)
def test_teacher_forced_logprobs_agree_with_transformers(
    continued: Continued, driver: Driver, kind: Kind
) -> None:
    """Measured, at most and on average: f32 3e-5 and 4e-6; bf16 native 0.09 and 0.008, torch 0.14 and 0.017.

    As stored (4-bit layers, 8-bit head, activations of 8 bits): 0.15 and 0.018.
    """
    measured, reference = [], []
    for sequence in continued.sequences:
        driver.reset()
        measured.append(driver.score(driver.add(sequence)))
        reference.append(scores(continued.oracle, sequence))
    agreement = compare(Scores.join(reference), Scores.join(measured), kind.dtype)
    assert agreement.agrees, str(agreement)
    assert agreement.mean_error < MEAN_ERRORS[kind], str(agreement)


@pytest.mark.skipif("avx2" not in BACKEND.probe(1.0)[0].arch.split(), reason="this CPU has no AVX2")
def test_as_stored_on_a_cpu_with_avx2_only_agrees_with_transformers(continued: Continued) -> None:
    driver = _driver(continued.files, "auto", "native", "x86-64 avx2")
    sequence = continued.sequences[0]
    measured = Scores.join([driver.score(driver.add(sequence))])
    driver.runner.close()
    agreement = compare(Scores.join([scores(continued.oracle, sequence)]), measured, "auto")
    assert agreement.mean_error < 0.05, str(agreement)


VECTOR_BOUNDS = {
    F32: (0.999999, 1e-5),
    F32_TORCH: (0.999999, 1e-5),
    BF16: (0.9998, 0.01),
    AS_STORED: (0.998, 0.03),
}  # the cosine, and the error of one element


@pytest.mark.parametrize("kind", VECTOR_BOUNDS, indirect=True, ids="-".join)
def test_vectors_of_length_one_agree_with_transformers(
    continued: Continued, driver: Driver, kind: Kind
) -> None:
    """In two chunks.

    Measured, 1 - cosine and error: f32 1e-7 and 9e-7; bf16 8e-5 and 0.004; as stored 7e-4 and 0.008.
    """
    kinds, (cosine, error) = (PoolKind.LAST, PoolKind.SUM), VECTOR_BOUNDS[kind]
    for tokens in continued.sequences:
        driver.reset()
        sequences, parts = [driver.add(tokens) for _ in kinds], []
        while left := sequences[0].num_left:
            pairs = zip(sequences, kinds, strict=True)
            _, output = driver.run([Work(sequence, min(48, left), pooling=one) for sequence, one in pairs])
            assert output.pooled is not None
            parts.append(output.pooled)
        hidden = continued.oracle.hidden(tokens)
        pooled = (parts[-1][0], np.sum(parts, axis=0)[1])
        for vector, wanted in zip(pooled, (hidden[-1], hidden.sum(axis=0)), strict=True):
            measured, reference = vector / np.linalg.norm(vector), wanted / np.linalg.norm(wanted)
            assert measured @ reference > cosine
            assert np.abs(measured - reference).max() < error


def test_vectors_and_scores_of_the_offline_api_agree_with_transformers(continued: Continued) -> None:
    """Measured: cosine 1 - 1e-7, scores within 2e-6."""
    settings = {"dtype": "float32", "max_model_len": MAX_MODEL_LEN, "num_threads": 1}
    with LLM(find_demo_model(), backend="cpu", **settings) as llm:
        for output in llm.embed(list(PROMPTS), pooling="mean", use_tqdm=False):
            wanted = continued.oracle.hidden(output.prompt_token_ids).mean(axis=0)
            assert output.outputs.embedding @ wanted / np.linalg.norm(wanted) > 0.999999
        yes, no = (llm.get_tokenizer().encode(word)[0] for word in ("yes", "no"))
        documents = ["Paris is the capital of France.", "Bread is baked from flour."]
        for one in llm.score("What is the capital of France?", documents, use_tqdm=False):
            logits = continued.oracle.logits(one.prompt_token_ids)[-1].astype(np.float64)
            assert one.outputs.score == pytest.approx(1 / (1 + np.exp(logits[no] - logits[yes])), abs=1e-4)


PROBE = """
import json, sys
import numpy as np
from trivet.contract import RunnerConfig
from trivet.contract_suite.driver import Driver, greedy_work, scoring_work
from trivet.contract_suite.steps import Work
from trivet.demo_model import find_demo_model
from trivet.models.model_files import open_model
from trivet_cpu.backend import CpuBackend
from trivet_cpu.process_memory import return_free_memory

def anonymous():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["RssAnon"].split()[0]) * 1024

files, backend = open_model(find_demo_model()), CpuBackend()
dtype, kernels = sys.argv[1:]
options = {"kernels": kernels} | ({"num_threads": "1"} if kernels == "torch" else {})
config = RunnerConfig(dtype=dtype, max_model_len=800, max_num_seqs=16, options=options)
devices = backend.probe(1.0)
plan = backend.plan(files.spec, files.weights, config, devices)
if kernels == "torch":
    import torch
    import trivet_cpu.runner
    torch.zeros(999, 999) @ torch.zeros(999, 999)
return_free_memory()  # of reading the file's head: the runner's own turn would count it as given back
before = anonymous()
runner = backend.create_runner(files.spec, config, plan, devices)
runner.load(files.weights, lambda done, total: None)
loaded = anonymous()
runner.allocate_kv()
allocated = anonymous()
runner.warm_up()
driver = Driver(runner, plan, vocab_size=49152, max_num_seqs=16)
sequence = driver.add(np.random.default_rng(0).integers(3, 49000, 799))
while sequence.num_left > 256:
    driver.run([Work(sequence, 256)])
driver.run([scoring_work(sequence, sequence.num_left)], num_logprobs=5)
others = [driver.add(range(3, 9 + i)) for i in range(15)]
driver.run([greedy_work(other) for other in others])
stepped = anonymous()
runner.close()
parts = {part.name: part.size_bytes for part in plan.parts}
print(json.dumps({**parts, "loaded": loaded - before, "kv_taken": allocated - loaded,
                  "stepped": stepped - before, "closed": anonymous() - before,
                  "has_torch": "torch" in sys.modules}))
"""
LIBRARY_BYTES = 24 << 20  # code that oneDNN makes, thread stacks, Python's own arenas


@pytest.mark.parametrize(
    ("dtype", "kernels"), [("f32", "torch"), ("bf16", "torch"), ("bf16", "native"), ("auto", "native")]
)
def test_the_process_takes_what_the_plan_says(dtype: str, kernels: str) -> None:
    """Measured by the kernel, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, dtype, kernels], check=True, capture_output=True, text=True, timeout=240
    )
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    buffers = found["activations"] + found["logits"]  # those that last are allocated with the cache
    assert found["loaded"] == pytest.approx(found["weights"], rel=0.02)
    assert found["kv"] * 0.98 <= found["kv_taken"] <= found["kv"] * 1.02 + buffers
    total = sum(found[name] for name in ("weights", "kv", "activations", "logits"))
    assert np.clip(found["stepped"], 0.92 * total, None) == found["stepped"]
    assert found["stepped"] <= total * 1.02 + LIBRARY_BYTES
    assert found["closed"] <= LIBRARY_BYTES
    assert bool(found["has_torch"]) is (kernels == "torch")
