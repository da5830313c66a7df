"""Files of registered models over the network: what took their place since is not sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.demo_model import find_demo_model
from trivet.models.model_files import open_model
from trivet_registry.models_store import register_model

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

FILE = "/platform/v1/versions/mine/files/mine.gguf"


@pytest.fixture
def model(site: Site, site_client: FlaskClient, tmp_path: Path) -> Path:
    """Registered where it lies, and not read through."""
    file = tmp_path / "models" / "mine.gguf"
    file.parent.mkdir()
    file.write_bytes(find_demo_model().read_bytes())
    body = {"path": str(file), "name": "mine", "verify": False}
    assert site_client.post("/platform/v1/models", json=body, headers=token(site)).status_code == 201
    return file


def token(site: Site) -> dict[str, str]:
    return {"Authorization": f"Bearer {site.token}"}


def test_a_file_is_sent_whole_or_in_part(site: Site, site_client: FlaskClient, model: Path) -> None:
    assert site_client.get(FILE, headers=token(site), buffered=True).data == model.read_bytes()
    part = site_client.get(FILE, headers={**token(site), "Range": "bytes=4-9"}, buffered=True)
    assert (part.status_code, part.data) == (206, model.read_bytes()[4:10])


def to_link(model: Path, secret: Path) -> None:
    model.unlink()
    model.symlink_to(secret)


def to_link_of_the_same_size_and_time(model: Path, secret: Path) -> None:
    status = model.stat()
    os.truncate(secret, status.st_size)
    os.utime(secret, ns=(status.st_atime_ns, status.st_mtime_ns))
    to_link(model, secret)


def to_other_content(model: Path, secret: Path) -> None:
    model.write_bytes(secret.read_bytes())


def to_folder_behind_a_link(model: Path, secret: Path) -> None:
    model.parent.rename(model.parent.with_name("moved"))
    (secret.parent / model.name).write_bytes(secret.read_bytes())
    model.parent.symlink_to(secret.parent)


def to_pipe(model: Path, secret: Path) -> None:
    model.unlink()
    os.mkfifo(model)


@pytest.mark.parametrize(
    "change",
    [to_link, to_link_of_the_same_size_and_time, to_other_content, to_folder_behind_a_link, to_pipe],
)
def test_what_took_the_place_of_a_registered_file_is_not_sent(
    site: Site, site_client: FlaskClient, model: Path, change: Callable[[Path, Path], None]
) -> None:
    (model.parent.parent / "other").mkdir()
    secret = model.parent.parent / "other" / "token"
    secret.write_text("secret")
    change(model, secret)
    answer = site_client.get(FILE, headers=token(site), buffered=True)
    assert answer.status_code == 409
    assert str(model) in answer.text
    assert "secret" not in answer.text


def test_a_link_in_a_folder_of_a_model_is_not_followed(
    site: Site, site_client: FlaskClient, tmp_path: Path
) -> None:
    folder = make_tiny_model("llama-tied", tmp_path)
    with site.database.session() as session:
        register_model(session, open_model(folder), "tiny")
    path = "/platform/v1/versions/tiny/files/config.json"
    assert (
        site_client.get(path, headers=token(site), buffered=True).data
        == (folder / "config.json").read_bytes()
    )
    (folder / "config.json").rename(tmp_path / "elsewhere")  # the very file: its size and time are the same
    (folder / "config.json").symlink_to(tmp_path / "elsewhere")
    answer = site_client.get(path, headers=token(site), buffered=True)
    assert (answer.status_code, "--copy" in answer.text) == (409, True)
    (folder / "config.json").unlink()
    assert site_client.get(path, headers=token(site), buffered=True).status_code == 404


def test_the_allowed_folders_are_looked_at_again(
    site: Site, site_client: FlaskClient, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process: Any = site_client.application.extensions["trivet"]
    monkeypatch.setattr(
        process, "settings", msgspec.structs.replace(process.settings, model_roots=str(model.parent))
    )
    assert site_client.get(FILE, headers=token(site), buffered=True).status_code == 200
    model.parent.rename(model.parent.with_name("moved"))
    model.parent.symlink_to(model.parent.with_name("moved"))
    monkeypatch.setattr(
        process, "settings", msgspec.structs.replace(process.settings, model_roots=str(site.run_dir))
    )
    assert site_client.get(FILE, headers=token(site), buffered=True).status_code == 403
