"""Captured decodes whose adapters change between replays give what eager steps give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cpu_device import CONFIG, CpuDevice

from trivet.contract_suite.driver import Driver, greedy_work
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.tiny_adapters import ADAPTERS, SLOTS, make_tiny_adapter
from trivet.models.adapter_files import AdapterFiles, read_adapter
from trivet.models.model_files import ModelFiles
from trivet_cuda.graphs import DecodeGraphs
from trivet_cuda.runner import CudaRunner

PAIRS = ((0, 1), (2, 0), (3, 1), (0, 0), (2, 2))  # slots of two sequences that decode together


@pytest.fixture(scope="module")
def adapters(files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> dict[int, AdapterFiles]:
    assert files.spec is not None
    folder = tmp_path_factory.mktemp("adapters")
    return {
        slot: read_adapter(make_tiny_adapter(files.spec, slot, folder / str(slot)), files.spec, str(slot))
        for slot in ADAPTERS
    }


def logprobs(runner: CudaRunner, files: ModelFiles) -> list[np.ndarray]:
    """Of a prefill and two decodes of each pair; the tokens are given."""
    assert files.spec is not None
    driver = Driver(runner, runner._plan, vocab_size=files.spec.num_tokens, max_num_seqs=2)
    found = []
    for pair in PAIRS:
        sequences = [driver.add(random_prompt(9 + slot, 1), slot) for slot in pair]
        for _ in range(3):
            _, output = driver.run([greedy_work(one) for one in sequences], num_logprobs=4)
            assert output.top_logprobs is not None
            found.append(output.top_logprobs.copy())
        for sequence in sequences:
            driver.drop(sequence)
    return found


def test_adapters_may_change_between_replays(
    start: Callable[..., CudaRunner],
    files: ModelFiles,
    adapters: dict[int, AdapterFiles],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loaded after the capture, too: the graph has the slots' own memory."""
    replays: list[bool] = []
    run = DecodeGraphs.run

    def noted(graphs: DecodeGraphs, batch: object) -> object:
        hidden = run(graphs, batch)  # type: ignore[arg-type]
        replays.append(hidden is not None)
        return hidden

    monkeypatch.setattr(DecodeGraphs, "run", noted)
    config = replace(CONFIG, adapters=SLOTS)
    found = []
    for graphs in ("on", "off"):
        runner = start(CpuDevice(), config, graphs=graphs)
        for slot, adapter in adapters.items():
            runner.load_adapter(slot, adapter.weights)
        found.append(logprobs(runner, files))
    assert replays.count(True) == 2 * len(PAIRS)
    for captured, eager in zip(*found, strict=True):
        np.testing.assert_allclose(captured, eager, atol=1e-4)
    assert not np.allclose(found[0][1], found[0][4], atol=0.1)  # other adapters, another answer
