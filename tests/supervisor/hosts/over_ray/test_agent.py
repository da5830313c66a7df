"""What the actor of a node gives to the agent: the environment of `ray start`, not that of Ray's worker."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from trivet.errors import Unavailable
from trivet_supervisor.hosts.over_ray import agent
from trivet_supervisor.hosts.over_ray.agent import RayAgent, node_environment


def test_an_agent_inherits_what_the_node_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    raylet = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep") or "", raylet)
    given = {"CUDA_VISIBLE_DEVICES": "2,3", "RAY_ADDRESS": "x", "TRIVET_HOME": "/srv/trivet"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as Ray hides all from an actor that asks for none
    with subprocess.Popen([raylet, "600"], env=given) as node:
        eventually(lambda: Path(f"/proc/{node.pid}/comm").read_text() == "raylet\n")
        monkeypatch.setattr(os, "getppid", lambda: node.pid)
        found = node_environment()
        node.kill()
    assert found == {"CUDA_VISIBLE_DEVICES": "2,3", "TRIVET_HOME": "/srv/trivet"}


def test_an_agent_that_cannot_run_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fail(home: Path, name: str, *others: object) -> None:
        tried.append(name)
        raise Unavailable("no disk")

    monkeypatch.setattr(agent, "keep_agent", fail)
    monkeypatch.setattr(agent, "node_environment", lambda: {"TRIVET_HOME": "/nowhere"})
    actor = RayAgent("b", "127.0.0.1")
    assert [actor.keep("key").trouble for _ in range(3)] == ["no disk"] * 3
    assert tried == ["b"]
    monkeypatch.setattr(agent, "AGAIN_S", 0.0)
    actor.keep("key")
    assert tried == ["b", "b"]
