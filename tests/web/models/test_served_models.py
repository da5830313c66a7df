"""Which models are loaded before anybody asks for them, and what is made of their files."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from trivet.demo_model import find_demo_model
from trivet.errors import Unavailable
from trivet.models.model_files import open_model
from trivet_web.engines.routing import FileSet
from trivet_web.models import served_models
from trivet_web.models.served_models import ServedModel, ServedModels

if TYPE_CHECKING:
    from conftest import Eventually


def test_model_that_is_deployed_again_is_loaded_again_before_its_first_request(
    served_model: ServedModel, eventually: Eventually
) -> None:
    loaded: list[str] = []

    def load(path: str) -> ServedModel:
        loaded.append(path)
        return served_model

    models = ServedModels(load)
    first, second = FileSet("a"), FileSet("b")
    models.follow([first, second])
    eventually(lambda: sorted(loaded) == ["a", "b"], what="both are loaded")
    models.follow([second])
    models.follow([first, second])
    eventually(lambda: sorted(loaded) == ["a", "a", "b"], what="the first is loaded again")
    models.follow([first, second])
    models.get(first)
    assert sorted(loaded) == ["a", "a", "b"]


def test_other_files_at_the_same_path_are_another_model(served_model: ServedModel) -> None:
    """A folder is changed in place, and its new version launched before anybody saw the old one go."""
    loaded: list[ServedModel] = []

    def load(path: str) -> ServedModel:
        loaded.append(replace(served_model, context_length=len(loaded)))
        return loaded[-1]

    models = ServedModels(load)
    found = [models.get(FileSet("a", fingerprint)) for fingerprint in ("old", "new", "old")]
    assert [one.context_length for one in found] == [0, 1, 0]


def test_models_are_loaded_by_their_first_request_where_no_thread_can_start(
    served_model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    models = ServedModels(lambda path: served_model)
    models.follow([FileSet("a")])
    assert models.get(FileSet("a")) is served_model


def test_who_waits_for_a_tokenizer_that_is_never_read_is_told(served_model: ServedModel) -> None:
    begins, goes_on = threading.Event(), threading.Event()

    def load(path: str) -> ServedModel:
        begins.set()
        assert goes_on.wait(60)
        return served_model

    models = ServedModels(load, load_timeout_s=0.05)
    models.follow([FileSet("a")])
    assert begins.wait(60)
    with pytest.raises(Unavailable, match=r"the tokenizer of a is being read for longer than 0\.05 s"):
        models.get(FileSet("a"))
    goes_on.set()


def test_a_model_whose_files_fail_in_a_way_nobody_foresaw_is_told_and_ends_no_other(
    served_model: ServedModel, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    def load(path: str) -> ServedModel:
        if path == "odd":
            raise ValueError("a stranger's file")
        return served_model

    models = ServedModels(load)
    models.follow([FileSet("odd"), FileSet("good")])
    eventually(lambda: "path=odd cannot be prepared" in caplog.text)
    assert models.get(FileSet("good")) is served_model


def test_requests_with_tools_get_the_template_that_is_made_for_them(served_model: ServedModel) -> None:
    named = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools[0].name }}"}
    files = replace(open_model(find_demo_model()), chat_templates=named)
    model = served_models.served_model(files, served_model.tokenizer)
    template = model.require_template("m")
    assert model.template_takes_tools
    messages = [{"role": "user", "content": "hi"}]
    assert [template.render(messages), template.render(messages, [{"name": "look"}])] == ["hi", "look"]
