"""What a command or an option that does not exist was probably meant to be."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence

# What people type who come from other servers, and what it is called here.
COMMANDS_ELSEWHERE = {
    "add": "models add",
    "cp": "models alias",
    "create": "models add",
    "down": "stop --all",
    "list": "models list",
    "ls": "models list",
    "pull": "models pull",
    "rm": "models remove",
    "run": "chat",
    "show": "models show",
    "start": "serve",
    "status": "ps",
    "terminate": "stop",
    "top": "ps",
    "up": "serve",
}


def command_hint(name: str, known: Sequence[str]) -> str:
    """Half a sentence that goes on after "there is no command ...; "."""
    near = COMMANDS_ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, known, n=1)), None)
    return f"did you mean `trivet {near}`?" if near else "see `trivet --help`"


def option_hint(unknown: Sequence[str], given: argparse.Namespace, known: Sequence[str]) -> str:
    """Half a sentence with a comma in front, or nothing; `known` are the command's own options."""
    word, _, value = unknown[0].partition("=")
    if not word.startswith("--"):
        return ""
    from trivet.engine_settings import EngineSettings

    setting = word.removeprefix("--").replace("-", "_")
    takes_settings = hasattr(given, "pairs")
    if takes_settings and setting in EngineSettings.__struct_fields__ and setting != "options":
        following = unknown[1] if len(unknown) > 1 and not unknown[1].startswith("-") else "VALUE"
        return f", write --set {setting}={value or following}"
    near = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {near[0]}?" if near else ""
