"""The API without a server: a loaded model, its engine loop in a thread, and the application called directly.

A request goes the way that it goes over HTTP (application, relay, engine loop), so fields, limits, errors and
answers are the same ones. Sockets and registry lie in a folder of their own, which is gone before the first
request: whatever ends the process then leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
from flask.testing import FlaskClient

from trivet.config import Settings
from trivet.engine.process import SWITCH_INTERVAL_S, EngineProcess
from trivet.errors import DeadlinePassed, Overloaded, Unavailable
from trivet.llm import LLM
from trivet.messages import LaunchOrder
from trivet_web.app import create_app
from trivet_web.batch.forms import OK, Answered, Request, read_answer
from trivet_web.engines.routing import READY, Deployed, InstanceRow
from trivet_web.models.served_models import ServedModel, served_model
from trivet_web.web_process import WebProcess

logger = logging.getLogger(__name__)

INSTANCE = "offline"
SPARE_THREADS = 64  # of the web process's own, beside those that inference may take
START_S = 30.0
RETRY_S = 0.05
PREFIX = "trivet-generate-"
MAX_FOLDER_BYTES = 50
LEFT_BEHIND_S = 600.0  # a start takes seconds


class EngineEnded(Unavailable):
    """The engine has ended; what was under way has no answer."""


class OfflineSite:
    """Thread-safe; `close` ends its threads, and with the engine's loop the model."""

    def __init__(
        self,
        llm: LLM,
        names: Sequence[str],
        num_threads: int,
        engine_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Args: names under which requests may call the model. Raises: Unavailable."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._turn, self._counting = threading.Lock(), threading.Lock()
        self._num_begun = self._num_ended = 0  # requests
        _remove_leftovers()
        home = tempfile.mkdtemp(prefix=PREFIX, dir=_short_folder())
        try:
            settings = Settings(home=home, web_threads=2 * num_threads + SPARE_THREADS)
            settings.paths.create()
            self._engine = EngineProcess(_order(settings, llm, engine_settings), llm.engine)
            self._loop = threading.Thread(target=self._engine.run, name="engine", daemon=True)
            self._loop.start()
            self._web = WebProcess(settings, lambda: _table(llm, names), lambda path: _text_side(llm))
            self._app = create_app(settings, self._web)
            try:
                self._await_engine(names[0])
            except BaseException:
                self.close()
                raise
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def answer(self, request: Request) -> Answered:
        """Tried again while the engine's queue is full, for the batch is the queue. Raises: EngineEnded."""
        answered, _ = self._post(request)
        if answered.status != Overloaded.status:
            return answered
        with self._turn:  # one at a time
            while True:
                answered, is_alone = self._post(request)
                if answered.status != Overloaded.status or is_alone:  # alone, it never fits
                    return answered
                time.sleep(RETRY_S)

    def _post(self, request: Request) -> tuple[Answered, bool]:
        """The answer, and whether no other request was under way from its begin to its end."""
        with self._counting:
            number, is_alone = self._num_begun, self._num_begun == self._num_ended
            self._num_begun += 1
        try:
            answered = self._call(request)
        finally:
            with self._counting:
                self._num_ended += 1
                is_alone = is_alone and self._num_begun == number + 1
        return answered, is_alone

    def _call(self, request: Request) -> Answered:
        """Raises: EngineEnded."""
        response = self.client().post(request.url, data=request.body, content_type="application/json")
        answered = Answered(response.status_code, response.headers["X-Request-ID"], response.data)
        if answered.status == Unavailable.status:
            error = read_answer(answered).error
            if error is not None and error.code != DeadlinePassed.code:  # which alone is the request's own
                raise EngineEnded(error.message)
        return answered

    def client(self) -> FlaskClient:
        """Calls the application directly."""
        return self._app.test_client(use_cookies=False)

    def end_all(self) -> None:
        """Requests under way end with an error."""
        self._web.relay.end_all(Unavailable("the batch was stopped"))

    def close(self) -> None:
        """Idempotent."""
        self._web.close()
        if self._loop.is_alive():
            self._engine.request_stop()
            self._loop.join()

    def _await_engine(self, name: str) -> None:
        """Until a token has come all the way, so that every socket is connected. Raises: Unavailable."""
        deadline_s = time.monotonic() + START_S
        self._web.router.deployed(name)  # from now on the relay follows its beats
        while True:
            view = self._web.relay.view(INSTANCE)
            if view is not None and view.beat is not None and view.can_serve:
                break
            if not self._loop.is_alive() or time.monotonic() > deadline_s:
                reason = view.why_not if view is not None else "is unknown"
                raise Unavailable(f"the engine's loop does not run: it {reason}")
            time.sleep(0.01)
        first = {"model": name, "prompt": [0], "max_tokens": 1}
        answered = self.answer(Request("/v1/completions", msgspec.json.encode(first)))
        if answered.status != OK:
            raise Unavailable(f"the first token did not come: {answered.body.decode()}")


def _short_folder() -> str:
    """For temporary files; a socket's path has at most 107 bytes, of which 57 stand behind it."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= MAX_FOLDER_BYTES else "/tmp"


def _remove_leftovers() -> None:
    """Folders of runs that were killed while they started."""
    for folder in Path(_short_folder()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found = folder.stat()
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > LEFT_BEHIND_S:
                shutil.rmtree(folder, ignore_errors=True)


def _order(settings: Settings, llm: LLM, engine_settings: Mapping[str, str]) -> LaunchOrder:
    return LaunchOrder(
        instance_id=INSTANCE,
        lease=INSTANCE,
        model_path=str(llm.engine.files.path),
        served_model_name=llm.engine.files.name,
        backend=llm.engine.placement.backend.name,
        device_uids=[],
        settings=dict(engine_settings),
        run_dir=str(settings.paths.run),
    )


def _table(llm: LLM, names: Sequence[str]) -> dict[str, Deployed]:
    row = InstanceRow(INSTANCE, READY, max_model_len=llm.engine.core.max_model_len)
    return {name: Deployed(name, str(llm.engine.files.path), int(time.time()), (row,)) for name in names}


def _text_side(llm: LLM) -> ServedModel:
    return served_model(llm.engine.files, llm.engine.tokenizer)
