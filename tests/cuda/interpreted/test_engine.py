"""The engine over the interpreted backend: the cases that decide, and what is the backend's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from triton.runtime.errors import OutOfResources
from trivet_cuda_interpreted.backend import InterpretedCuda
from trivet_cuda_interpreted.device import InterpretedDevice

from trivet.contract import RunnerConfig
from trivet.contract_suite.driver import Driver
from trivet.contract_suite.engine_runs import greedy_request, run_core
from trivet.contract_suite.nothing_waits import NothingWaits
from trivet.contract_suite.oracle import TransformersOracle
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.engine.agreement import Scores, compare
from trivet.engine.core import CoreConfig, EngineCore
from trivet.errors import BackendError, Unsupported
from trivet.models.model_files import ModelFiles, open_model
from trivet_cuda.backend import runner_shape
from trivet_cuda.op_table import OpTable, triton_table
from trivet_cuda.runner import CudaRunner
from trivet_cuda.tiles import decode_splits

USUAL = {"graphs": "off", "self_test": "off"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """qwen3: a norm over heads, two query heads a KV head."""
    return make_tiny_model("qwen3", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def files(folder: Path) -> ModelFiles:
    return open_model(folder)


@pytest.fixture(scope="module")
def oracle(folder: Path, files: ModelFiles) -> TransformersOracle:
    assert files.spec is not None
    return TransformersOracle.from_folder(folder, 512, files.spec.num_tokens)


class Launch:
    """A ready runner of one model on a device of its own."""

    def __init__(
        self,
        files: ModelFiles,
        device: InterpretedDevice | None = None,
        table: OpTable | None = None,
        **changes: object,
    ) -> None:
        assert files.spec is not None
        backend = InterpretedCuda()
        devices = backend.probe(1.0)
        config = RunnerConfig(
            dtype="f32",
            max_model_len=512,
            max_num_seqs=4,
            num_blocks=60,
            max_num_batched_tokens=48,
            options=USUAL,
        )
        config = replace(config, **changes)
        self.spec = files.spec
        self.plan = backend.plan(files.spec, files.weights, config, devices)
        shape = runner_shape(files.spec, config, self.plan, devices)
        self.device = device or InterpretedDevice()
        self.runner = CudaRunner(files.spec, self.plan, shape, self.device, table or triton_table())
        self.runner.load(files.weights, lambda done, total: None)
        self.runner.allocate_kv()
        self.runner.warm_up()

    def driver(self) -> Driver:
        return Driver(self.runner, self.plan, vocab_size=self.spec.num_tokens, max_num_seqs=4)


@pytest.fixture
def launched(files: ModelFiles) -> Iterator[list[Launch]]:
    """Those that a test makes, closed at its end."""
    made: list[Launch] = []
    yield made
    for launch in made:
        launch.runner.close()


@pytest.mark.parametrize(
    ("num_splits", "num_sms", "num_blocks", "max_model_len", "shared_tokens", "last_tokens"),
    [(1, 2, 13, 160, 70, 33), (2, 64, 34, 512, 330, 126)],
)
def test_the_engine_gives_the_reference_s_tokens(
    files: ModelFiles,
    oracle: TransformersOracle,
    launched: list[Launch],
    num_splits: int,
    num_sms: int,
    num_blocks: int,
    max_model_len: int,
    shared_tokens: int,
    last_tokens: int,
) -> None:
    """Chunks of 48 tokens, a prefix that two share, and too few blocks: sequences are preempted."""
    device = InterpretedDevice(num_sms=num_sms)
    launch = Launch(files, device, num_blocks=num_blocks, max_model_len=max_model_len)
    launched.append(launch)
    kv_heads = launch.spec.layer(0).attention.num_kv_heads
    assert {decode_splits(bucket, kv_heads, max_model_len, num_sms) for bucket in (1, 2, 4)} == {num_splits}
    core = EngineCore(
        launch.runner,
        launch.plan,
        CoreConfig(
            eos_token_ids=(),
            vocab_size=launch.spec.vocab_size,
            num_tokens=launch.spec.num_tokens,
            max_num_seqs=4,
        ),
    )
    shared = random_prompt(shared_tokens, 1)
    half = shared_tokens // 16 * 16
    prompts = [shared, [*shared[:half], 9, 8], random_prompt(5, 3), random_prompt(last_tokens, 4)]
    requests = [greedy_request(str(i), prompt, 20) for i, prompt in enumerate(prompts)]
    outcomes = run_core(core, requests)
    for i, prompt in enumerate(prompts):
        assert outcomes[str(i)].failure is None
        tokens = list(outcomes[str(i)].token_ids)
        logits = oracle.logits([*prompt, *tokens])
        assert tokens == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    assert core.load().num_preemptions > 0
    assert core.load().prefix_hits > 0


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        ("bf16", "auto"),
        ("f16", "auto"),
        ("f32", "int8"),
        ("f16", "int8"),
        ("bf16", "int8"),
        ("bf16", "fp8_e4m3"),
    ],
)
def test_other_types_agree_within_their_bound(
    files: ModelFiles,
    oracle: TransformersOracle,
    launched: list[Launch],
    dtype: str,
    kv_dtype: str,
) -> None:
    """In a log-probability, and in the first choice wherever the reference is decided."""
    launch = Launch(files, dtype=dtype, kv_dtype=kv_dtype)
    launched.append(launch)
    prompt = random_prompt(120, 5)
    driver = launch.driver()
    found = driver.score(driver.add(prompt), chunk=48)
    wanted = Scores.of_logits(oracle.logits(prompt), prompt)
    agreement = compare(wanted, found, "f16" if (dtype, kv_dtype) == ("f16", "auto") else "bf16")
    assert agreement.agrees, str(agreement)


def test_decodes_replay_graphs_and_give_the_same_tokens(files: ModelFiles, launched: list[Launch]) -> None:
    plain = Launch(files)
    graphs = Launch(files, options={**USUAL, "graphs": "on"})
    launched += [plain, graphs]
    assert graphs.device.num_captured == 3  # 1, 2 and 4 sequences
    tokens = []
    for launch in (plain, graphs):
        driver = launch.driver()
        sequences = [driver.add(random_prompt(length, length)) for length in (20, 7, 33)]
        tokens.append(driver.generate(sequences, 6))
    assert tokens[0] == tokens[1]
    assert graphs.device.num_replayed >= 5


def test_a_step_waits_for_nothing_before_it_is_collected(
    files: ModelFiles, launched: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, chunks over a prefix and decodes; else a second step could not be queued behind it."""
    launch = Launch(files)
    launched.append(launch)
    for name in ("forward", "sample"):
        monkeypatch.setattr(launch.runner, name, waiting_for_nothing(getattr(launch.runner, name)))
    driver = launch.driver()
    sequences = [driver.add(random_prompt(length, length)) for length in (70, 7)]
    assert all(driver.generate(sequences, 3, chunk=32))


def waiting_for_nothing(call: Callable[..., None]) -> Callable[..., None]:
    def called(*args: Any) -> None:
        with NothingWaits():
            call(*args)

    return called


def test_float8_is_refused_on_an_older_gpu(files: ModelFiles) -> None:
    assert files.spec is not None
    backend = InterpretedCuda()
    (device,) = backend.probe(1.0)
    config = RunnerConfig(kv_dtype="fp8_e4m3", max_model_len=512)
    with pytest.raises(Unsupported, match="int8"):
        backend.check(files.spec, files.weights, config, replace(device, arch="sm_80"))


def test_a_kernel_that_does_not_compile_is_told_with_what_to_do(files: ModelFiles) -> None:
    def too_large(x: Tensor) -> Tensor:
        raise OutOfResources(300_000, 232_448, "shared memory")

    with pytest.raises(BackendError, match=r"shared memory.*with options\.self_test on"):
        Launch(files, table=replace(triton_table(), swiglu=too_large))


def test_an_operator_is_told_of_a_kernel_that_gave_way_to_its_twin(files: ModelFiles) -> None:
    table = triton_table()
    faulty = replace(table, swiglu=lambda x: table.swiglu(x) * 1.2)
    launch = Launch(
        files, table=faulty, options={"graphs": "off", "self_test": "on"}, max_num_batched_tokens=4
    )
    (notice,) = launch.runner.notices()
    launch.runner.close()
    assert notice.startswith("swiglu failed its self-test")
    assert "trivet selftest cuda" in notice
