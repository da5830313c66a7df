"""The `trivet` command: core commands and those of plugins under one parser.

Nothing here or in the head of a command's module imports torch, transformers or an HTTP library: `trivet
--help` must answer at once. A command imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from trivet import __version__
from trivet.commands import core_commands
from trivet.commands.output import note
from trivet.commands.unknown_words import command_hint, option_hint
from trivet.errors import ConfigError, PluginError, TrivetError
from trivet.plugins import Command, load_plugins

EXIT_FAILURE = 1
EXIT_USAGE = 2  # the command line or a setting is at fault
EXIT_INTERRUPTED = 130  # what a shell reports for SIGINT
EXIT_BROKEN_PIPE = 141  # and for SIGPIPE
SELF_REPORTING = "doctor"  # the command among whose findings a broken plugin is


class Parser(argparse.ArgumentParser):
    """argparse that answers a mistake with one sentence instead of the whole usage."""

    @property
    def options(self) -> list[str]:
        """Every option that it takes itself, such as `--json`; its actions' own are not among them."""
        return [text for action in self._actions for text in action.option_strings]

    def error(self, message: str) -> NoReturn:
        for parsers in self._actions:
            if isinstance(parsers, argparse._SubParsersAction) and message.endswith(f": {parsers.metavar}"):
                message = f"{parsers.metavar} is missing, one of {', '.join(parsers.choices)}"
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; usage errors and --help end by SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()  # a broken pipe must show here, not when the interpreter ends
    except ConfigError as error:
        return _fail(error, EXIT_USAGE)
    except TrivetError as error:
        return _fail(error, EXIT_FAILURE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone: give the interpreter somewhere to flush to at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


def build_parser(commands: Sequence[Command]) -> Parser:
    """The root parser. A name that two of `commands` claim is refused with PluginError."""
    parser = Parser(
        prog="trivet",
        description="One self-hosted platform that serves large language models over mixed hardware.",
        epilog="Every command explains itself: trivet COMMAND --help",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"trivet {__version__}")
    parsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    names: set[str] = set()
    for command in sorted(commands, key=lambda command: command.name):
        if command.name in names:
            raise PluginError(f"two plugins offer a command {command.name!r}; uninstall one of them")
        names.add(command.name)
        listed: dict[str, Any] = {"help": command.help} if command.is_listed else {}
        child = parsers.add_parser(
            command.name, description=_sentence(command.help), allow_abbrev=False, **listed
        )
        command.add_arguments(child)
        _describe_actions(child)
        child.set_defaults(run_command=command.run, command_parser=child)
    return parser


def _describe_actions(parser: argparse.ArgumentParser) -> None:
    """`trivet models pull --help` begins with what the list of actions says of it."""
    for parsers in parser._actions:
        if isinstance(parsers, argparse._SubParsersAction):
            for listed in parsers._choices_actions:
                parsers.choices[listed.dest].description = _sentence(listed.help or "")


def _run(arguments: list[str]) -> int:
    commands, problems = _all_commands()
    name = arguments[0] if arguments else ""
    if name and not name.startswith("-") and name not in {command.name for command in commands}:
        for problem in problems:  # perhaps it is a command of that plugin
            raise problem
        known = [command.name for command in commands if command.is_listed]
        raise ConfigError(f"there is no command {name!r}; {command_hint(name, known)}")
    if name != SELF_REPORTING:
        for problem in problems:
            print(f"trivet: {problem}", file=sys.stderr)
    if not arguments:
        build_parser(commands).print_help()
        return EXIT_USAGE
    given, unknown = build_parser(commands).parse_known_args(arguments)
    if unknown:  # told by the command, whose --help is the one that helps
        hint = option_hint(unknown, given, given.command_parser.options)
        given.command_parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    code: int = given.run_command(given)
    return code


def _all_commands() -> tuple[list[Command], list[PluginError]]:
    """A plugin that cannot be loaded must not take `trivet serve` and `trivet logs` with it."""
    host = load_plugins(check_backends=False)
    return core_commands() + host.commands, list(host.failures.values())


def _fail(error: TrivetError, code: int) -> int:
    note(f"trivet: {error}")
    return code


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
