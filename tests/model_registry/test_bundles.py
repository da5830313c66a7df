"""Bundles between two sites: what is right comes over whole, all else is refused by name."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import tarfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trivet.errors import Conflict, ModelFilesError, ModelNotFound, PermissionDenied, TrivetError
from trivet.models.model_files import open_model
from trivet_registry.bundles import archive, exporting, importing
from trivet_registry.bundles.exporting import export_version
from trivet_registry.bundles.manifest import MANIFEST
from trivet_registry.bundles.signing import PRIVATE, PUBLIC, fingerprint, own_key
from trivet_registry.digests import digests_of
from trivet_registry.model_store.keeping import verify_version
from trivet_registry.models_store import register_model
from trivet_registry.references import find_version

sys.path.append(str(Path(__file__).parent))  # bundle_sites
from bundle_sites import Home, members, write


def test_a_bundle_brings_the_whole_version(here: Home, there: Home, bundle: Path) -> None:
    assert (here.keys / PRIVATE).stat().st_mode & 0o777 == 0o600
    assert there.take(bundle, here, name="mine") == "mine:1"
    with there.database.reading() as session, here.database.reading() as session_here:
        got, sent = find_version(session, "mine"), find_version(session_here, "tiny:2")
        assert (got.digest, got.signed_version) == (sent.digest, 2)
        assert there.tested == [Path(got.path)]
    assert verify_version(there.database, "mine:1") == {}
    assert there.take(bundle, here, name="mine") == "mine:1"


def test_what_the_store_has_already_is_not_written_again_but_is_looked_at(
    here: Home, there: Home, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is nearly full has room for it."""
    there.take(bundle, here)
    content = members(bundle)
    name = next(name for name in content if name.startswith("blobs/"))
    flipped = bytes([content[name][0] ^ 1]) + content[name][1:]
    changed = write(tmp_path / "changed", {**content, name: flipped})

    monkeypatch.setattr(importing, "secrets", None)  # a file that is written has a name of it
    with pytest.raises(ModelFilesError, match="was changed or damaged"):
        there.take(changed, here, name="again")
    assert there.take(bundle, here, name="again") == "again:1"


def test_one_flipped_byte_anywhere_is_refused_by_name(
    here: Home, there: Home, bundle: Path, tmp_path: Path
) -> None:
    content = members(bundle)
    manifest = msgspec.json.decode(content[MANIFEST])
    for name in content:
        data = bytearray(content[name])
        data[len(data) // 2] ^= 1
        changed = write(tmp_path / "changed", {**content, name: bytes(data)})
        with pytest.raises(TrivetError) as caught:
            there.take(changed, here)
        if name.startswith("blobs/"):
            (file,) = [f["name"] for f in manifest["files"] if name.endswith(f["sha256"])]
            assert file in str(caught.value)
        else:
            assert isinstance(caught.value, PermissionDenied)
        assert there.models() == []


def test_a_missing_file_a_strange_one_and_a_cut_bundle_are_refused(
    here: Home, there: Home, bundle: Path, tmp_path: Path
) -> None:
    content = members(bundle)
    manifest = msgspec.json.decode(content[MANIFEST])
    file = manifest["files"][2]
    gone = {name: data for name, data in content.items() if not name.endswith(file["sha256"])}
    with pytest.raises(ModelFilesError, match=f"{file['name']} is missing"):
        there.take(write(tmp_path / "gone", gone), here)
    with pytest.raises(ModelFilesError, match="which its manifest does not name"):
        there.take(write(tmp_path / "more", {**content, "../evil": b"x"}), here)
    data = bundle.read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelFilesError, match=r"no whole bundle|is missing|was changed"):
        there.take(tmp_path / "cut", here)
    (tmp_path / "none").write_bytes(b"x" * 2000)
    with pytest.raises(ModelFilesError, match="no whole bundle"):
        there.take(tmp_path / "none", here)
    assert there.models() == []


def test_only_trusted_keys_count(here: Home, there: Home, homes: Callable[[str], Home], bundle: Path) -> None:
    other = homes("other")
    own_key(other.keys)
    with pytest.raises(PermissionDenied, match=r"trusted keys \(none\)"):
        there.take(bundle)
    with pytest.raises(PermissionDenied, match="signed by none of the trusted keys"):
        there.take(bundle, other)
    (there.keys / "trusted").mkdir(parents=True)
    (there.keys / "trusted" / "here.pub").write_bytes((here.keys / PUBLIC).read_bytes())
    assert there.take(bundle) == "tiny:1"


def test_an_older_version_is_refused_after_a_newer_one(
    here: Home, there: Home, bundle: Path, tmp_path: Path, tiny_folder: Path
) -> None:
    older = tmp_path / "older"
    (tiny_folder / "generation_config.json").write_text('{"top_k": 1}')
    export_version(here.database, "tiny:1", older, own_key(here.keys))
    there.take(bundle, here)
    with pytest.raises(Conflict, match="version 1 of tiny, and version 2 was taken in"):
        there.take(older, here)
    assert there.take(older, here, allows_older=True) == "tiny:2"


def test_a_delta_leaves_out_what_the_other_site_has(
    here: Home, there: Home, homes: Callable[[str], Home], bundle: Path, tmp_path: Path, tiny_folder: Path
) -> None:
    there.take(bundle, here)
    (tiny_folder / "generation_config.json").write_text('{"top_k": 3}')
    files = open_model(tiny_folder)
    with here.database.session() as session:
        register_model(session, files, "tiny", digests=digests_of(files))
    have = there.store.digests()
    made = export_version(here.database, "tiny:3", tmp_path / "delta", own_key(here.keys), have)
    assert made.num_files == 1
    assert there.take(tmp_path / "delta", here) == "tiny:2"
    assert verify_version(there.database, "tiny:2") == {}
    with pytest.raises(ModelFilesError, match="neither in"):
        homes("empty").take(tmp_path / "delta", here)


def test_what_changed_since_it_was_registered_is_not_exported(
    here: Home, tmp_path: Path, tiny_folder: Path
) -> None:
    (tiny_folder / "generation_config.json").write_text('{"top_k": 9}')
    with pytest.raises(ModelFilesError, match=r"generation_config\.json has SHA-256"):
        export_version(here.database, "tiny:2", tmp_path / "x", own_key(here.keys))
    assert not (tmp_path / "x").exists()


def test_what_changes_after_it_was_verified_is_not_exported(
    here: Home, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified(*args: Any) -> dict[str, str]:
        wrong = verify_version(*args)
        (tiny_folder / "generation_config.json").write_text('{"top_k": 7}')
        return wrong

    monkeypatch.setattr(exporting, "verify_version", verified)
    with pytest.raises(ModelFilesError, match="changed while it was exported"):
        export_version(here.database, "tiny:2", tmp_path / "x", own_key(here.keys))
    assert not list(tmp_path.glob("*x")), "neither the bundle nor a part of it"


KILLED = """
import os, sys
from pathlib import Path
from trivet_registry.bundles import exporting
from trivet_registry.bundles.signing import own_key
from trivet_registry.database import open_database
exporting._put_in_place = lambda *_: os.kill(os.getpid(), 9)
exporting.export_version(open_database(sys.argv[1]), "tiny:2", Path(sys.argv[2]), own_key(Path(sys.argv[3])))
"""


def test_what_an_export_wrote_that_was_killed_is_removed_by_the_next(here: Home, tmp_path: Path) -> None:
    path, url = tmp_path / "a[1].bundle", here.database.engine.url.render_as_string(hide_password=False)
    subprocess.run([sys.executable, "-c", KILLED, url, str(path), str(here.keys)], check=False)
    (abandoned,) = tmp_path.glob(".*.partial")
    under_way = abandoned.with_name(".a[1].bundle.0.partial")
    with under_way.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        export_version(here.database, "tiny:2", path, own_key(here.keys))
    assert (path.exists(), abandoned.exists(), under_way.exists()) == (True, False, True)


def test_a_model_that_answers_nothing_is_not_registered(here: Home, there: Home, bundle: Path) -> None:
    def fails(path: Path) -> None:
        raise ModelFilesError("the model did not answer one token")

    there.tested = type("Failing", (list,), {"append": lambda self, path: fails(path)})()
    with pytest.raises(ModelFilesError, match="one token"):
        there.take(bundle, here)
    with there.database.reading() as session, pytest.raises(ModelNotFound):
        find_version(session, "tiny")


def test_two_that_take_in_the_same_bundle_do_not_write_into_each_other(
    here: Home, there: Home, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive.Archive.content, "__defaults__", (1000,))
    sizes = [len(data) for name, data in members(bundle).items() if name.startswith("blobs/")]
    largest = sizes.index(max(sizes))
    inside = sum(sizes[:largest]) + 2000  # of the largest file
    is_inside, may_go_on = threading.Event(), threading.Event()
    taken: list[str] = []

    come_first: list[int] = []
    come_second: list[int] = []

    def second_waits(count: int) -> None:
        come_second.append(count)
        if sum(come_second) >= inside:
            is_inside.set()
            assert may_go_on.wait(30)

    second = threading.Thread(
        target=lambda: taken.append(there.take(bundle, here, second_waits, name="second"))
    )

    def first_goes_on(count: int) -> None:
        come_first.append(count)
        if sum(come_first) >= inside and not is_inside.is_set():
            second.start()
            assert is_inside.wait(30)

    try:
        assert there.take(bundle, here, first_goes_on, name="first") == "first:1"
        assert verify_version(there.database, "first") == {}
    finally:
        may_go_on.set()
        second.join()
    assert taken == ["second:1"]
    assert verify_version(there.database, "second") == verify_version(there.database, "first") == {}


SPARSE = {
    "GNU.sparse.major": "0",
    "GNU.sparse.minor": "1",
    "GNU.sparse.numblocks": "1",
    "GNU.sparse.map": "0,512",
    "GNU.sparse.size": str(1 << 30),
}


def test_a_sparse_member_under_a_genuine_manifest_fills_no_disk(
    here: Home, there: Home, bundle: Path, tmp_path: Path
) -> None:
    come: list[int] = []
    with tarfile.open(tmp_path / "bomb", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members(bundle).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if name.startswith("blobs/"):
                member.size, member.pax_headers = 512, {**SPARSE, "GNU.sparse.name": name}
            tar.addfile(member, io.BytesIO(data + b"x" * 512))
    with pytest.raises(ModelFilesError, match="plain files only"):
        there.take(tmp_path / "bomb", here, come.append)
    assert come == []


def test_a_file_longer_than_the_manifest_says_is_not_written(
    here: Home, there: Home, bundle: Path, tmp_path: Path
) -> None:
    come: list[int] = []
    content = members(bundle)
    first = next(name for name in content if name.startswith("blobs/"))
    longer = write(tmp_path / "longer", {**content, first: content[first] + bytes(1 << 20)})
    with pytest.raises(ModelFilesError, match="the signed manifest says"):
        there.take(longer, here, come.append)
    assert come == []


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE])
def test_an_extended_header_is_not_read_into_memory(
    here: Home, there: Home, tmp_path: Path, kind: bytes
) -> None:
    own_key(here.keys)
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 1 << 30
    with (tmp_path / "bomb").open("wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate(2 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFilesError, match="plain files only"):
            there.take(tmp_path / "bomb", here)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_files_over_8_gib_have_plain_headers(tmp_path: Path) -> None:
    member = tarfile.TarInfo("blobs/" + "0" * 64)
    member.size = 9 << 30
    with (tmp_path / "large").open("w+b") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + member.size)
        found = archive.Archive(file, "large").next()
    assert found is not None
    assert (found.name, found.size) == (member.name, member.size)


def test_a_key_that_was_not_written_whole_is_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(handle: int) -> None:
        raise KeyboardInterrupt  # as if the process were killed there

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", ends)
        with pytest.raises(KeyboardInterrupt):
            own_key(tmp_path)
    assert list(tmp_path.iterdir()) == []
    key = own_key(tmp_path)
    assert fingerprint(own_key(tmp_path).public_key()) == fingerprint(key.public_key())
    assert sorted(file.name for file in tmp_path.iterdir()) == [PRIVATE, PUBLIC]


def test_of_two_exports_to_one_path_one_is_told(
    here: Home, there: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, key = tmp_path / "one", own_key(here.keys)
    write_bundle = exporting._write

    def write_slowly(*args: Any) -> None:
        monkeypatch.setattr(exporting, "_write", write_bundle)
        write_bundle(*args)
        export_version(here.database, "tiny:2", path, key)  # a second one is faster

    monkeypatch.setattr(exporting, "_write", write_slowly)
    with pytest.raises(Conflict, match="exists by now"):
        export_version(here.database, "tiny:2", path, key)
    assert not list(tmp_path.glob(".*"))
    assert there.take(path, here) == "tiny:1"
