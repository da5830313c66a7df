"""What is particular to the torch runner; the contract itself is checked by the contract suite."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from trivet.contract import MemoryPlan, RunnerConfig
from trivet.contract_suite.driver import Driver, drawing_work, greedy_work, scoring_work
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.errors import BackendError, DoesNotFit, OutOfMemory, Unsupported
from trivet.models.model_files import ModelFiles, open_model
from trivet.models.spec import ModelSpec
from trivet_cpu.backend import CpuBackend
from trivet_cpu.host import Host
from trivet_cpu.runner import CpuTorchRunner

BACKEND = CpuBackend()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return open_model(make_tiny_model("llama-tied", tmp_path_factory.mktemp("models")))


@pytest.fixture(autouse=True)
def _same_threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _launch(
    files: ModelFiles, spec: ModelSpec | None = None, backend: CpuBackend = BACKEND, **config: object
) -> tuple[CpuTorchRunner, MemoryPlan]:
    spec = spec or files.spec
    assert spec is not None
    options = {"kernels": "torch", **config.pop("options", {})}  # type: ignore[dict-item]
    settings = RunnerConfig(max_num_seqs=8, max_model_len=256, options=options, **config)  # type: ignore[arg-type]
    devices = BACKEND.probe(1.0)
    plan = BACKEND.plan(spec, files.weights, settings, devices)
    runner = backend.create_runner(spec, settings, plan, devices)
    assert isinstance(runner, CpuTorchRunner)
    runner.load(files.weights, lambda done, total: None)
    return runner, plan


def _driver(files: ModelFiles, spec: ModelSpec | None = None, **config: object) -> Driver:
    runner, plan = _launch(files, spec, **config)
    runner.allocate_kv()
    runner.warm_up()
    return Driver(runner, plan, vocab_size=(spec or files.spec).num_tokens, max_num_seqs=8)  # type: ignore[union-attr]


def test_the_number_of_threads_is_the_option_s(files: ModelFiles) -> None:
    _launch(files, options={"num_threads": "3"})
    assert torch.get_num_threads() == 3


def test_kv_that_no_longer_fits_is_refused_with_both_numbers(files: ModelFiles, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    runner, _ = _launch(files, backend=CpuBackend(Host(tmp_path)), num_blocks=100)
    with pytest.raises(DoesNotFit, match=r"takes 0\.\d\d GiB and 0\.00 GiB is free"):
        runner.allocate_kv()


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "tolerance"), [("f32", "bf16", 0.1), ("bf16", "f32", 0.3), ("bf16", "bf16", 0.3)]
)
def test_kv_of_another_dtype_gives_nearly_the_same_scores(
    files: ModelFiles, dtype: str, kv_dtype: str, tolerance: float
) -> None:
    prompt = random_prompt(90, 4)
    scores = []
    for settings in ({"dtype": "f32"}, {"dtype": dtype, "kv_dtype": kv_dtype}):
        driver = _driver(files, **settings)
        scores.append(driver.score(driver.add(prompt), chunk=40).logprobs)
    assert np.abs(scores[0] - scores[1]).max() < tolerance
    assert not np.array_equal(*scores)


def test_rows_of_the_head_beyond_the_tokenizer_are_never_sampled(files: ModelFiles) -> None:
    assert files.spec is not None
    few = dataclasses.replace(files.spec, num_tokens=5)
    driver = _driver(files, few, dtype="f32")
    row = RowSampling(temperature=50.0, uniform=(0.999, 0.0))
    drawn = []
    for seed in range(10):
        sequence = driver.add(random_prompt(6, seed))
        _, output = driver.run([drawing_work(sequence, row)], num_logprobs=5)
        drawn.append(int(output.token_ids[0]))
        assert np.exp(output.top_logprobs[0]).sum() == pytest.approx(1.0, abs=1e-5)  # type: ignore[index]
        driver.drop(sequence)
    assert set(drawn) <= set(range(5))


def test_pieces_of_logits_give_what_all_at_once_gives(files: ModelFiles) -> None:
    prompt = random_prompt(70, 6)
    whole, pieces = (_driver(files, dtype="f32", max_logits_rows=rows) for rows in (256, 3))
    scores = [driver.score(driver.add(prompt)) for driver in (whole, pieces)]
    np.testing.assert_allclose(scores[0].logprobs, scores[1].logprobs, atol=1e-5)
    np.testing.assert_array_equal(scores[0].top_ids, scores[1].top_ids)


def test_a_step_without_memory_fails_alone(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = _driver(files, dtype="f32")
    sequence = driver.add(random_prompt(20, 7))
    with monkeypatch.context() as patch:

        def refuse(*args: object) -> None:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

        patch.setattr("trivet_cpu.runner.PagedStep", refuse)
        step = driver.forward([greedy_work(sequence)])
        driver.sample(step)
        with pytest.raises(OutOfMemory, match="max_num_batched_tokens"):
            driver.collect(step)
    other = driver.add(random_prompt(20, 7))
    assert len(driver.generate([other], 3)[0]) == 3


def test_an_error_that_is_not_about_memory_is_not_called_so(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = _driver(files, dtype="f32")

    def fail(*args: object) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr("trivet_cpu.runner.PagedStep", fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        driver.forward([greedy_work(driver.add([3, 4]))])


def test_calls_out_of_order_are_named(files: ModelFiles) -> None:
    driver = _driver(files, dtype="f32")
    with pytest.raises(BackendError, match="step 7 is not in flight"):
        driver.runner.collect(7)
    driver.forward([greedy_work(driver.add([3, 4, 5]))])
    with pytest.raises(BackendError, match=r"before sample\(1\)"):
        driver.runner.collect(1)


def test_adapters_that_were_not_planned_for_are_refused(files: ModelFiles) -> None:
    runner, _ = _launch(files)
    for call in (lambda: runner.load_adapter(1, files.weights), lambda: runner.unload_adapter(1)):
        with pytest.raises(Unsupported, match="planned without slots for adapters; set adapters"):
            call()


def test_scoring_works_beside_decoding(files: ModelFiles) -> None:
    driver = _driver(files, dtype="f32")
    prompt = random_prompt(40, 9)
    alone = driver.score(driver.add(prompt))
    decoding, scored = driver.add(random_prompt(12, 10)), driver.add(prompt)
    step, output = driver.run([greedy_work(decoding), scoring_work(scored, 40)], num_logprobs=2)
    rows = step.rows_of(scored)
    np.testing.assert_allclose(output.logprobs[rows], alone.logprobs, atol=1e-5)
    assert len(decoding.token_ids) == 13
