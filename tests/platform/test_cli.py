"""The command line as a whole: exit codes, messages, plugins, start-up."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pytest

import trivet
from trivet import cli
from trivet.commands import core_commands
from trivet.errors import ConfigError, Unavailable
from trivet.plugins import Command


def _command(name: str, run) -> Command:
    return Command(name, "is a test", lambda parser: None, run)


def _raise(error: BaseException):
    def run(given: argparse.Namespace) -> int:
        raise error

    return run


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch):
    """Commands that a plugin offers."""

    def set_commands(*commands: Command) -> None:
        monkeypatch.setattr(cli, "_all_commands", lambda: ([*core_commands(), *commands], []))

    return set_commands


def _shell(command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=environment, timeout=60
    )


def test_version() -> None:
    done = _shell("trivet --version")
    assert (done.returncode, done.stdout) == (0, f"trivet {trivet.__version__}\n")


def test_help_names_every_command() -> None:
    done = _shell("trivet --help")
    assert done.returncode == 0
    for command in core_commands():
        assert f"\n    {command.name} " in done.stdout


@pytest.mark.parametrize("name", [command.name for command in core_commands()])
def test_every_command_explains_itself(name: str, capsys) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: trivet {name}")


def test_an_action_explains_itself(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["models", "import", "--help"])
    assert "\nTake a signed bundle in.\n" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom trivet import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'httpx2', 'numpy', 'sqlalchemy', 'flask', 'zmq', 'tokenizers'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_shows_the_help_and_is_a_usage_error(capsys) -> None:
    assert cli.main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_an_unknown_command_is_one_sentence_with_the_nearest_name(capsys) -> None:
    assert cli.main(["lauch"]) == 2
    assert capsys.readouterr().err == "trivet: there is no command 'lauch'; did you mean `trivet launch`?\n"


def test_a_command_of_another_server_is_told_what_it_is_called_here(capsys) -> None:
    assert cli.main(["pull", "hf:org/name"]) == 2
    assert "did you mean `trivet models pull`?" in capsys.readouterr().err


@pytest.mark.parametrize("spelt", [["--max-model-len", "2048"], ["--max-model-len=2048"]])
def test_an_option_of_vllm_is_told_how_the_setting_is_given(capsys, spelt) -> None:
    with pytest.raises(SystemExit):
        cli.main(["launch", "m", *spelt])
    assert "write --set max_model_len=2048; see" in capsys.readouterr().err


def test_a_missing_argument_is_one_sentence(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["launch"])
    assert end.value.code == 2
    expected = "trivet launch: the following arguments are required: MODEL; see `trivet launch --help`\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(("command", "choices"), [("config", "export, diff, apply"), ("kernels", "build, ")])
def test_a_missing_action_is_told_with_its_choices(capsys, command: str, choices: str) -> None:
    with pytest.raises(SystemExit):
        cli.main([command])
    assert f"trivet {command}: ACTION is missing, one of {choices}".rstrip(", ") in capsys.readouterr().err


def test_options_may_not_be_abbreviated(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["launch", "m", "--repl", "2"])
    assert "unrecognized arguments: --repl 2" in capsys.readouterr().err


def test_an_unknown_option_points_at_the_help_of_its_command(capsys) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["ps", "--jsn"])
    assert end.value.code == 2
    expected = "trivet ps: unrecognized arguments: --jsn, did you mean --json?; see `trivet ps --help`\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("port is 0"), 2, "trivet: port is 0\n"),
        (Unavailable("nothing is ready"), 1, "trivet: nothing is ready\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_sentences_and_exit_codes(offer, capsys, error, code, message) -> None:
    offer(_command("try", _raise(error)))
    assert cli.main(["try"]) == code
    assert capsys.readouterr().err == message


def test_a_fault_of_our_own_is_not_hidden(offer) -> None:
    offer(_command("try", _raise(ZeroDivisionError())))
    with pytest.raises(ZeroDivisionError):
        cli.main(["try"])


def test_a_command_gives_the_exit_code(offer) -> None:
    offer(_command("try", lambda given: 7))
    assert cli.main(["try"]) == 7


def test_help_into_a_closed_pipe_is_no_traceback() -> None:
    code = (
        "import os, sys\nfrom trivet import cli\n"
        "reader, writer = os.pipe()\nos.close(reader)\nos.dup2(writer, 1)\nsys.exit(cli.main(['--help']))"
    )
    # Unbuffered, argparse itself swallows the error; buffered, it would show when the interpreter ends.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=buffered
    )
    assert done.returncode == 141
    assert "Broken" not in done.stderr


def test_a_broken_pipe_ends_quietly_with_its_exit_code() -> None:
    code = (
        "import sys\nfrom trivet import cli\nfrom trivet.plugins import Command\n"
        "def run(given):\n    while True:\n        print('x' * 1000)\n"
        "cli._all_commands = lambda: ([Command('flood', 'f', lambda p: None, run)], [])\n"
        "sys.exit(cli.main(['flood']))"
    )
    flood = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with flood:
        flood.stdout.read(10)
        flood.stdout.close()
        assert flood.wait(60) == 141
        assert flood.stderr.read() == b""


def test_two_commands_of_one_name_are_refused(offer, capsys) -> None:
    offer(_command("ps", lambda given: 0))
    assert cli.main(["ps"]) == 1
    assert "two plugins offer a command 'ps'" in capsys.readouterr().err


class Broken(EntryPoint):
    def load(self):
        raise ImportError("no libtpu.so")


@pytest.fixture
def broken_plugin(monkeypatch) -> None:
    """One more plugin is installed, and it cannot be imported."""
    installed = [*entry_points(group="trivet.plugins"), Broken("tpu", "trivet_tpu", "trivet.plugins")]
    monkeypatch.setattr("trivet.plugins.entry_points", lambda group: installed)


def test_a_broken_plugin_leaves_every_other_command(broken_plugin, capsys) -> None:
    assert cli.main(["burn"]) == 1  # perhaps the broken plugin's
    assert "plugin 'tpu' (trivet_tpu, from an unknown distribution) cannot" in capsys.readouterr().err
    for command in ("ps", "serve"):
        with pytest.raises(SystemExit) as end:
            cli.main([command, "--help"])
        assert end.value.code == 0


def test_a_broken_plugin_is_told_once(broken_plugin, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("TRIVET_HOME", str(tmp_path))
    assert cli.main(["devices"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("ImportError: no libtpu.so") == 1
    assert "cpu" in shown.out
    assert cli.main(["doctor"]) == 1
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.count("repair or uninstall") == 1
