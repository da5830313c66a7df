"""A model of transformers' own code whose attention is the kernels'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trivet.contract import MemoryPlan, RunnerConfig
from trivet.contract_suite.driver import Driver, scoring_work
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.engine.placement import planned_spec
from trivet.errors import Unsupported
from trivet.models.model_files import ModelFiles, open_model
from trivet_cpu.backend import CpuBackend
from trivet_cpu.kernel_build import KernelCache, KernelsUnavailable
from trivet_cpu.native_kv import NativeKV
from trivet_cpu.runner import CpuTorchRunner

BACKEND = CpuBackend()


@pytest.fixture(scope="module", params=["olmo2", "granite", "starcoder2"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """Of transformers: qk norms; a scale of attention; a window and layer norms."""
    return open_model(make_tiny_model(request.param, tmp_path_factory.mktemp("models")))


def _runner(files: ModelFiles, **options: str) -> tuple[CpuTorchRunner, MemoryPlan]:
    spec, devices = planned_spec(files), BACKEND.probe(1.0)
    config = RunnerConfig(
        dtype="f32", max_num_seqs=4, max_model_len=128, options={"num_threads": "2", **options}
    )
    plan = BACKEND.plan(spec, files.weights, config, devices)
    runner = BACKEND.create_runner(spec, config, plan, devices)
    assert isinstance(runner, CpuTorchRunner)
    runner.load(files.weights, lambda done, total: None)
    runner.allocate_kv()
    runner.warm_up()
    return runner, plan


def _logprobs(runner: CpuTorchRunner, plan: MemoryPlan) -> list[np.ndarray]:
    """Of a long sequence in chunks beside two short ones; the long one moves to other blocks on its way."""
    driver = Driver(runner, plan, vocab_size=150, max_num_seqs=4)
    long, *others = [driver.add(random_prompt(n, n)) for n in (70, 19, 5)]
    works = (scoring_work(long, 50), *(scoring_work(s, s.num_left - 1) for s in others))
    found = [driver.run([work])[1].logprobs for work in works]
    moved = driver.add(long.token_ids)
    copies = driver.copy_blocks(long, moved)
    driver.drop(long)
    found.append(driver.run([scoring_work(moved, 1)], copies=copies)[1].logprobs)
    step, output = driver.run([scoring_work(moved, 18)])
    found.append(output.logprobs[step.rows_of(moved)])
    return found


def test_scores_are_those_of_torch_s_attention(files: ModelFiles) -> None:
    results = []
    for options in ({}, {"attention": "native"}):
        runner, plan = _runner(files, **options)
        assert isinstance(runner._kv, NativeKV) is bool(options)
        results.append(_logprobs(runner, plan))
        runner.close()
    for torch_s, native in zip(*results, strict=True):
        np.testing.assert_allclose(native, torch_s, atol=1e-4)


def test_the_plan_is_what_is_allocated(files: ModelFiles) -> None:
    runner, plan = _runner(files, attention="native")
    planned, allocated = (
        {part.name: part.size_bytes for part in parts if part.name in ("kv", "activations")}
        for parts in (plan.parts, runner.memory())
    )
    assert allocated == planned
    runner.close()


def test_kernels_that_do_not_build_are_refused_where_they_shall_attend(
    files: ModelFiles, tmp_path: Path
) -> None:
    """Which is known only after the plan was made, and from then on before it."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho this machine is tired >&2; exit 3\n")
    compiler.chmod(0o755)
    backend = CpuBackend(kernels=KernelCache(tmp_path / "cache", (str(compiler),)))
    spec, devices = planned_spec(files), backend.probe(1.0)
    config = RunnerConfig(dtype="f32", max_num_seqs=4, max_model_len=128, options={"attention": "native"})
    plan = backend.plan(spec, files.weights, config, devices)
    with pytest.raises(KernelsUnavailable, match="this machine is tired"):
        backend.create_runner(spec, config, plan, devices)
    with pytest.raises(Unsupported, match=r"attention=native needs the native kernels: [\s\S]*is tired"):
        backend.plan(spec, files.weights, config, devices)


def test_a_soft_cap_that_the_plan_did_not_know_of_is_refused(files: ModelFiles) -> None:
    runner, _ = _runner(files, attention="native")
    assert runner._kv is not None
    capped = replace(planned_spec(files).layer(0).attention, soft_cap=30.0)
    with pytest.raises(Unsupported, match="does not compute a soft cap on attention; leave"):
        runner._kv.attend(None, None, None, 0, capped, None)  # type: ignore[arg-type]
    runner.close()


def test_what_the_kernels_cannot_attend_to_is_refused_with_the_reason(tmp_path: Path) -> None:
    files = open_model(make_tiny_model("olmo2", tmp_path))
    capped = planned_spec(replace(files, config={**files.config, "attn_logit_softcapping": 50.0}))
    devices = BACKEND.probe(1.0)
    config = RunnerConfig(max_num_seqs=4, max_model_len=128, options={"attention": "native"})
    with pytest.raises(
        Unsupported, match=r"attention=native needs .* do not compute a soft cap on attention;"
    ):
        BACKEND.plan(capped, files.weights, config, devices)
    with pytest.raises(Unsupported, match=r"attention=native needs .*: block_size 20 is no multiple of 16;"):
        BACKEND.plan(planned_spec(files), files.weights, replace(config, block_size=20), devices)


def test_a_long_context_is_cut_into_pieces_for_the_threads(tmp_path: Path) -> None:
    """Which gives the same results: there is memory for the pieces of full length."""
    files = open_model(make_tiny_model("olmo2", tmp_path))
    spec, devices = planned_spec(files), BACKEND.probe(1.0)
    logits = []
    for threads in ("1", "2"):
        options = {"num_threads": threads, "attention": "native"}
        config = RunnerConfig(dtype="f32", max_num_seqs=2, max_model_len=2048, options=options)
        plan = BACKEND.plan(spec, files.weights, config, devices)
        runner = BACKEND.create_runner(spec, config, plan, devices)
        assert isinstance(runner, CpuTorchRunner)
        runner.load(files.weights, lambda done, total: None)
        runner.allocate_kv()
        assert isinstance(runner._kv, NativeKV)
        assert (runner._kv._model.attention.num_partials > 0) is (threads == "2")
        driver = Driver(runner, plan, vocab_size=150, max_num_seqs=2)
        long = driver.add(random_prompt(1500, 3))
        while long.num_left > 1:
            driver.run([scoring_work(long, min(200, long.num_left - 1))])
        logits.append(driver.run([scoring_work(long, 1)])[1].logprobs)
        runner.close()
    np.testing.assert_allclose(*logits, atol=1e-4)


def test_an_unknown_attention_is_refused(files: ModelFiles) -> None:
    with pytest.raises(Unsupported, match="option attention is 'fast'; use native"):
        _runner(files, attention="fast")
