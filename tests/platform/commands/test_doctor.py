"""`trivet doctor`."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from ports import free_port

from trivet import __version__
from trivet.commands import host_checks, site_checks
from trivet.commands.host_checks import Finding
from trivet.config import Paths, Settings, load_settings
from trivet.contract import DeviceInfo
from trivet.errors import PluginError
from trivet.optional_contract import Advice

GIB = 1 << 30


@pytest.fixture
def home(monkeypatch) -> Iterator[Paths]:
    monkeypatch.setenv("TRIVET_PORT", str(free_port()))
    with tempfile.TemporaryDirectory(prefix="tv") as folder:  # short: socket paths hold 107 bytes
        monkeypatch.setenv("TRIVET_HOME", f"{folder}/home")
        yield Paths(Path(folder) / "home")


def _one(findings: Iterable[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def test_a_good_host_passes_and_says_what_it_found(home, trivet) -> None:
    done = trivet("doctor")
    assert done.code == 0, done.out
    assert all(line.split()[0] in ("ok", "warn") for line in done.out.splitlines())
    checks = {finding["check"] for finding in json.loads(trivet("doctor", "--json").out)}
    assert checks >= {
        "python",
        "torch",
        "plugins",
        "backend cpu",
        "compiler",
        "cores",
        "settings",
        "home",
        "sockets",
        "disk",
        "registry",
        "port",
        "demo model",
    }


def test_it_changes_nothing(home, trivet) -> None:
    trivet("doctor")
    assert not home.home.exists()


def test_a_failed_check_is_the_exit_code_and_has_advice(home, trivet) -> None:
    home.create()
    home.run.chmod(0o755)
    done = trivet("doctor")
    assert done.code == 1
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert f"fail run directory {home.run} has mode 755; chmod 700 {home.run}" in lines


def test_variables_in_effect_are_named_without_their_values(home, monkeypatch) -> None:
    monkeypatch.setenv("TRIVET_DATABASE_URL", "sqlite:////secret.db")
    text = _one(list(site_checks.check_site()), "settings").text
    assert text.startswith(f"defaults (no {home.config_file}), and TRIVET_HOME, TRIVET_DATABASE_URL, ")
    assert ("TRIVET_PORT" in text, "TRIVET_LAUNCHER" in text) == (True, False)
    assert "secret" not in text


def test_a_wrong_settings_file_is_a_finding(home, trivet) -> None:
    home.create()
    home.config_file.write_text("prot = 1")
    done = trivet("doctor")
    assert done.code == 1
    assert "did you mean 'port'?" in done.out
    findings = list(site_checks.check_site())
    assert _one(findings, "home").text == str(home.home)  # the environment still counts
    assert _one(findings, "port").text == f"127.0.0.1:{os.environ['TRIVET_PORT']} is free"
    assert "use the environment and the defaults" in _one(findings, "settings").advice


def test_a_wrong_variable_leaves_the_home(home, monkeypatch) -> None:
    home.create()
    monkeypatch.setenv("TRIVET_WEB_THREADS", "many")
    findings = list(site_checks.check_site())
    assert _one(findings, "settings").status == "fail"
    assert _one(findings, "home").text == str(home.home)


@pytest.mark.parametrize(
    ("versions", "statuses"),
    [
        ({}, ["fail"]),
        ({"torch": "2.9.1"}, ["fail"]),
        ({"torch": "2.13.0+cpu"}, ["ok"]),
        ({"torch": "2.15.0"}, ["fail"]),
        ({"torch": "2.10.0", "torch-npu": "2.10.0.post2"}, ["ok", "ok"]),
        ({"torch": "2.13.0", "torch-npu": "2.10.0"}, ["ok", "fail"]),
        ({"torch": "2.13.1+cpu", "torch-npu": "2.13.0"}, ["ok", "fail"]),
    ],
)
def test_torch_is_in_range_and_pairs_with_torch_npu(versions, statuses) -> None:
    assert [finding.status for finding in host_checks.check_torch(versions, "torch")] == statuses


def _set_python(home: Paths, python: Path) -> None:
    home.create()
    home.config_file.write_text(f'[backend.ascend]\npython = "{python}"\n')


def test_the_interpreter_of_a_backend_is_asked_what_it_has(home, tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    link.chmod(0o755)
    _set_python(home, link)
    findings = list(host_checks.check_interpreters())
    assert _one(findings, "python of ascend") == Finding(
        "python of ascend", "ok", f"{link}, trivet {__version__}"
    )
    assert _one(findings, "torch of ascend").status == "ok"


def test_an_interpreter_with_another_trivet_fails(home, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("""#!/bin/sh\necho '{"trivet": "0.0.9", "torch": "2.13.0"}'\n""")
    other.chmod(0o755)
    _set_python(home, other)
    finding = _one(host_checks.check_interpreters(), "python of ascend")
    assert (finding.status, finding.text) == ("fail", f"{other} has trivet 0.0.9")


def test_an_interpreter_that_does_not_start_fails(home, tmp_path: Path) -> None:
    _set_python(home, tmp_path / "nowhere")
    assert _one(host_checks.check_interpreters(), "python of ascend").status == "fail"


def test_of_an_interpreter_that_fails_its_own_last_words_are_told(home, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(
        "#!/bin/sh\nprintf 'first\\n\\264\\355 libpython3.12.so.1.0: no such file\\n' >&2\nexit 127\n"
    )
    other.chmod(0o755)
    _set_python(home, other)
    finding = _one(host_checks.check_interpreters(), "python of ascend")
    assert finding.text == f"{other}: exit code 127: \ufffd\ufffd libpython3.12.so.1.0: no such file"
    assert finding.advice == "correct python of [backend.ascend] in trivet.toml"


def test_a_broken_plugin_is_a_finding(monkeypatch) -> None:
    class Host:
        failures = {"x": PluginError("plugin 'x' cannot be imported")}  # noqa: RUF012
        backends = {}  # noqa: RUF012

    monkeypatch.setattr(host_checks, "load_plugins", Host)
    finding = next(iter(host_checks.check_backends()))
    assert (finding.check, finding.status) == ("plugins", "fail")
    assert finding.text == "plugin 'x' cannot be imported"


def _device(free_bytes: int = 64 * GIB, unusable_because: str | None = None) -> DeviceInfo:
    return DeviceInfo("cpu", 0, "host", "a CPU", "x", 64 * GIB, free_bytes, frozenset(), (), unusable_because)


@pytest.mark.parametrize(
    ("devices", "statuses"),
    [
        ([_device()], {"plugins": "ok", "backend cpu": "ok"}),
        ([_device(free_bytes=GIB)], {"plugins": "ok", "backend cpu": "warn"}),
        (
            [_device(unusable_because="no driver")],
            {"plugins": "ok", "backend cpu": "warn", "devices": "fail"},
        ),
        ([], {"plugins": "ok", "backend cpu": "ok", "devices": "fail"}),
    ],
)
def test_devices_are_judged(monkeypatch, devices, statuses) -> None:
    class Backend:
        def probe(self, timeout_s: float) -> list[DeviceInfo]:
            return devices

    class Host:
        failures = {}  # noqa: RUF012
        backends = {"cpu": Backend()}  # noqa: RUF012

    monkeypatch.setattr(host_checks, "load_plugins", Host)
    assert {finding.check: finding.status for finding in host_checks.check_backends()} == statuses


def test_advice_of_a_backend_is_a_line_with_its_cure(monkeypatch) -> None:
    class Backend:
        def probe(self, timeout_s: float) -> list[DeviceInfo]:
            return [_device()]

        def advice(self, installed: Mapping[str, str]) -> list[Advice]:
            return [Advice("fail", f"CANN 8.3 is too old for {installed['torch']}", "install CANN 9.1.0")]

    class Host:
        failures = {}  # noqa: RUF012
        backends = {"cpu": Backend()}  # noqa: RUF012

    monkeypatch.setattr(host_checks, "load_plugins", Host)
    finding = next(each for each in host_checks.check_backends() if "CANN" in each.text)
    assert (finding.check, finding.status) == ("backend cpu", "fail")
    assert finding.advice == "install CANN 9.1.0"


def test_advice_is_about_the_packages_that_the_backends_engines_find(
    monkeypatch, home: Paths, tmp_path: Path
) -> None:
    """torch-npu is never in the main environment, so doctor's own packages say nothing of it."""

    class Backend:
        def probe(self, timeout_s: float) -> list[DeviceInfo]:
            return [_device()]

        def advice(self, installed: Mapping[str, str]) -> list[Advice]:
            return [Advice("ok", f"torch-npu is {installed.get('torch-npu')}")]

    class Host:
        failures = {}  # noqa: RUF012
        backends = {"npu": Backend()}  # noqa: RUF012

    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"torch-npu": "2.13.0"}\'\n')
    python.chmod(0o755)
    home.home.mkdir(parents=True)
    (home.home / "trivet.toml").write_text(f'[backend.npu]\npython = "{python}"\n')
    monkeypatch.setattr(host_checks, "load_plugins", Host)
    assert "torch-npu is 2.13.0" in [finding.text for finding in host_checks.check_backends()]
    python.unlink()
    assert "torch-npu is None" in [finding.text for finding in host_checks.check_backends()]


def test_a_backend_that_misbehaves_is_a_finding_and_the_others_are_shown(monkeypatch, trivet) -> None:
    class Faulty:
        name = "faulty"

        def probe(self, timeout_s: float) -> list[DeviceInfo]:
            raise OSError("no driver")

    class Sound:
        name = "cpu"

        def probe(self, timeout_s: float) -> list[DeviceInfo]:
            return [_device()]

    class Host:
        failures = {}  # noqa: RUF012
        backends = {"cpu": Sound(), "faulty": Faulty()}  # noqa: RUF012

    monkeypatch.setattr(host_checks, "load_plugins", Host)
    monkeypatch.setattr("trivet.commands.devices.load_plugins", Host)
    findings = list(host_checks.check_backends())
    assert _one(findings, "backend cpu").status == "ok"
    finding = _one(findings, "backend faulty")
    assert finding.status == "warn"
    assert "backend faulty is faulty: probe raised OSError: no driver" in finding.text
    done = trivet("devices")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["BACKEND", "cpu", "faulty"]


def test_a_cgroup_quota_below_the_affinity_is_told(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    cores = len(os.sched_getaffinity(0))
    file.write_text("50000 100000\n")
    assert host_checks.check_cores(file).text == f"0.5 by the cgroup's quota, of {cores} by affinity"
    file.write_text("max 100000\n")
    assert "no quota" in host_checks.check_cores(file).text


def test_an_open_token_fails(home) -> None:
    home.create()
    home.token_file.write_text("t")
    home.token_file.chmod(0o644)
    finding = _one(site_checks.check_home(home), "token")
    assert (finding.status, finding.advice) == ("fail", f"chmod 600 {home.token_file}")
    home.token_file.chmod(0o600)
    assert _one(site_checks.check_home(home), "token").status == "ok"


def test_a_home_too_long_for_sockets_fails(tmp_path: Path) -> None:
    deep = Paths(tmp_path / ("x" * 100))
    finding = _one(site_checks.check_home(deep), "sockets")
    assert finding.status == "fail"
    assert "TRIVET_HOME" in finding.text


def test_a_home_that_is_no_folder_fails(home) -> None:
    home.home.write_text("a file")
    assert _one(site_checks.check_home(home), "home").status == "fail"


def test_a_sound_registry_passes_and_a_damaged_one_fails(home) -> None:
    home.create()
    settings = Settings(home=str(home.home))
    file = home.home / "registry.db"
    connection = sqlite3.connect(file)
    connection.execute("create table t (a)")
    connection.commit()
    connection.close()
    file.chmod(0o600)
    assert site_checks.check_registry(settings).status == "ok"
    file.chmod(0o640)
    assert site_checks.check_registry(settings).status == "warn"
    file.write_bytes(b"SQLite format 3\0" + os.urandom(8192))
    assert site_checks.check_registry(settings).status == "fail"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_another_database_is_named_without_its_password() -> None:
    settings = Settings(database_url="postgresql://me:secret@db.example/trivet")
    finding = site_checks.check_registry(settings)
    assert finding.text.startswith("postgresql at db.example")
    assert "secret" not in repr(finding)


def test_a_port_that_another_program_has_fails(home, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("TRIVET_PORT", str(port))
        monkeypatch.setattr("trivet.commands.site_checks.ANSWER_TIMEOUT_S", 0.2)
        finding = site_checks.check_port(Settings(port=port))
    assert finding.status == "fail"
    assert "Address already in use" in finding.text


def test_a_port_where_this_homes_server_answers_is_fine(site, tmp_path: Path) -> None:
    (tmp_path / "home/run/url").write_text(site.url)
    finding = site_checks.check_port(load_settings())
    assert (finding.status, finding.text.partition(": ")[2]) == ("ok", "the server of this home answers")


@pytest.mark.parametrize("left", ["url and a stale token", "token", "nothing"])
def test_a_port_that_another_homes_server_has_is_a_warning(site, tmp_path: Path, left: str) -> None:
    run = tmp_path / "home/run"
    if left != "token":
        (run / "token").unlink()
    if left.startswith("url"):
        (run / "url").write_text(site.url)
        (run / "token").write_text("of another time")
    finding = site_checks.check_port(load_settings())
    assert finding.status == "warn"
    assert "taken by another server" in finding.text
    assert "--port" in finding.advice


@pytest.mark.parametrize(("free", "status"), [(GIB // 4, "fail"), (2 * GIB, "warn"), (50 * GIB, "ok")])
def test_disk_space_is_judged(monkeypatch, tmp_path: Path, free, status) -> None:
    monkeypatch.setattr(site_checks.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert site_checks.check_disk(tmp_path / "not/yet").status == status
