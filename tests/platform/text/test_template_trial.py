from __future__ import annotations

import pytest

from trivet.errors import ModelFilesError
from trivet.text import template_trial
from trivet.text.template_trial import try_template


def test_a_template_that_renders_or_refuses_in_its_own_words_passes() -> None:
    try_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    try_template("{{ raise_exception('no system message, please') }}")


@pytest.mark.parametrize("template", ["{% for m in messages %}", "{{ 1 + }}"])
def test_what_is_no_template_is_said(template: str) -> None:
    with pytest.raises(ModelFilesError, match="cannot be used"):
        try_template(template)


def test_a_template_that_needs_too_much_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the limits of the process: the sandbox's own counting is switched off in it."""
    hungry = (
        "import types; from trivet.text import template_trial as t\n"
        "t.ChatTemplate = lambda *a: types.SimpleNamespace(render=lambda chat: 'x' * (1 << 40)); t.main()"
    )
    monkeypatch.setattr(template_trial.sys, "executable", _program(hungry))
    with pytest.raises(ModelFilesError, match="needs more than"):
        try_template("{{ messages }}")


def test_a_template_that_never_ends_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = (
        "import types; from trivet.text import template_trial as t; t.CPU_S = 0.2\n"
        "def spin(chat):\n    while True: pass\n"
        "t.ChatTemplate = lambda *a: types.SimpleNamespace(render=spin); t.main()"
    )
    monkeypatch.setattr(template_trial.sys, "executable", _program(endless))
    with pytest.raises(ModelFilesError, match="needs more than"):
        try_template("{{ messages }}")


@pytest.fixture(autouse=True)
def _programs(tmp_path, monkeypatch):
    monkeypatch.setenv("TEMPLATE_TRIAL_FOLDER", str(tmp_path))


def _program(code: str) -> str:
    """An interpreter that runs this in place of the trial's module."""
    import os
    import sys
    from pathlib import Path

    folder = Path(os.environ["TEMPLATE_TRIAL_FOLDER"])
    (folder / "code.py").write_text(code)
    wrapper = folder / "python"
    wrapper.write_text(f"#!/bin/sh\nexec {sys.executable} {folder / 'code.py'}\n")
    wrapper.chmod(0o755)
    return str(wrapper)
