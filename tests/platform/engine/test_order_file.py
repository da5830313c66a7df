"""An engine of another version than its supervisor says so, whatever it can read."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from trivet import __version__
from trivet.engine.order_file import check_version, read_order
from trivet.engine.process import EXIT_CANNOT_START, EngineProcess, main
from trivet.errors import ConfigError
from trivet.messages import LaunchOrder, Phase


def order(run_dir: Path, version: str) -> LaunchOrder:
    return LaunchOrder(
        instance_id="t1",
        lease="lease",
        model_path="none",
        served_model_name="none",
        backend="null",
        device_uids=[],
        settings={},
        run_dir=str(run_dir),
        version=version,
    )


def test_an_order_of_another_version_that_cannot_be_read_names_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "order.json"
    file.write_text(json.dumps({"version": "99.1", "models": ["of a later time"]}))
    with pytest.raises(
        ConfigError, match=rf"Trivet {__version__} .*supervisor is Trivet 99\.1; install 99\.1"
    ):
        read_order(file)
    monkeypatch.setattr("sys.setswitchinterval", lambda seconds: None)
    assert main([str(file)]) == EXIT_CANNOT_START
    assert "99.1" in caplog.text
    file.write_text(json.dumps({"version": __version__}))
    with pytest.raises(msgspec.ValidationError):
        read_order(file)


def test_an_order_of_another_version_that_can_be_read_ends_with_a_last_beat(tmp_path: Path) -> None:
    process = EngineProcess(order(tmp_path, "99.1"))
    assert process.run() == EXIT_CANNOT_START
    assert process._heart.phase is Phase.FAILED
    assert "99.1" in process._heart._beat.reason


@pytest.mark.parametrize("version", ["", __version__])
def test_the_same_version_and_an_order_by_hand_are_taken(version: str) -> None:
    check_version(version)
