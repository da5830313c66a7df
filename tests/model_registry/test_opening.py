"""Files of models that are passed on: no link leads to what only this process may read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trivet.errors import ModelFilesError, PermissionDenied
from trivet_registry.model_store.opening import open_in_place

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other accounts")
STRANGER = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stranger's."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    for place in (made, made / "config.json"):
        os.chown(place, STRANGER, STRANGER)
    return made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    made = tmp_path / "home" / "token"
    made.parent.mkdir()
    made.write_text("secret")
    made.chmod(0o600)
    return made


def test_a_plain_file_is_opened(folder: Path) -> None:
    with open_in_place(folder / "config.json", folder) as file:
        assert file.read() == b"{}"


@pytest.mark.parametrize("how", ["a link", "a link to a link", "a folder that is a link"])
def test_a_strangers_link_to_a_closed_file_is_not_followed(folder: Path, secret: Path, how: str) -> None:
    name = "token"
    if how == "a link":
        (folder / name).symlink_to(secret)
    elif how == "a link to a link":
        (folder / "other").symlink_to(secret)
        (folder / name).symlink_to("other")
    else:
        (folder / "deep").symlink_to(secret.parent)
        name = "deep/token"
    with pytest.raises(ModelFilesError, match="leads to"):
        open_in_place(folder / name, folder)


def test_links_in_a_cache_of_their_owner_are_followed(folder: Path) -> None:
    blob = folder.parent / "blob"
    blob.write_text("weights")
    blob.chmod(0o600)
    os.chown(blob, STRANGER, STRANGER)
    (folder / "model.safetensors").symlink_to(blob)
    with open_in_place(folder / "model.safetensors", folder) as file:
        assert file.read() == b"weights"


def test_a_model_folder_that_is_a_link_itself_is_no_way_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(folder)
    with open_in_place(tmp_path / "current" / "config.json", tmp_path / "current") as file:
        assert file.read() == b"{}"


def refuse(place: Path) -> None:
    raise PermissionDenied(f"{place} is not for you")


def test_the_sites_rules_see_where_a_file_really_is(folder: Path, secret: Path) -> None:
    os.chown(secret, STRANGER, STRANGER)
    (folder / "token").symlink_to(secret)
    seen: list[Path] = []

    def check(place: Path) -> None:
        seen.append(place)
        refuse(place)

    with pytest.raises(PermissionDenied):
        open_in_place(folder / "token", folder, check)
    assert seen == [secret]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_refused_at_once(folder: Path, make: Callable[[Path], None]) -> None:
    make(folder / "weights")
    with pytest.raises(ModelFilesError, match="no plain file"):
        open_in_place(folder / "weights", folder)
