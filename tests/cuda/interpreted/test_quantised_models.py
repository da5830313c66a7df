"""A GGUF file in 4 or 8 bits through plan, load and steps: the kernels compute the file's own numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from trivet_cuda_interpreted.backend import InterpretedCuda
from trivet_cuda_interpreted.openers import open_interpreted

from trivet.contract import MemoryPart, MemoryPlan, Runner, RunnerConfig
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.gguf_oracle import read_gguf_oracle
from trivet.contract_suite.oracle import Oracle, scores
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.tiny_gguf import make_tiny_gguf
from trivet.engine.agreement import compare
from trivet.models.model_files import ModelFiles, open_model
from trivet.runners.ranks import TensorParallelRunner

PROMPT = random_prompt(24, 3)
MAX_MODEL_LEN = 64


class Launch:
    """Plans and runners of one model over one or two ranks."""

    def __init__(self, files: ModelFiles, num_ranks: int) -> None:
        assert files.spec is not None
        self.spec, self.weights = files.spec, files.weights
        self.backend = InterpretedCuda()
        self.devices = self.backend.probe(1.0) * num_ranks
        self.config = RunnerConfig(
            dtype="f16",
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=2,
            num_blocks=10,
            max_num_batched_tokens=16,
            tensor_parallel=num_ranks,
            options={"graphs": "off", "self_test": "off"},
        )

    def plan(self, **options: str) -> MemoryPlan:
        config = replace(self.config, options={**self.config.options, **options})
        return self.backend.plan(self.spec, self.weights, config, self.devices)

    def runner(self) -> Runner:
        if self.config.tensor_parallel > 1:
            return TensorParallelRunner(self.spec, self.config, self.plan(), self.devices, open_interpreted)
        return self.backend.create_runner(self.spec, self.config, self.plan(), self.devices)


@pytest.fixture(scope="module", params=["q4_0", "q4_1", "q8_0"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(request.param, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def files(file: Path) -> ModelFiles:
    return open_model(file)


@pytest.fixture(scope="module")
def oracle(file: Path, files: ModelFiles) -> Oracle:
    """transformers with what the `gguf` package dequantises."""
    assert files.spec is not None
    return read_gguf_oracle(file, MAX_MODEL_LEN, files.spec.num_tokens)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_quantised_file_is_computed_as_what_it_says(
    files: ModelFiles, oracle: Oracle, num_ranks: int
) -> None:
    launch = Launch(files, num_ranks)
    runner = launch.runner()
    try:
        runner.load(launch.weights, lambda done, total: None)
        runner.allocate_kv()
        runner.warm_up()
        held = runner.memory()
        driver = Driver(runner, launch.plan(), vocab_size=launch.spec.num_tokens, max_num_seqs=2)
        found = driver.score(driver.add(PROMPT), chunk=16)
    finally:
        runner.close()
    agreement = compare(scores(oracle, PROMPT), found, "f16")
    assert agreement.agrees, str(agreement)
    assert weights_of(held) == weights_of(launch.plan().parts)
    assert weights_of(held) < 0.8 * weights_of(launch.plan(weights="plain").parts), "as the file has them"


def weights_of(parts: tuple[MemoryPart, ...]) -> int:
    return sum(part.size_bytes for part in parts if part.name == "weights")
