"""Adapters (LoRA): engines are told of them at each start, and other hosts have to have the same ones."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trivet.errors import Unavailable
from trivet.launching import ModelFile
from trivet.messages import Phase
from trivet_registry.instance_state import InstanceState
from trivet_supervisor.adapter_files import adapter_files
from trivet_supervisor.hosts.model_copies import ModelCopies

if TYPE_CHECKING:
    from conftest import Site

WEIGHTS = b"weights of an adapter"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sql"
    made.mkdir()
    (made / "adapter_config.json").write_text("{}")
    (made / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (made / "README.md").write_text("no engine reads it")
    (made / "trainer_state.json").write_text("nor this")
    return made


def names(files: list[ModelFile]) -> list[str]:
    return [Path(one.path).name for one in files]


def test_an_engine_is_told_of_them_again_after_a_crash(site: Site, folder: Path) -> None:
    site.make_ready(settings={"adapters": f"sql={folder}"})
    assert site.process.order.launch.settings["adapters"] == f"sql={folder}"
    assert names(list(site.process.order.model_files)) == ["tiny.gguf"], "here it reads them itself"
    first = site.process
    first.code = 4
    site.wait(30.0)
    assert site.process is not first
    assert site.process.order.launch.settings["adapters"] == f"sql={folder}"


def test_another_host_has_to_have_the_same_files(site: Site, folder: Path) -> None:
    site.places.host = "b"
    site.launch(settings={"adapters": f"sql={folder}"})
    site.settle()
    files = list(site.process.order.model_files)
    assert names(files) == ["tiny.gguf", "adapter_config.json", "adapter_model.safetensors"]
    assert files[2].sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    copies = ModelCopies(folder.parent / "copies")
    copies.check(files[1:])
    (file := folder / "one.gguf").write_bytes(b"GGUF")
    assert names(adapter_files({"adapters": f"sql={file}"})) == ["one.gguf"]
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS.upper())
    with pytest.raises(Unavailable, match=r"adapter_model\.safetensors has the SHA-256"):
        copies.check(files[1:])


def test_a_pipe_is_not_opened(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()
    os.mkfifo(folder / "adapter_config.json")
    with pytest.raises(Unavailable, match=r"adapter_config\.json is no regular file"):
        adapter_files({"adapters": f"sql={folder}"})


def test_a_folder_that_has_gone_is_the_reason_why_no_engine_starts_elsewhere(
    site: Site, folder: Path
) -> None:
    site.places.host = "b"
    site.launch(settings={"adapters": f"sql={folder.parent / 'gone'}"})
    site.settle()
    assert not site.launcher.processes
    assert "adapter 'sql' cannot be read on the supervisor's host" in site.only().reason
    with pytest.raises(Unavailable, match="No such file"):
        adapter_files({"adapters": f"sql={folder.parent / 'gone'}"})


def test_other_adapters_are_another_generation(site: Site, folder: Path) -> None:
    from trivet_registry.deployment_changes import Update, update_deployment

    site.make_ready()
    site.change(update_deployment, "chat", Update(settings={"adapters": f"sql={folder}"}))
    site.settle()
    (starting,) = site.instances(InstanceState.STARTING)
    assert site.process.order.launch.settings["adapters"] == f"sql={folder}"
    site.say(Phase.READY, starting)
    site.wait(2.0)
    assert len(site.instances(InstanceState.READY)) == 1
