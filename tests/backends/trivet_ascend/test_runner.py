"""The runner over emulated operations: what it runs before requests wait for it."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from torch import Tensor
from trivet_ascend_emulated.backend import TOTAL_BYTES, EmulatedAscend
from trivet_ascend_emulated.device import EmulatedDevice

from trivet.contract import Batch, RunnerConfig
from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.models.model_files import open_model
from trivet_ascend.backend import runner_shape
from trivet_ascend.runner import AscendRunner


@pytest.mark.parametrize(("num_blocks", "lengths"), [(20, [1] * 7 + [41]), (4, [1, 1, 41])])
def test_the_fullest_step_and_the_longest_context_are_run_before_requests(
    tmp_path: Path, num_blocks: int, lengths: list[int]
) -> None:
    """Every token of a step in a slot of its own, which the emulated operations insist on."""
    files, backend = open_model(make_tiny_model("mistral", tmp_path)), EmulatedAscend()
    assert files.spec is not None
    devices, sizes = backend.probe(1.0), {"max_model_len": 150, "max_num_batched_tokens": 48}
    config = RunnerConfig(dtype="bf16", max_num_seqs=8, num_blocks=num_blocks, **sizes)
    plan = backend.plan(files.spec, files.weights, config, devices)
    assert plan.kv.block_size == 128
    shape = runner_shape(files.spec, config, plan, devices)
    runner = AscendRunner(files.spec, plan, shape, EmulatedDevice(TOTAL_BYTES))
    runner.load(files.weights, lambda done, total: None)
    runner.allocate_kv()
    run, steps, pieces = runner._run, list[Batch](), list[Tensor]()

    def noted(batch: Batch) -> Tensor:
        steps.append(batch)
        return run(batch)

    logits = runner._pieces_of_logits
    with (
        patch.object(runner, "_run", noted),
        patch.object(runner, "_pieces_of_logits", lambda hidden: (pieces.append(hidden), *logits(hidden))),
    ):
        runner.warm_up()
    runner.close()
    assert [np.diff(step.query_start_loc).tolist() for step in steps] == [lengths, [48], [1]]
    assert [step.seq_lens.max() for step in steps] == [41, 150, 150]
    assert [len(piece) for piece in pieces] == [runner._logits_rows()]
