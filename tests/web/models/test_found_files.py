"""Model files of the host: what is one, what is passed over, and that a search ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivet.demo_model import find_demo_model
from trivet_web.models import found_files
from trivet_web.models.found_files import MAX_DEPTH, MAX_FOUND, find_model_files, search

if TYPE_CHECKING:
    import pytest
    from conftest import Site
    from flask.testing import FlaskClient


def write(folder: Path, **files: int) -> Path:
    """Files of so many bytes; `_` in a name is a dot."""
    folder.mkdir(parents=True)
    for name, size in files.items():
        (folder / name.replace("_", ".")).write_bytes(b"x" * size)
    return folder


def test_folders_and_gguf_files_are_found_and_all_else_is_not(tmp_path: Path) -> None:
    folder = write(tmp_path / "deep" / "Qwen", config_json=1, model_safetensors=9, nested_gguf=1)
    write(tmp_path / "adapter", adapter_safetensors=1)
    single = write(tmp_path / "files", tiny_gguf=5, notes_txt=1) / "tiny.gguf"
    assert {(one.path, one.name, one.size_bytes) for one in search([tmp_path])} == {
        (folder, "Qwen", 11),
        (single, "tiny", 5),
    }


def test_a_model_in_parts_is_one(tmp_path: Path) -> None:
    for number in (1, 2, 11):
        (tmp_path / f"big-{number:05}-of-00011.gguf").write_bytes(b"xx")
    (found,) = search([tmp_path])
    assert (found.path.name, found.name, found.size_bytes) == ("big-00001-of-00011.gguf", "big", 6)


def test_a_hub_cache_names_the_repository_and_follows_links_to_files(tmp_path: Path) -> None:
    snapshot = write(tmp_path / "models--org--Tiny" / "snapshots" / "abc", config_json=1)
    blob = write(tmp_path / "blobs", one=7) / "one"
    (snapshot / "model.safetensors").symlink_to(blob)
    (found,) = search([tmp_path])
    assert (found.name, found.size_bytes) == ("Tiny", 8)


def test_a_search_is_bounded(tmp_path: Path) -> None:
    write(tmp_path.joinpath("one", *"abcdef"[: MAX_DEPTH + 1]), far_gguf=1)
    (tmp_path / "one" / "circle").symlink_to(tmp_path)
    assert search([tmp_path / "one", tmp_path / "missing"]) == []
    write(tmp_path / "many", **{f"m{number}_gguf": 1 for number in range(MAX_FOUND + 5)})
    assert len(search([tmp_path / "many"])) == MAX_FOUND
    times = iter([0.0, 99.0])
    assert search([tmp_path / "many"], clock=lambda: next(times)) == []


def test_with_model_roots_nothing_else_is_looked_at(site: Site, tmp_path: Path) -> None:
    write(tmp_path / "models", mine_gguf=1)
    settings = msgspec.structs.replace(site.settings, model_roots=str(tmp_path / "models"))
    assert [one.name for one in find_model_files(settings)] == ["mine"]


def test_the_demo_model_comes_first_and_is_told_to_be_registered(
    site: Site, site_client: FlaskClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "models", a_gguf=1)
    monkeypatch.setattr(found_files, "USUAL_PLACES", (str(tmp_path / "models"),))
    headers = {"Authorization": f"Bearer {site.token}"}

    def ask() -> list[dict[str, object]]:
        return site_client.get("/platform/v1/model-files", headers=headers).get_json()["data"]  # type: ignore[no-any-return]

    assert [(one["name"], one["is_registered"]) for one in ask()] == [("smollm2", True), ("a", False)]
    assert ask()[0]["path"] == str(find_demo_model())
