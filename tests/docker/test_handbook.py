"""The handbook's pages: links lead somewhere, settings are settings, tables are what the code says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from handbook import LANGUAGES, PAGES, Block, anchors, blocks
from monitoring import CONFIG

from trivet.config import load_settings
from trivet_ascend.pairing import CANN_FOR

ROOT = Path(__file__).parents[2]


def table_of(page: str, first: str) -> list[list[str]]:
    """Rows of the table whose first heading is `first`."""
    lines = (ROOT / "docker" / "handbook" / page).read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


def test_the_readme_links_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    assert not [page.name for page in PAGES if f"(docker/handbook/{page.name})" not in readme]


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_what_is_not_run_says_why(block: Block) -> None:
    assert block.language in LANGUAGES
    says_why = re.search(r"\*Not run by the tests[^*]*: \w[^*]+\.\*$", block.before)
    assert bool(says_why) == (block.language == ""), block.before


@pytest.mark.parametrize("block", [*blocks("sh"), *blocks("")], ids=str)
def test_commands_are_proper_shell(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_settings_are_settings(block: Block, tmp_path: Path) -> None:
    (tmp_path / "trivet.toml").write_text(block.text)
    assert load_settings({"home": str(tmp_path)}, {}) != load_settings(
        {"home": str(tmp_path)}, {}, reads_file=False
    )


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_parts_of_prometheus_yaml_stand_there(block: Block) -> None:
    (part,) = yaml.safe_load(block.text).items()
    assert any(part in job.items() for job in yaml.safe_load(CONFIG.read_text())["scrape_configs"])


def test_kv_bytes_of_the_sizing_table_follow_from_its_columns() -> None:
    rows = table_of("sizing.md", "model")
    assert rows
    for model, layers, heads, size, kv_bytes, _ in rows:
        assert 2 * int(layers) * int(heads) * int(size) * 2 == int(kv_bytes), model


def test_the_pairs_of_ascend_are_those_that_doctor_checks() -> None:
    told = {}
    for torch, torch_npu, cann in table_of("install_ascend.md", "torch"):
        release = tuple(int(part) for part in torch.split(".")[:2])
        assert torch_npu.startswith(torch)
        if re.fullmatch(r"[\d.]+", cann):
            told[release] = cann
    assert told == CANN_FOR
