"""The archive of docker/wheelhouse: made here, used where there is no network."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from use_site import MAX_TOKENS, QUESTION

from trivet import LLM, SamplingParams
from trivet.demo_model import find_demo_model
from trivet.models.model_files import open_model
from trivet_registry.bundles.exporting import export_version
from trivet_registry.bundles.signing import own_key
from trivet_registry.database import open_database
from trivet_registry.digests import digests_of
from trivet_registry.models_store import register_model

if TYPE_CHECKING:
    from air_gap import AirGap

ROOT = Path(__file__).parent.parent.parent.parent
EXTRAS = "postgres,structured"
CACHE = Path(os.environ["TRIVET_AIRGAP_CACHE"])


def run_wheelhouse(*arguments: str | Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # What pip takes wheels from counts for uv, too, which reads no settings of pip.
    links = {"UV_FIND_LINKS": os.environ["PIP_FIND_LINKS"]} if "PIP_FIND_LINKS" in os.environ else {}
    return subprocess.run(
        [root / "docker" / "wheelhouse", "--torch-index", "", *arguments, EXTRAS],
        env={**os.environ, **links},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def wheelhouse(*arguments: str | Path) -> str:
    done = run_wheelhouse(*arguments)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, signed by another site: `demo.tar` beside its `bundle.pub`."""
    folder = tmp_path_factory.mktemp("site")
    files = open_model(find_demo_model())
    with closing(open_database(f"sqlite:///{folder / 'registry.db'}")) as database:
        with database.session() as session:
            register_model(session, files, "demo", digests=digests_of(files))
        return export_version(database, "demo:1", folder / "demo.tar", own_key(folder / "keys")).path


def test_a_site_is_installed_and_serves_where_there_is_no_network(air_gap: AirGap, bundle: Path) -> None:
    archive = CACHE / "trivet-wheelhouse.tar"
    print(wheelhouse("--output", archive, "--arch", "x86_64", "--bundle", bundle))
    air_gap.run("tar", "--extract", "--file", archive)
    air_gap.run("sha256sum", "--check", "--quiet", "SHA256SUMS")
    air_gap.run("python3", "-m", "venv", "venv")
    bin_folder = air_gap.home / "venv" / "bin"
    pip = (
        bin_folder / "pip",
        "install",
        "--quiet",
        "--no-compile",  # what is imported is compiled then
        "--no-index",
        "--find-links",
        "wheels",
        "-c",
        "constraints.txt",
    )
    air_gap.run(*pip, f"trivet[{EXTRAS}]")
    trivet = bin_folder / "trivet"
    air_gap.serve(trivet)
    imported = (
        "models",
        "import",
        air_gap.home / "bundles" / "demo.tar",
        "--key",
        bundle.parent / "keys" / "bundle.pub",
    )
    air_gap.run(trivet, *imported)
    air_gap.run(trivet, "launch", "demo", "--name", "m", "--backend", "cpu")
    said = air_gap.use_site(bin_folder / "python", "m")
    assert f"chat: {answer_here()}\n" in said
    assert air_gap.stop() == 0
    assert air_gap.attempts() == 0


def answer_here() -> str:
    """Of this installation, without a server."""
    with LLM(str(find_demo_model()), backend="cpu") as llm:
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
        (output,) = llm.chat(QUESTION, params, use_tqdm=False)
    return output.outputs[0].text.strip()


def test_what_was_changed_on_the_way_is_told(air_gap: AirGap) -> None:
    air_gap.run(
        "tar", "--extract", "--file", CACHE / "trivet-wheelhouse.tar", "./SHA256SUMS", "./constraints.txt"
    )
    file = air_gap.home / "constraints.txt"
    file.write_text(file.read_text().replace("torch==2", "torch==3"))
    with pytest.raises(AssertionError, match=r"constraints.txt: FAILED"):
        air_gap.run("sha256sum", "--check", "--ignore-missing", "SHA256SUMS")


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_every_wheel_exists_for_aarch64(python: str) -> None:
    output = CACHE / "nothing.tar"
    said = wheelhouse("--output", output, "--dry-run", "--arch", "aarch64", "--python", python)
    assert f"aarch64, Python {python}: all " in said
    assert not output.exists()


def test_a_package_without_a_wheel_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    for name in ("docker/wheelhouse", "docker/constraints.txt", "setup.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    wanted = "install_requires =\n"
    settings = (ROOT / "setup.cfg").read_text().replace("attr: trivet.__version__", "1")
    (tmp_path / "setup.cfg").write_text(settings.replace(wanted, f"{wanted}    intel-openmp\n"))
    done = run_wheelhouse(
        "--dry-run", "--arch", "aarch64", "--output", tmp_path / "nothing.tar", root=tmp_path
    )
    assert done.returncode != 0
    assert "intel-openmp" in done.stderr
    assert not (tmp_path / "nothing.tar").exists()
