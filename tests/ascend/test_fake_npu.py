"""The runner and the engine on `npu:0` of the real torch-npu; only the chip is missing."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from trivet.contract_suite.driver import Driver, greedy_work  # noqa: E402
from trivet.contract_suite.expect import expect_greedy  # noqa: E402
from trivet.contract_suite.prompts import random_prompt  # noqa: E402
from trivet.contract_suite.subject import ModelLibrary, Subject, find_candidates  # noqa: E402
from trivet.demo_model import find_demo_model  # noqa: E402
from trivet.errors import DoesNotFit, OutOfMemory  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Cannot create tensor with internal format:UserWarning")

SUITE = ["-p", "trivet.contract_suite.plugin", "--pyargs", "trivet.contract_suite.cases", "-q", "-rf"]
SUITE += ["-p", "no:cacheprovider", "--trivet-backend", "ascend-fake-npu", "--trivet-dtype", "bf16"]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """The suite's way to runners, for cases that are this device's own."""
    from trivet_fake_cann.backend import FakeNpuAscend
    from trivet_fake_cann.device import install_once

    install_once()  # before transformers, which imports torch-npu where it finds it
    backend = FakeNpuAscend()
    (candidate,) = find_candidates({backend.name: backend}, dtypes=("bf16",))
    subject = Subject(candidate, ModelLibrary(tmp_path_factory.mktemp("models"), find_demo_model))
    yield subject
    subject.close()


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | env, capture_output=True, text=True, check=False
    )


OPEN = """
from trivet.errors import TrivetError
from trivet_ascend.npu_device import NpuDevice
try:
    NpuDevice({index})
except TrivetError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


def test_a_chip_of_another_family_is_refused_by_its_name() -> None:
    done = run_python(OPEN.format(index=0), FAKE_SOC="Ascend310P3")
    assert re.search(r"Unsupported: this NPU's chip is 310P; .*A2 and A3", done.stdout), done.stderr


def test_an_index_beyond_the_visible_devices_is_refused_with_the_variable_to_set() -> None:
    done = run_python(OPEN.format(index=3), FAKE_NPUS="2")
    assert "sees 2 NPUs and this rank needs number 3; ASCEND_RT_VISIBLE_DEVICES" in done.stdout, done.stderr


def test_without_cann_the_import_error_names_the_script_to_source() -> None:
    done = run_python(OPEN.format(index=0), LD_LIBRARY_PATH="")
    assert "libhccl.so" in done.stdout, done.stderr
    assert "ascend-toolkit/set_env.sh" in done.stdout


def test_weights_and_kv_are_on_the_device_and_counted_by_its_allocator(subject: Subject) -> None:
    with subject.launched() as launched:
        device = torch.device("npu", 0)
        runner = launched.runner
        cache = runner._kv.layers[0][0]  # type: ignore[attr-defined]  # the test looks inside
        assert cache.device == device
        measured = {part.name: part.size_bytes for part in runner.memory()}
        held = torch.npu.memory_allocated(device)
        assert held >= measured["weights"] + measured["kv"]
        runner.close()
        assert torch.npu.memory_allocated(device) < held - measured["kv"]


def test_a_step_without_memory_fails_alone_and_the_next_one_runs(subject: Subject) -> None:
    """The real allocator's error; after it the sequences go on as if nothing had been."""
    prompts = [random_prompt(480, seed) for seed in range(8)]
    with subject.launched(max_num_batched_tokens=4096) as launched:
        driver: Driver = subject.drive(launched)
        sequences = [driver.add(prompt) for prompt in prompts]
        with all_memory_taken():
            step = driver.forward([greedy_work(sequence) for sequence in sequences])
            driver.sample(step)
            with pytest.raises(OutOfMemory, match="out of the NPU's memory"):
                driver.collect(step)
            driver.rewind(step)
        driver.generate(sequences, 3)
        for prompt, sequence in zip(prompts, sequences, strict=True):
            expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])


@contextmanager
def all_memory_taken() -> Iterator[None]:
    """Nothing can be allocated that the allocator does not hold already."""
    torch.npu.empty_cache()
    free, _ = torch.npu.mem_get_info(0)
    hog = [torch.empty(free - (1 << 20), dtype=torch.uint8, device="npu:0")]
    try:
        yield
    finally:
        hog.clear()
        torch.npu.empty_cache()


def test_a_kv_cache_larger_than_the_device_is_refused_with_both_numbers(subject: Subject) -> None:
    files, spec = subject.models.files("llama"), subject.models.spec("llama")
    config = subject.config()
    runner = subject.backend.create_runner(spec, config, subject.plan(config), [subject.device])
    runner.load(files.weights, lambda done, total: None)
    try:
        with (
            all_memory_taken(),
            pytest.raises(DoesNotFit, match=r"takes [\d.]+ GiB and [\d.]+ GiB of the NPU is free"),
        ):
            runner.allocate_kv()
    finally:
        runner.close()


def test_weights_larger_than_the_device_are_refused_with_both_numbers(subject: Subject) -> None:
    """SmolLM2's 256 MiB beside something that takes everything but 1 MiB."""
    files, spec = subject.models.files("smollm2"), subject.models.spec("smollm2")
    config = subject.config()
    runner = subject.backend.create_runner(spec, config, subject.plan(config, "smollm2"), [subject.device])
    try:
        with (
            all_memory_taken(),
            pytest.raises(DoesNotFit, match=r"the weights should take 0.25 GiB .* and [\d.]+ GiB is free"),
        ):
            runner.load(files.weights, lambda done, total: None)
    finally:
        runner.close()


def test_captured_decodes_give_the_tokens_of_eager_ones(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    """Batches between the captured sizes are padded; lengths are renewed before every replay."""
    prompts = [random_prompt(length, seed) for seed, length in enumerate((3, 126, 40, 9, 300))]
    tokens = []
    for graphs in ("off", "on"):
        with caplog.at_level(logging.WARNING), subject.launched(options={"graphs": graphs}) as launched:
            driver = subject.drive(launched)
            sequences = [driver.add(prompt) for prompt in prompts]
            for sequence in sequences:
                driver.prefill(sequence)
            for count in (5, 3, 1, 4):
                driver.generate(sequences[:count], 3)
            captured = launched.runner._graphs  # type: ignore[attr-defined]  # the test looks inside
            assert (captured is not None) == (graphs == "on")
            if captured is not None:
                assert captured.sizes == [1, 2, 4, 8, 12]
            tokens.append([sequence.token_ids for sequence in sequences])
    assert tokens[0] == tokens[1]
    assert "graphs=off" not in caplog.text


def test_a_failed_capture_leaves_eager_steps_and_says_why(
    subject: Subject, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch_npu.npu.graphs as real

    def no_streams(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Alloc sq cq fail, error 207008")

    monkeypatch.setattr(real.NPUGraph, "capture_begin", no_streams)
    with caplog.at_level(logging.WARNING), subject.launched(options={"graphs": "on"}) as launched:
        driver = subject.drive(launched)
        prompt = random_prompt(20, 3)
        sequence = driver.add(prompt)
        driver.generate([sequence], 4)
        expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])
        notices = launched.runner.notices()  # type: ignore[attr-defined]  # optional_contract.GivesNotices
    assert "207008" in caplog.text
    assert "HDK 25.5.1" in caplog.text
    assert any("207008" in notice for notice in notices)


def test_the_suite_of_the_contract_passes_on_npu_0(tmp_path: Path) -> None:
    """In bfloat16 through the fused operations: models, attention, order, memory, failures."""
    chosen = "llama or real_model or qwen3 or mistral or attention or order or failures or isolation"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *SUITE, "-k", chosen],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 30, done.stdout


TRIVET = "import sys; from trivet.cli import main; sys.exit(main(sys.argv[1:]))"


def test_the_self_test_of_the_command_line_passes_on_npu_0() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRIVET, "selftest", "ascend-fake-npu"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, total = re.findall(r"(\d+) of (\d+) cases passed", done.stdout)[0]
    assert passed == total
    assert "torch-npu=" in done.stdout


def test_an_engine_on_npu_0_answers_as_one_on_the_cpu() -> None:
    """Settings, plan, loading from GGUF, tokenizer, scheduler, prefix cache: the whole offline engine."""
    from trivet.llm import LLM
    from trivet.sampling_params import SamplingParams

    prompts = ["The capital of France is", "The capital of France is Paris. The capital of Italy is"]
    params = SamplingParams(temperature=0, max_tokens=6)
    answers = []
    for backend, options in (("cpu", {"options.kernels": "torch"}), ("ascend-fake-npu", {})):
        llm = LLM(find_demo_model(), backend=backend, dtype="float32", max_model_len=512, **options)
        try:
            answers.append([output.outputs[0].text for output in llm.generate(prompts, params)])
        finally:
            llm.close()
    assert answers[0] == answers[1]
