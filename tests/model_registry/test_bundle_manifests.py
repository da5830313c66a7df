"""What a signed manifest may say: whoever has a trusted key is trusted with models, and with nothing else."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trivet.errors import Conflict, ModelFilesError, Unavailable
from trivet_registry.bundles.manifest import BLOBS, MANIFEST, SIGNATURE, BundledFile, Manifest
from trivet_registry.bundles.signing import own_key
from trivet_registry.models_store import remove_model

sys.path.append(str(Path(__file__).parent))  # bundle_sites
from bundle_sites import Home, members, write

Numbered = Callable[[int, int], Path]


@pytest.fixture
def numbered(here: Home, bundle: Path, tmp_path: Path) -> Numbered:
    """A signed bundle of tiny with this number, and this in one of its files."""
    key = own_key(here.keys)

    def make(version: int, top_k: int) -> Path:
        content = members(bundle)
        manifest = msgspec.json.decode(content[MANIFEST], type=Manifest)
        data = b'{"top_k": %d}' % top_k
        old = next(file for file in manifest.files if file.name == "generation_config.json")
        new = BundledFile(old.name, len(data), hashlib.sha256(data).hexdigest(), is_included=True)
        files = [new if file is old else file for file in manifest.files]
        changed = msgspec.json.encode(msgspec.structs.replace(manifest, version=version, files=files))
        blobs = {BLOBS + new.sha256 if n == BLOBS + old.sha256 else n: d for n, d in content.items()}
        blobs |= {MANIFEST: changed, SIGNATURE: key.sign(changed), BLOBS + new.sha256: data}
        return write(tmp_path / f"v{version}-{top_k}", blobs)

    return make


def test_the_newest_number_counts_where_its_files_were_there_before(
    here: Home, there: Home, numbered: Numbered
) -> None:
    for version, top_k in ((3, 33), (4, 44), (5, 33)):
        there.take(numbered(version, top_k), here)
    with pytest.raises(Conflict, match="version 4 of tiny, and version 5 was taken in"):
        there.take(numbered(4, 44), here)


def test_the_newest_number_is_known_after_removal_and_under_another_name(
    here: Home, there: Home, numbered: Numbered
) -> None:
    there.take(numbered(3, 33), here)
    there.take(numbered(4, 44), here)
    with pytest.raises(Conflict, match="version 3 of tiny"):
        there.take(numbered(3, 33), here, name="other")
    with there.database.session() as session:
        remove_model(session, "tiny")
    with pytest.raises(Conflict, match="version 3 of tiny"):
        there.take(numbered(3, 33), here)
    assert there.take(numbered(3, 33), here, allows_older=True) == "tiny:3"
    with pytest.raises(Conflict, match="version 3 of tiny"):
        there.take(numbered(3, 33), here)


def test_one_number_has_one_content(here: Home, there: Home, numbered: Numbered) -> None:
    there.take(numbered(3, 33), here)
    for allows_older in (False, True):
        with pytest.raises(Conflict, match="with other files"):
            there.take(numbered(3, 44), here, allows_older=allows_older)
    assert there.take(numbered(3, 33), here, name="again") == "again:1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "../../evil"}, "leads out"),
        ({"name": "/etc/cron.d/evil"}, "leads out"),
        ({"name": "a/../../evil"}, "leads out"),
        ({"name": "C:\\\\evil"}, "leads out"),
        ({"name": ""}, "leads out"),
        ({"name": "x" * 300}, "longer than 255"),
        ({"name": "config.json"}, "twice"),
        ({"name": "config.json/below"}, "below"),
        ({"sha256": "/etc/passwd"}, "matching regex"),
        ({"sha256": "../../registry.db"}, "matching regex"),
        ({"size_bytes": -1}, "`int` >= 0"),
        ({"size_bytes": 1 << 62}, "GiB of files come"),
    ],
)
def test_a_signed_manifest_leads_nowhere(
    here: Home, there: Home, bundle: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    content = members(bundle)
    manifest = msgspec.json.decode(content[MANIFEST])
    odd = next(file for file in manifest["files"] if file["name"] == "generation_config.json")
    odd.update(changes)
    changed = msgspec.json.encode(manifest)
    signed = {**content, MANIFEST: changed, SIGNATURE: own_key(here.keys).sign(changed)}
    with pytest.raises((ModelFilesError, Unavailable), match=words):
        there.take(write(tmp_path / "odd", signed), here)
    assert there.models() == []
    assert not list(tmp_path.rglob("*evil*"))
