"""`trivet doctor`: is this host fit to serve, and what to do where it is not."""

from __future__ import annotations

import argparse
import sys

from trivet.commands.output import add_json_option, print_json
from trivet.plugins import Command

COLOURS = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)


def _run(given: argparse.Namespace) -> int:
    from trivet.commands.host_checks import check_host
    from trivet.commands.site_checks import check_site

    findings = [*check_host(), *check_site()]
    if given.json:
        print_json(findings)
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            mark = f"{finding.status:<4}"
            if sys.stdout.isatty():
                mark = f"{COLOURS[finding.status]}{mark}\x1b[0m"
            advice = f"; {finding.advice}" if finding.advice else ""
            print(f"{mark}  {finding.check:<{width}}  {finding.text}{advice}")
    return 1 if any(finding.status == "fail" for finding in findings) else 0


COMMANDS = (Command("doctor", "check this host and this home, and say what to do", _add_arguments, _run),)
