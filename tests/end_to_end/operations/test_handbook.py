"""The commands of docker/handbook, page by page in their order, against one served site."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from handbook import Block, blocks

from trivet.demo_model import find_demo_model

if TYPE_CHECKING:
    from conftest import Site  # of end_to_end

MODEL = "/models/Qwen2.5-0.5B-Instruct"
ADDRESS = "127.0.0.1:8000"
BLOCKS = blocks()


@pytest.fixture(scope="module")
def handbook_site(site_of_module: Site) -> Site:
    """Serves the demo model as "qwen"."""
    settings = {"max_num_seqs": "8", "max_model_len": "2048"}
    with site_of_module.client() as client:
        client.models.add(str(find_demo_model()), name="qwen")
        client.deployments.create("qwen", name="qwen", backend="cpu", settings=settings)
    site_of_module.wait_ready("qwen")
    return site_of_module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are given."""
    return tmp_path_factory.mktemp("commands")


def shown_of(block: Block) -> list[str]:
    """What the page says that they print."""
    after = BLOCKS[BLOCKS.index(block) + 1 :][:1]
    is_shown = any(other.page == block.page and other.language == "text" for other in after)
    return after[0].text.splitlines() if is_shown else []


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "sh"], ids=str)
def test_commands_succeed(handbook_site: Site, folder: Path, block: Block) -> None:
    commands = block.text.replace(MODEL, str(find_demo_model()))
    commands = commands.replace(ADDRESS, f"127.0.0.1:{handbook_site.port}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**handbook_site.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    print(f"{commands}\n{done.stdout}{done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for line in shown_of(block):
        assert line in done.stdout.splitlines()
