"""Objects by id in a folder: whole or not there, closed to others, gone when they are too old."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trivet_web.stored_objects import DAY_S, SWEEP_S, StoredObjects, new_id


class Note(msgspec.Struct):
    text: str


class Clock:
    def __init__(self, start_s: float) -> None:
        self.now_s = start_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def store(tmp_path: Path) -> StoredObjects[Note]:
    return StoredObjects(tmp_path / "notes", Note, retention_days=2)


def test_an_object_is_had_changed_listed_and_removed(store: StoredObjects[Note], tmp_path: Path) -> None:
    first, second = new_id("note"), new_id("note")
    store.put(first, Note("a"))
    store.put(second, Note("b"))
    store.put(first, Note("c"))
    assert (store.get(first), store.get(second)) == (Note("c"), Note("b"))
    assert set(store.ids()) == {first, second}
    assert {place.stat().st_mode & 0o777 for place in (tmp_path / "notes").iterdir()} == {0o600}
    assert store.remove(first)
    assert not store.remove(first)
    assert store.get(first) is None


@pytest.mark.parametrize("name", ["../registry", "note_../../x", "", "note_1", "note_" + "0" * 80])
def test_what_is_no_id_is_not_looked_for(store: StoredObjects[Note], name: str) -> None:
    assert store.get(name) is None
    assert not store.remove(name)


def test_what_is_too_old_is_gone_and_a_change_keeps_the_age(tmp_path: Path) -> None:
    object_id = new_id("note")
    StoredObjects(tmp_path, Note, 2).put(object_id, Note("a"))
    born_s = (tmp_path / f"{object_id}.json").stat().st_mtime
    clock = Clock(born_s + 1.5 * DAY_S)
    later = StoredObjects(tmp_path, Note, 2, clock)
    later.put(object_id, Note("b"))
    assert later.get(object_id) == Note("b")
    clock.now_s = born_s + 2 * DAY_S + SWEEP_S
    assert (later.get(object_id), later.ids()) == (None, [])
    later.put(new_id("note"), Note("c"))
    assert not (tmp_path / f"{object_id}.json").exists(), "and its file with it"
