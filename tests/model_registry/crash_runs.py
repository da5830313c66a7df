"""Kills a process of its own (SIGKILL) at one step after the other of an act, and looks at what is left.

    python crash_runs.py ACT HOME [URL]

A step is a file that is opened, linked, renamed or removed, or a statement of SQL. For each the act is begun
in a forked process, on a home of its own, which kills itself there. Then: what was registered is whole, no
lock is left, and the same act, done again, ends as if nothing had happened. Prints how many kills there were.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, event, text

from trivet.models.model_files import open_model
from trivet_registry.bundles.importing import Import, import_bundle
from trivet_registry.database import connecting, open_database, revision_of
from trivet_registry.digests import ignore_progress
from trivet_registry.migrations import HEAD
from trivet_registry.model_store.keeping import (
    collect,
    copy_into,
    open_stored,
    register_stored,
    verify_version,
)
from trivet_registry.model_store.store import ModelStore
from trivet_registry.models_store import list_models, remove_model
from trivet_registry.sources.pull import Rules, Wanted, pull

MAX_KILLS = 16  # of an act, and its last ones
EVENTS = {"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}


def killed_at(step: int, act: Callable[[], None], counts: Callable[[str], bool]) -> bool:
    """Whether the act was killed; it has ended where it has fewer steps."""
    child = os.fork()
    if child == 0:
        left = step

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def hook(name: str, arguments: tuple[object, ...]) -> None:
            if name in EVENTS and counts(str(arguments[0])):
                count()

        sys.addaudithook(hook)
        event.listen(Engine, "before_cursor_execute", lambda *_: count())
        event.listen(Engine, "commit", lambda _: count())
        try:
            act()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0, "the act failed by itself"
    return os.WIFSIGNALED(status)


def steps(num_all: int) -> Iterator[int]:
    """At most MAX_KILLS of all, the last ones among them: there it is registered."""
    stride = max(1, num_all // MAX_KILLS)
    yield from sorted({*range(1, num_all + 1, stride), *range(max(1, num_all - 8), num_all + 1)})


@dataclass
class Home:
    """A site of its own."""

    folder: Path
    source: Path  # a model's folder, of which the act is about
    base: Path  # and another's

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'registry.db'}"

    @property
    def store(self) -> ModelStore:
        return ModelStore(self.folder / "models")

    def prepare(self) -> None:
        """With `base:1` in the store, which nothing may harm."""
        self.folder.mkdir()
        self.copy("base", self.base)

    def copy(self, name: str, source: Path) -> None:
        files, store, database = open_model(source), self.store, open_database(self.url)
        with store.adding():
            digests = copy_into(store, files)
            stored = open_stored(store, digests, open_model)
            with database.session() as session:
                register_stored(session, stored, digests, name, "local")
        database.close()

    def pull(self, hub: str) -> None:
        database = open_database(self.url)
        wanted = Wanted("hf:org/tiny", "new")
        pull(wanted, Rules(hub, hub), self.store, database, open_model, ignore_progress)
        database.close()

    def take_in(self, bundle: Path, key: str) -> None:
        database = open_database(self.url)
        wanted = Import(bundle, self.folder / "keys", "new", key)
        place = self.store, database, open_model
        import_bundle(wanted, *place, lambda path: None, ignore_progress, ignore_progress)
        database.close()

    def remove_base(self) -> None:
        database = open_database(self.url)
        with database.session() as session:
            remove_model(session, "base")
        database.close()

    def collect(self) -> None:
        database = open_database(self.url)
        collect(database, self.store)
        database.close()

    def models(self) -> list[str]:
        """All that are registered, each of them whole."""
        database = open_database(self.url)
        with database.reading() as session:
            found = [version.reference for model in list_models(session) for version in model.versions]
        for reference in found:
            assert verify_version(database, reference) == {}, reference
        database.close()
        return found

    def leftovers(self) -> list[Path]:
        """What no version needs, after a collection."""
        self.collect()
        places = [*self.store.partial.iterdir(), *(self.store.root / "damaged").iterdir()]
        trees = (self.store.root / "trees").iterdir()
        return places + [tree for tree in trees if tree.name.startswith("building")]


def crash(home: Home, prepared: Callable[[], None], act: Callable[[], None], expect: list[str]) -> int:
    """How many kills there were."""
    prepared()
    kept = home.folder.with_name("kept")
    subprocess.run(["cp", "-a", home.folder, kept], check=True)  # it keeps hard links

    def prepare() -> None:
        shutil.rmtree(home.folder)
        subprocess.run(["cp", "-a", kept, home.folder], check=True)

    def is_ours(path: str) -> bool:
        return path.startswith(str(home.folder))

    low, high = 1, 1
    while killed_at(high, act, is_ours):
        low, high = high, high * 2
        prepare()
    while high - low > 1:  # `low` steps are reached, `high` are not
        middle = (low + high) // 2
        prepare()
        low, high = (middle, high) if killed_at(middle, act, is_ours) else (low, middle)
    num_kills = 0
    for step in steps(low):
        prepare()
        before = home.models()
        num_kills += killed_at(step, act, is_ours)
        after = home.models()
        assert set(before) <= set(after) <= set(expect), after
        if step % 2:
            home.collect()  # no lock is left
        act()
        assert home.models() == expect, f"killed at step {step} of {low}"
        assert home.leftovers() == []
    return num_kills


def crash_upgrade(url: str) -> int:
    """Of one registry: until it is through, each kill leaves it at the revision where it was."""

    def state() -> tuple[str | None, int]:
        with connecting(url) as connection:
            return revision_of(connection), connection.scalar(text("SELECT count(*) FROM instances"))

    before, num_kills, step = state(), 0, 1
    while killed_at(step, lambda: open_database(url).close(), lambda path: "registry.db" in path):
        found = state()
        assert found in (before, (HEAD, before[1])), f"killed at step {step}: {found}"
        num_kills += 1
        if found[0] == HEAD:
            break
        step += 4
    open_database(url).close()
    assert state() == (HEAD, before[1])
    return num_kills


def main() -> None:
    act, place, *more = sys.argv[1:]
    if act == "upgrade":
        open_database(f"sqlite:///{place}/other.db").close()  # Alembic is imported here, not by each child
        print(crash_upgrade(more[0]))
        return
    home = Home(Path(place) / "home", Path(place) / "tiny", Path(place) / "base")
    if act == "copy":
        done = crash(home, home.prepare, lambda: home.copy("new", home.source), ["base:1", "new:1"])
    elif act == "pull":
        done = crash(home, home.prepare, lambda: home.pull(more[0]), ["base:1", "new:1"])
    elif act == "bundle":
        bundle, key = Path(more[0]), Path(more[1]).read_text()
        done = crash(home, home.prepare, lambda: home.take_in(bundle, key), ["base:1", "new:1"])
    else:

        def prepare() -> None:
            """`other` shares all but one file with `base`, which is removed."""
            home.prepare()
            config = home.base / "generation_config.json"
            content = config.read_text()
            config.write_text('{"top_k": 7}')
            home.copy("other", home.base)
            config.write_text(content)
            home.remove_base()

        done = crash(home, prepare, home.collect, ["other:1"])
    print(done)


if __name__ == "__main__":
    main()
