"""What would wait for a device is refused on a machine without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trivet.contract_suite.nothing_waits import NothingWaits
from trivet.contract_suite.recorded_graph import RecordedGraph

X, COUNTS = torch.ones(3), torch.tensor([1, 2, 1])
# Looked up when they are called: inside the mode methods are replaced.
WAITING: dict[str, Callable[[], object]] = {
    "item": lambda: X.sum().item(),
    "bool": lambda: bool(X.sum() > 0),
    "int": lambda: int(X[0]),
    "tolist": lambda: X.tolist(),
    "cpu": lambda: X.cpu(),
    "to cpu": lambda: X.to("cpu"),
    "to a device": lambda: X.to(torch.device("cpu")),
    "to device=": lambda: X.to(device="cpu"),
    "numpy": lambda: X.numpy(),
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "unique": lambda: torch.unique(X),
    "a mask": lambda: X[X > 0],
    "repeat_interleave": lambda: torch.repeat_interleave(X, COUNTS),
    "bincount": lambda: torch.bincount(COUNTS),
}
QUEUED: dict[str, Callable[[], object]] = {
    "arithmetic": lambda: (X * 2).softmax(0),
    "another type": lambda: X.to(torch.float16),
    "a copy that nobody waits for": lambda: X.to("cpu", non_blocking=True),
    "the host's own memory": lambda: torch.empty(3).numpy().fill(1),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_refused(name: str) -> None:
    with NothingWaits(), pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        WAITING[name]()


@pytest.mark.parametrize("name", QUEUED)
def test_what_is_queued_is_not(name: str) -> None:
    with NothingWaits():
        QUEUED[name]()


def test_a_capture_refuses_a_copy_and_leaves_torch_as_it_was() -> None:
    with pytest.raises(RuntimeError, match="copies to the host"):
        RecordedGraph.of(lambda: torch.tensor(X.tolist()))
    assert X.tolist() == [1.0, 1.0, 1.0]
