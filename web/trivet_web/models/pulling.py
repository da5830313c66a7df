"""Pulls models in threads of this process; the registry has how far each is, for whoever asks any process.

The code of sources and bundles is imported by the first pull: most web processes never make one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from trivet.config import Settings
from trivet.errors import Conflict, TrivetError, Unavailable
from trivet_registry import audit_log
from trivet_registry.audit_log import Act, append
from trivet_registry.database import Database
from trivet_registry.model_store.store import ModelStore
from trivet_registry.pulls_store import (
    CANCELLED,
    DONE,
    FAILED,
    create_pull,
    end_pull,
    held,
    new_pull_id,
    report,
)

if TYPE_CHECKING:
    from trivet.client.results import Plan
    from trivet.models.description import ModelFiles
    from trivet_registry.bundles.importing import Import
    from trivet_registry.sources.pull import Wanted

logger = logging.getLogger(__name__)
REPORT_INTERVAL_S = 0.5


def keys_folder(settings: Settings) -> Path:
    """The site's key of bundles, and those that it trusts."""
    return settings.paths.keys


class _Cancelled(Exception):
    """Somebody wants it to end, or the process stops."""


def _no_act(session: Session, pull_id: str) -> None:
    """For callers without an audit log."""


class Puller:
    """Brings models of sources and bundles.

    Args:
        opens: opens model files and refuses what cannot be served.
        plan: what a launch of a path with these engine settings would take.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        opens: Callable[[Path], ModelFiles],
        plan: Callable[[Path, Mapping[str, str]], Plan],
    ) -> None:
        self.store = ModelStore(settings.paths.models)
        self.folder = settings.paths.run
        self._settings = settings
        self._database = database
        self._opens = opens
        self._plan = plan
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, wanted: Wanted | Import, begun: Callable[[Session, str], Act | None] = _no_act) -> str:
        """Returns the pull's id; its row and its lock are there.

        Args:
            begun: records the act in the transaction that makes the row; the end is recorded like what it
                returns.

        Raises: Unavailable where no thread can start; the row says so.
        """
        pull_id = new_pull_id()
        with ExitStack() as stack:
            stack.enter_context(held(self.folder, pull_id))
            with self._database.session() as session:
                create_pull(session, pull_id, wanted.source, wanted.name)
                act = begun(session, pull_id)
            self._begin(pull_id, wanted, act, stack.pop_all())
        return pull_id

    def _begin(self, pull_id: str, wanted: Wanted | Import, act: Act | None, holds: ExitStack) -> None:
        thread = threading.Thread(
            target=self._run, args=(pull_id, wanted, act, holds), name="pull", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # a limit of the account, or of the container
            told = f"no thread can pull it: {error}; try again"
            with holds:
                self._end(pull_id, act, FAILED, told, None)
            raise Unavailable(told, retry_after_s=10) from error
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]

    def close(self) -> None:
        """End all; what has come stays, and another pull goes on with it."""
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _run(self, pull_id: str, wanted: Wanted | Import, act: Act | None, holds: ExitStack) -> None:
        with holds:
            state, message, version = self._bring(pull_id, wanted)
            try:
                self._end(pull_id, act, state, message, version)
            except (
                Exception
            ) as error:  # a border: without its lock it counts as lost, and can be pulled again
                logger.error("pull=%s state=%s is not written down: %s", pull_id, state, error)

    def _end(self, pull_id: str, act: Act | None, state: str, message: str, version: str | None) -> None:
        with self._database.session() as session:
            end_pull(session, pull_id, state, message, version)
            if act is not None:
                after = {"pull": pull_id, "state": state, "version": version, "message": message[:500]}
                outcome = audit_log.FAILED if state == FAILED else act.outcome
                append(session, replace(act, action="model.pull.end", after=after, outcome=outcome))

    def _bring(self, pull_id: str, wanted: Wanted | Import) -> tuple[str, str, str | None]:
        reporter = _Reporter(self._database, pull_id, self._ends)
        try:
            version = self._fetch(wanted, reporter)
        except _Cancelled:
            return CANCELLED, "what has come stays; pull it again to go on", None
        except TrivetError as error:
            return FAILED, str(error), None
        except Exception as error:  # a stranger's server or file: it ends this pull alone
            logger.exception("pull=%s", pull_id)
            return FAILED, f"{type(error).__name__}: {error}", None
        with suppress(SQLAlchemyError, Conflict):  # the version is there, also where that is not told now
            reporter.tell()  # a cancel that came since is too late
        return DONE, "", version

    def _fetch(self, wanted: Wanted | Import, reporter: _Reporter) -> str:
        from trivet_registry.bundles.importing import Import, import_bundle
        from trivet_registry.bundles.smoke_test import answers_one_token
        from trivet_registry.sources.pull import Rules, pull

        place = self.store, self._database, self._opens
        if isinstance(wanted, Import):

            def test(path: Path) -> None:
                if wanted.is_tested:
                    check = partial(reporter.progress, 0)
                    answers_one_token(path, self._settings, self._plan, check)

            return import_bundle(wanted, *place, test, reporter.progress, reporter.expect)
        return pull(wanted, Rules.of(self._settings), *place, reporter.progress, reporter.expect)


class _Reporter:
    """Writes to the registry twice a second how far a pull is, and hears there whether it shall go on."""

    def __init__(self, database: Database, pull_id: str, ends: threading.Event) -> None:
        self._database = database
        self._pull_id = pull_id
        self._ends = ends
        self._done = self._total = 0
        self._next_s = 0.0

    def expect(self, size_bytes: int) -> None:
        self._total = size_bytes
        self.flush()

    def progress(self, count: int) -> None:
        """Raises: _Cancelled."""
        self._done += count
        if self._ends.is_set():
            raise _Cancelled
        if time.monotonic() >= self._next_s:
            self.flush()

    def flush(self) -> None:
        """Raises: _Cancelled."""
        if not self.tell():
            raise _Cancelled

    def tell(self) -> bool:
        """Whether the pull shall go on."""
        self._next_s = time.monotonic() + REPORT_INTERVAL_S
        with self._database.session() as session:
            return report(session, self._pull_id, self._done, self._total)
