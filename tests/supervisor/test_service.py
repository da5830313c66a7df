"""The unit of systemd: its text, what is refused before it is written, and where it goes."""

from __future__ import annotations

import pwd
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trivet.cli import main
from trivet.errors import ConfigError
from trivet_supervisor.service.installing import Units, check_service, install, uninstall
from trivet_supervisor.service.notify import tell_service_manager
from trivet_supervisor.service.unit import Service, unit_text

TRIVET = Path(sys.executable).with_name("trivet")
ME = pwd.getpwuid(0)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service("trivet", tmp_path / "home", TRIVET, 90.0, account=ME.pw_name)


@pytest.fixture
def units(tmp_path: Path) -> Units:
    return Units(tmp_path / "units", is_running=False)


def values(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def test_systemd_takes_every_line(service: Service, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here; it comes with systemd")
    for each in (
        replace(service, groups=("daemon",), memory_max="80%"),
        replace(service, account=None, home=tmp_path / 'an odd "50%" home $x'),
    ):
        file = tmp_path / "trivet.service"
        file.write_text(unit_text(each))
        done = subprocess.run(
            ["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60, check=False
        )
        told = [line for line in done.stderr.splitlines() if "trivet.service" in line or str(file) in line]
        assert (done.returncode, told) == (0, []), done.stderr


def test_engines_outlive_a_crash_of_serve_and_a_stop_may_take_its_time(service: Service) -> None:
    unit = values(unit_text(service))
    assert unit["ExecStart"] == f"{TRIVET} serve"
    assert unit["KillMode"] == "process"
    assert unit["OOMPolicy"] == "continue"
    assert unit["Restart"] == "on-failure"
    assert unit["TimeoutStopSec"] == "90"
    assert unit["Environment"] == f"TRIVET_HOME={service.home}"
    assert unit["User"] == ME.pw_name
    assert unit["WantedBy"] == "multi-user.target"


def test_a_service_of_a_user_has_nothing_that_only_the_system_may_set(service: Service) -> None:
    unit = values(unit_text(replace(service, account=None)))
    assert unit["WantedBy"] == "default.target"
    assert not {"User", "LimitMEMLOCK", "ProtectSystem"} & set(unit)


def test_odd_characters_of_paths_are_escaped(service: Service) -> None:
    unit = values(unit_text(replace(service, home=Path('/a b/50%/"x"'), command=Path("/o d/$x/trivet"))))
    assert unit["Environment"] == r'"TRIVET_HOME=/a b/50%%/\"x\""'
    assert unit["ExecStart"] == '"/o d/$$x/trivet" serve'


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a b"}, "name is 'a b'"),
        ({"memory_max": "much"}, "memory limit is 'much'"),
        ({"home": Path("/a\nUser=root")}, "line break"),
        ({"account": "no-such-account"}, "useradd --system .* no-such-account"),
    ],
)
def test_what_systemd_would_refuse_is_told_before(
    service: Service, units: Units, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        install(replace(service, **change), units)  # type: ignore[arg-type]  # of several types
    assert not units.folder.exists()


def test_a_program_that_the_account_cannot_reach_is_told_before(service: Service, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    tmp_path.chmod(0o755)
    closed.chmod(0o700)
    other = next((entry.pw_name for entry in pwd.getpwall() if entry.pw_name == "daemon"), None)
    if other is None:
        pytest.skip("there is no account daemon")
    # pytest's own folders above are closed, too: any of them may be the one that is named.
    with pytest.raises(ConfigError, match=r"account daemon may not enter /\S+, where .*/opt/trivet"):
        check_service(replace(service, account=other, command=closed / "bin" / "trivet"))
    check_service(replace(service, account=other, command=Path("/usr/bin/env")))


def test_an_account_without_a_home_is_told_before(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Triton and g++ keep there what they make."""
    homeless = pwd.struct_passwd(("trivet", "x", 900, 900, "", str(tmp_path / "none"), "/usr/sbin/nologin"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: homeless)
    with pytest.raises(
        ConfigError, match=r"no home folder .*none is none.*; .*usermod --home /var/lib/trivet"
    ):
        check_service(replace(service, account="trivet"))


def test_it_is_written_again_and_removed_and_the_home_stays(service: Service, units: Units) -> None:
    service = replace(service, account=None)
    install(service, units)
    install(replace(service, stop_timeout_s=120), units)
    assert "TimeoutStopSec=120" in units.file("trivet").read_text()
    assert units.file("trivet").stat().st_mode & 0o777 == 0o644
    assert service.home.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in units.folder.iterdir()] == ["trivet.service"]
    uninstall("trivet", units)
    assert service.home.is_dir()
    with pytest.raises(ConfigError, match="there is no service trivet"):
        uninstall("trivet", units)


def test_systemd_is_told_and_what_it_says_is_passed_on(
    service: Service, units: Units, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(
        f'#!/bin/sh\necho "$@" >> {told}\n[ "$1" != disable ] || {{ echo "it is masked" >&2; exit 1; }}\n'
    )
    systemctl.chmod(0o755)
    units = replace(units, systemctl=(str(systemctl),), is_running=True)
    install(replace(service, account=None), units)
    assert told.read_text().splitlines() == ["daemon-reload", "enable trivet"]
    with pytest.raises(ConfigError, match="it is masked"):
        uninstall("trivet", units)
    assert units.file("trivet").exists()


def test_the_command_prints_the_unit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "trivet.toml").write_text("drain_timeout_s = 300\n")
    assert main(["service", "show", "--user", "--home", str(tmp_path)]) == 0
    unit = values(capsys.readouterr().out)
    assert unit["Environment"] == f"TRIVET_HOME={tmp_path}"
    assert int(unit["TimeoutStopSec"]) > 300, "longer than the drain"


@pytest.mark.parametrize("mark", ["", "@"])
def test_the_service_manager_is_told(tmp_path: Path, mark: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{tmp_path}" if mark else f"{tmp_path}/notify")
        tell_service_manager(f"@{tmp_path}" if mark else f"{tmp_path}/notify", "READY=1")
        manager.settimeout(10)
        assert manager.recv(100) == b"READY=1"


def test_a_service_manager_that_is_not_there_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tell_service_manager(None, "READY=1")
    tell_service_manager(f"{tmp_path}/nobody", "READY=1")
    assert "cannot be told READY=1" in caplog.text
