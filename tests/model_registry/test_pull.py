"""Models from a hub of this host: real HTTP, with what goes wrong on the way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.demo_model import find_demo_model
from trivet.errors import (
    ModelFilesError,
    ModelNotFound,
    PermissionDenied,
    RequestError,
    TrivetError,
    Unavailable,
)
from trivet.models.model_files import open_model
from trivet_registry.database import Database
from trivet_registry.digests import ignore_progress
from trivet_registry.model_store.keeping import collect, verify_version
from trivet_registry.model_store.store import ModelStore, safe_name
from trivet_registry.models_store import remove_model
from trivet_registry.references import find_version
from trivet_registry.sources import download
from trivet_registry.sources.pull import Rules, Wanted, pull
from trivet_registry.sources.remote import RemoteFile, chosen_files

sys.path.append(str(Path(__file__).parent))  # local_hub
from local_hub import COMMIT, Hub, read_files, serving

Pulls = Callable[..., str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = make_tiny_model("llama-tied", tmp_path_factory.mktemp("tiny"))
    return {
        **read_files(folder),
        "README.md": b"---\nlicense: mit\n---\n",
        "photo.png": b"no part of it" * 99,
    }


@pytest.fixture
def hub(tiny: dict[str, bytes]) -> Iterator[Hub]:
    with serving(Hub(dict(tiny))) as hub:
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


@pytest.fixture
def pulls(hub: Hub, store: ModelStore, db: Database, monkeypatch: pytest.MonkeyPatch) -> Pulls:
    monkeypatch.setattr(download, "FIRST_WAIT_S", 0.0)

    def run(source: str = "hf:org/tiny", progress: Callable[[int], None] = ignore_progress, **rules) -> str:
        key = rules.pop("key", None)
        made = Rules(**{"hf_endpoint": hub.url, "ms_endpoint": hub.url, **rules})
        return pull(Wanted(source, key=key), made, store, db, open_model, progress)

    return run


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("hf:org/tiny", f"hf:org/tiny@{COMMIT}"),
        ("hf:org/tiny@v1", f"hf:org/tiny@{COMMIT}"),
        ("ms:org/tiny", "ms:org/tiny@master"),
    ],
)
def test_a_model_of_a_hub_is_registered_with_what_it_is(
    pulls: Pulls, db: Database, hub: Hub, source: str, kept: str
) -> None:
    come: list[int] = []
    assert pulls(source, come.append) == "tiny:1"
    with db.reading() as session:
        version = find_version(session, "tiny")
    assert (version.source, version.licence, version.is_stored) == (kept, "mit", True)
    assert read_files(Path(version.path)) == {k: v for k, v in hub.files.items() if k != "photo.png"}
    assert sum(come) == sum(len(data) for name, data in hub.files.items() if name != "photo.png")
    assert verify_version(db, "tiny") == {}
    assert pulls(source) == "tiny:1", "nothing is new"


def test_a_cut_connection_is_gone_on_with(pulls: Pulls, hub: Hub) -> None:
    hub.cut_after, hub.refuse = [100, 0, 200], [503]
    assert pulls() == "tiny:1"
    assert hub.ranges[:5] == [None, None, "bytes=100-", "bytes=100-", "bytes=300-"]


def test_a_server_without_ranges_is_read_anew(pulls: Pulls, hub: Hub) -> None:
    hub.cut_after, hub.ignores_ranges = [100], True
    come: list[int] = []
    assert pulls(progress=come.append) == "tiny:1"
    assert sum(come) == sum(len(data) for name, data in hub.files.items() if name != "photo.png")


def test_what_is_cancelled_goes_on_where_it_ended(pulls: Pulls, hub: Hub, store: ModelStore) -> None:
    class Cancelled(Exception):
        pass

    def cancel_late(count: int) -> None:
        if store.root.exists() and len(list((store.root / "blobs").glob("??/*"))) >= 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        pulls(progress=cancel_late)
    asked = len(hub.ranges)
    assert pulls() == "tiny:1"
    assert asked + len(hub.ranges[asked:]) < 2 * len(hub.files), "files that are there are not asked for"


def test_a_wrong_checksum_names_the_file_and_leaves_nothing_of_it(
    pulls: Pulls, hub: Hub, db: Database
) -> None:
    for name in ("config.json", "model-00001-of-00006.safetensors"):
        hub.corrupts = name
        with pytest.raises(ModelFilesError, match=rf"{name} has .*SHA.* and should have"):
            pulls()
    hub.corrupts = ""
    assert pulls() == "tiny:1"
    assert verify_version(db, "tiny") == {}


def test_a_server_that_never_gets_well_is_given_up(pulls: Pulls, hub: Hub) -> None:
    hub.refuse = [503] * 50
    with pytest.raises(Unavailable, match="pull again"):
        pulls()
    assert len(hub.ranges) == download.NUM_TRIES


def test_the_source_of_a_version_brings_the_same_files_again(pulls: Pulls, hub: Hub, db: Database) -> None:
    demo = find_demo_model().read_bytes()
    hub.files = {"tiny-Q4_1.gguf": demo, "tiny-Q8_0.gguf": demo + bytes(32)}
    assert pulls("hf:org/tiny:q8_0") == "tiny:1"
    with db.reading() as session:
        version = find_version(session, "tiny")
    assert version.source == f"hf:org/tiny@{COMMIT}:q8_0"
    assert pulls(version.source) == "tiny:1"


def test_a_pull_that_takes_too_long_ends_and_is_gone_on_with(pulls: Pulls, hub: Hub) -> None:
    hub.held = threading.Event()  # the server is silent after the first bytes
    with pytest.raises(Unavailable, match=r"not done after 1 s \(pull_timeout_s\)"):
        pulls(timeout_s=1.0)
    hub.held.set()
    assert pulls() == "tiny:1"


def test_a_source_that_trickles_is_given_up(pulls: Pulls, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.cut_after = [300] * 50  # each try brings something, and none enough
    with pytest.raises(Unavailable, match="pull again"):
        pulls()
    assert len(hub.ranges) < 50


def test_a_file_of_modelscope_without_a_checksum_is_refused(
    pulls: Pulls, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.sha256_of["config.json"] = ""
    with pytest.raises(ModelFilesError, match=r"'config\.json' without its SHA-256"):
        pulls("ms:org/tiny")


def test_what_moved_after_modelscope_listed_it_is_refused(pulls: Pulls, hub: Hub) -> None:
    hub.corrupts = "model-00001-of-00006.safetensors"
    with pytest.raises(ModelFilesError, match="SHA-256"):
        pulls("ms:org/tiny")


def test_a_token_is_sent_and_its_absence_said(pulls: Pulls, hub: Hub) -> None:
    hub.token = "hf_secret"
    with pytest.raises(PermissionDenied, match="it needs a key"):
        pulls()
    assert pulls(key="hf_secret") == "tiny:1"


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("hf:org/none", ModelNotFound, "not there"),
        ("hf:org/tiny@v9", ModelNotFound, "revision"),
        ("hf:../../etc", RequestError, "no repository"),
        ("hf:org/tiny@../x", RequestError, "revision"),
        ("s3:bucket", RequestError, "hf:org/name"),
        ("trivet:ftp://host/x", RequestError, "trivet:https"),
        ("trivet:https://user:secret@host/x", RequestError, r"^the address of host has a user or password"),
    ],
)
def test_a_source_that_is_none_says_what_would_do(
    pulls: Pulls, source: str, error: type[TrivetError], words: str
) -> None:
    with pytest.raises(error, match=words):
        pulls(source)


@pytest.mark.parametrize("source", ["hf:org/tiny", "ms:org/tiny"])
@pytest.mark.parametrize("said", ["{secret}", "../../../secret", "A" * 64, "", "0" * 63, "0" * 64 + "\n"])
def test_a_checksum_that_is_a_path_leads_nowhere(
    pulls: Pulls, hub: Hub, tmp_path: Path, store: ModelStore, source: str, said: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the run token")
    hub.sha256_of["README.md"] = said.format(secret=secret)
    with pytest.raises((ModelFilesError, Unavailable)):
        pulls(source)
    assert secret.read_text() == "the run token"
    assert not [file for file in store.root.rglob("*") if file.is_file() and file.samefile(secret)]


@pytest.mark.parametrize("said", ["/etc/passwd", "../../x", "A" * 64, "", "0" * 64 + "\n"])
def test_the_store_has_no_place_for_what_is_no_checksum(store: ModelStore, said: str) -> None:
    with pytest.raises(ModelFilesError, match="is no SHA-256"):
        store.blob(said)


def test_names_that_lead_out_of_the_folder_are_refused(pulls: Pulls, hub: Hub, tmp_path: Path) -> None:
    hub.files["../../evil.gguf"] = b"GGUF"
    with pytest.raises(ModelFilesError, match="leads out"):
        pulls()


@pytest.mark.parametrize("name", ["a\nb.gguf", "a\0.gguf", "a\x7f.gguf", "x" * 256])
def test_names_that_would_not_be_one_line_are_refused(name: str) -> None:
    with pytest.raises(ModelFilesError, match="control characters"):
        safe_name(name)


def test_one_gguf_of_several_is_chosen_by_a_part_of_its_name(pulls: Pulls, hub: Hub) -> None:
    hub.files = {"a-Q4_K_M.gguf": b"GGUF" * 200, "a-Q8_0.gguf": b"GGUF" * 300, "mmproj-a.gguf": b"GGUF"}
    with pytest.raises(ModelNotFound, match=r"2 GGUF models: a-Q4_K_M.gguf, a-Q8_0.gguf"):
        pulls()
    with pytest.raises(ModelFilesError, match=r"a-Q8_0\.gguf"):  # fetched, and no model
        pulls("hf:org/tiny:q8_0")
    assert len(hub.ranges) == 1


def test_pickles_are_refused_and_where_allowed_become_safetensors(
    pulls: Pulls, hub: Hub, db: Database, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file

    names = [name for name in hub.files if name.endswith(".safetensors")]
    for name in names:
        (tmp_path / name).write_bytes(hub.files.pop(name))
    del hub.files["model.safetensors.index.json"]
    tensors = {k: v for name in names for k, v in load_file(tmp_path / name).items()}
    torch.save(tensors, tmp_path / "x.bin")
    hub.files["pytorch_model.bin"] = (tmp_path / "x.bin").read_bytes()
    with pytest.raises(ModelFilesError, match="set allow_pickle"):
        pulls()
    assert pulls(allows_pickle=True) == "tiny:1"
    with db.reading() as session:
        path = Path(find_version(session, "tiny").path)
    assert not list(path.glob("*.bin"))
    assert load_file(path / "model.safetensors").keys() == tensors.keys()


class Evil:
    """What a pickle can do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_list_without_sizes_is_refused_before_anything_is_fetched(pulls: Pulls, hub: Hub) -> None:
    hub.tells_sizes = False
    with pytest.raises(Unavailable, match=r"has no size of '.*'; use a hub or a mirror that tells sizes"):
        pulls()


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_part_of_a_name_is_of_gguf_files_only(weights: str) -> None:
    files = [RemoteFile(name, 1, "") for name in ("config.json", weights)]
    with pytest.raises(ModelNotFound, match="'Q4_K_M' names one of several GGUF files, and there is none"):
        chosen_files(files, "Q4_K_M", allows_pickle=True)


def test_a_pickle_with_code_in_it_runs_nothing(pulls: Pulls, hub: Hub, tmp_path: Path) -> None:
    import torch

    for name in [name for name in hub.files if "safetensors" in name]:
        del hub.files[name]
    torch.save({"w": Evil(tmp_path / "was-here")}, tmp_path / "x.bin")
    hub.files["pytorch_model.bin"] = (tmp_path / "x.bin").read_bytes()
    with pytest.raises(ModelFilesError, match="cannot be read as plain tensors"):
        pulls(allows_pickle=True)
    assert not (tmp_path / "was-here").exists()


def test_collecting_leaves_what_versions_need_and_waits_for_pulls(
    pulls: Pulls, hub: Hub, db: Database, store: ModelStore
) -> None:
    pulls()
    before = store.usage()
    assert collect(db, store).num_files == 0
    hub.files["tokenizer_config.json"] = b"{}"  # another version, which shares all other files
    assert pulls() == "tiny:2"
    assert store.usage().num_files == before.num_files + 1
    with db.session() as session:
        remove_model(session, "tiny:2")
    assert collect(db, store).num_files == 1
    assert verify_version(db, "tiny:1") == {}
    hub.held = threading.Event()
    hub.files["tokenizer_config.json"] = b'{"a": "%s"}' % (b"x" * 600)
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(pulls()))
    thread.start()
    try:
        while thread.is_alive() and (not hub.ranges or not list(store.partial.iterdir())):
            thread.join(0.01)
        with pytest.raises(TrivetError, match="being pulled"):
            collect(db, store)
    finally:
        hub.held.set()
        thread.join()
    assert ended == ["tiny:3"]
    with db.session() as session:
        remove_model(session, "tiny")
    collect(db, store)
    assert store.usage().num_files == 0
    assert not list((store.root / "trees").iterdir())


def test_a_flipped_byte_and_a_missing_file_are_named(pulls: Pulls, db: Database) -> None:
    pulls()
    with db.reading() as session:
        path = Path(find_version(session, "tiny").path)
    file = path / "model-00002-of-00006.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    file.write_bytes(data)
    (path / "config.json").unlink()
    wrong = verify_version(db, "tiny:1")
    assert sorted(wrong) == ["config.json", file.name]
    assert "is missing" in wrong["config.json"]
