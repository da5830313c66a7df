"""Two ranks over gloo give what one gives, and each reads and holds its part alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from trivet_cuda_interpreted.backend import InterpretedCuda
from trivet_cuda_interpreted.device import InterpretedDevice
from trivet_cuda_interpreted.openers import open_interpreted, open_one_that_captures_little

from trivet.contract import Runner, RunnerConfig
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.oracle import TransformersOracle, scores
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.tiny_models import MODELS, TinyModel, make_tiny_model
from trivet.engine.agreement import compare
from trivet.errors import DeviceLost
from trivet.models.model_files import ModelFiles, open_model
from trivet.runners.rank_order import OpensRank
from trivet.runners.ranks import TensorParallelRunner
from trivet.runners.slices import Rank
from trivet_cuda.backend import runner_shape
from trivet_cuda.op_table import triton_table
from trivet_cuda.runner import CudaRunner

CONFIG = RunnerConfig(
    dtype="f32",
    max_model_len=256,
    max_num_seqs=4,
    num_blocks=30,
    max_num_batched_tokens=16,
    options={"graphs": "off", "self_test": "off"},
)


ODD = "llama-tied-odd"  # a head that is the embedding table, of 159 tokens


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """Four KV heads."""
    return open_model(make_tiny_model("mistral", tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    odd = TinyModel("llama", {"tie_word_embeddings": True, "vocab_size": 159}, seed=20)
    with patch.dict(MODELS, {ODD: odd}):
        return open_model(make_tiny_model(ODD, tmp_path_factory.mktemp("models")))


def over_two(files: ModelFiles, config: RunnerConfig, opens: OpensRank) -> TensorParallelRunner:
    backend = InterpretedCuda()
    devices = [replace(device, uid=f"{device.uid}{i}") for i in (0, 1) for device in backend.probe(1.0)]
    assert files.spec is not None
    plan = backend.plan(files.spec, files.weights, config, devices)
    return TensorParallelRunner(files.spec, config, plan, devices, opens)


@pytest.fixture
def parallel(files: ModelFiles) -> Iterator[TensorParallelRunner]:
    runner = over_two(files, replace(CONFIG, tensor_parallel=2), open_interpreted)
    yield runner
    runner.close()


def tokens_alone(files: ModelFiles) -> list[int]:
    backend = InterpretedCuda()
    devices = backend.probe(1.0)
    assert files.spec is not None
    plan = backend.plan(files.spec, files.weights, CONFIG, devices)
    alone = backend.create_runner(files.spec, CONFIG, plan, devices)
    try:
        return tokens_of(alone, files)
    finally:
        alone.close()


def ready(runner: Runner, files: ModelFiles) -> Driver:
    assert files.spec is not None
    plan = InterpretedCuda().plan(files.spec, files.weights, CONFIG, InterpretedCuda().probe(1.0))
    runner.load(files.weights, lambda done, total: None)
    runner.allocate_kv()
    runner.warm_up()
    return Driver(runner, plan, vocab_size=files.spec.num_tokens, max_num_seqs=4)


def tokens_of(runner: Runner, files: ModelFiles) -> list[int]:
    driver = ready(runner, files)
    sequences = [driver.add(random_prompt(length, length)) for length in (30, 7)]
    driver.generate(sequences, 5)
    return [token for sequence in sequences for token in sequence.token_ids]


def test_two_ranks_together_give_what_one_gives(files: ModelFiles, parallel: TensorParallelRunner) -> None:
    assert tokens_of(parallel, files) == tokens_alone(files)


@pytest.fixture(scope="module")
def biased_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Biases of q, k and v, of which each rank has its part of each."""
    return make_tiny_model("qwen2", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def biased_files(biased_folder: Path) -> ModelFiles:
    return open_model(biased_folder)


def test_two_ranks_replay_captured_collectives(biased_files: ModelFiles) -> None:
    options = {**CONFIG.options, "graphs": "on"}
    runner = over_two(biased_files, replace(CONFIG, tensor_parallel=2, options=options), open_interpreted)
    try:
        found = tokens_of(runner, biased_files)
        device = runner._inner._device  # type: ignore[attr-defined]  # the test looks inside
        assert runner.notices() == ()
    finally:
        runner.close()
    assert device.num_captured == 3  # 1, 2 and 4 sequences
    assert device.num_replayed >= 4
    assert found == tokens_alone(biased_files)


def test_two_ranks_agree_with_the_reference_in_16_bits(biased_folder: Path, biased_files: ModelFiles) -> None:
    """Sums of halves are rounded otherwise than the whole."""
    assert biased_files.spec is not None
    prompt = random_prompt(40, 3)
    oracle = TransformersOracle.from_folder(biased_folder, 256, biased_files.spec.num_tokens)
    runner = over_two(biased_files, replace(CONFIG, dtype="bf16", tensor_parallel=2), open_interpreted)
    try:
        driver = ready(runner, biased_files)
        found = driver.score(driver.add(prompt), chunk=16)
    finally:
        runner.close()
    agreement = compare(scores(oracle, prompt), found, "bf16")
    assert agreement.agrees, str(agreement)


def test_a_vocabulary_that_ranks_cannot_halve_gives_the_same(odd_files: ModelFiles) -> None:
    assert odd_files.spec is not None
    assert odd_files.spec.tie_embeddings
    assert odd_files.spec.vocab_size == 159
    runner = over_two(odd_files, replace(CONFIG, tensor_parallel=2), open_interpreted)
    try:
        found = tokens_of(runner, odd_files)
    finally:
        runner.close()
    assert found == tokens_alone(odd_files)


def test_where_one_rank_captures_nothing_no_other_replays(files: ModelFiles) -> None:
    """A rank that replays beside one that does not would wait in a collective for ever."""
    options = {**CONFIG.options, "graphs": "on"}
    config = replace(CONFIG, tensor_parallel=2, options=options)
    runner = over_two(files, config, open_one_that_captures_little)
    try:
        found = tokens_of(runner, files)
        one, other = runner.notices()
    finally:
        runner.close()
    assert found == tokens_alone(files)
    what = "no graph of 2 sequences could be captured"
    assert one.startswith(f"rank 0: {what}: another rank could not")
    assert other.startswith(f"rank 1: {what}: operation not permitted")


def test_a_rank_that_is_lost_ends_a_step_that_waits_for_it(
    parallel: TensorParallelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the step would wait for ever, and so would giving back memory that it uses."""
    monkeypatch.setattr(parallel._inner, "is_ready", lambda step: False)
    monkeypatch.setattr(parallel._inner, "close", lambda: pytest.fail("the device is waited for"))
    parallel._ranks[0].process.kill()
    with pytest.raises(DeviceLost, match="rank 1 has ended with code -9"):
        parallel.collect(1)


def test_the_plan_holds_what_a_rank_holds(files: ModelFiles) -> None:
    """Half of the matrices, and the progress reaches every byte."""
    backend = InterpretedCuda()
    devices = backend.probe(1.0)
    assert files.spec is not None
    config = replace(CONFIG, tensor_parallel=2)
    plan = backend.plan(files.spec, files.weights, config, devices)
    shape = runner_shape(files.spec, config, plan, devices)
    runner = CudaRunner(files.spec, plan, shape, InterpretedDevice(), triton_table(), Rank(0, 2))
    progress: list[tuple[int, int]] = []
    runner.load(files.weights, lambda done, total: progress.append((done, total)))
    held = {part.name: part.size_bytes for part in runner.memory()}
    planned = {part.name: part.size_bytes for part in plan.parts}
    whole = {p.name: p.size_bytes for p in backend.plan(files.spec, files.weights, CONFIG, devices).parts}
    runner.close()
    assert held["weights"] == planned["weights"]
    assert held["weights"] < 0.55 * whole["weights"]
    assert planned["kv"] * 2 == whole["kv"]
    done = [each for each, _ in progress]
    assert done == sorted(done)
    assert progress[-1] == (files.weights.size_bytes, files.weights.size_bytes)
    assert len(set(done)) > 10
    assert done[-2] > 0.99 * files.weights.size_bytes  # the last call says the whole in any case
