"""Engine processes that are started to be timed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from trivet.bench.engine_start import start_engine
from trivet.bench.startup import Order
from trivet.demo_model import find_demo_model
from trivet.errors import BackendError


def test_a_real_engine_becomes_ready_and_ends_again() -> None:
    order = Order(str(find_demo_model()), "null", None, {"max_model_len": "512"})
    figures = start_engine(order, os.environ)
    assert figures["ready_s"] > 0
    assert figures["memory_kv_bytes"] > 0
    assert figures["peak_rss_bytes"] >= figures["rss_bytes"] > 1 << 20
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # another test's, which has ended meanwhile
            assert "trivet.engine.process" not in child.cmdline()


def test_a_refused_start_gives_the_engines_reason(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"not a model")
    with pytest.raises(BackendError, match=r"m\.gguf"):
        start_engine(Order(str(tmp_path / "m.gguf"), "null", None, {}), os.environ)


def test_a_process_that_dies_gives_its_last_words() -> None:
    with pytest.raises(BackendError, match="exit code 1: "):
        start_engine(
            Order("/m.gguf", "null", None, {}), {**os.environ, "PYTHONPATH": "/", "PYTHONHOME": "/no"}
        )
