"""`trivet models pull`, `verify`, `gc`, `export`, `import`: the files of models."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.commands.connecting import absolute_path, add_server_options, connect
from trivet.commands.output import add_json_option, bytes_text, note, print_json
from trivet.counted import counted
from trivet.errors import ConfigError

if TYPE_CHECKING:
    from trivet.client import Client, Pull

POLL_INTERVAL_S = 0.5
BAR_WIDTH = 30


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """To `trivet models`."""
    pull = actions.add_parser("pull", help="bring a model from a hub or another Trivet into the store")
    pull.add_argument(
        "source",
        metavar="SOURCE",
        help="hf:org/name[@revision][:FILE], ms:org/name[...], or trivet:https://host:8000/name[:version]",
    )
    pull.add_argument("--name", help="its name here (default: the source's)")
    add_source_key(pull)
    pull.set_defaults(action=_pull)
    verify = actions.add_parser("verify", help="read a version's files through and compare their SHA-256")
    verify.add_argument("name", metavar="NAME[:VERSION]", help="without a version: all of them")
    verify.set_defaults(action=_verify)
    collect = actions.add_parser("gc", help="remove from the store what no version needs")
    collect.set_defaults(action=_collect)
    export = actions.add_parser("export", help="write a signed bundle for a site without a network")
    export.add_argument("name", metavar="NAME[:VERSION]")
    export.add_argument("path", metavar="FILE", help="a file of the server's host, which must not exist")
    export.add_argument("--have", type=Path, metavar="FILE", help="what the other site has: `models digests`")
    export.set_defaults(action=_export)
    take = actions.add_parser("import", help="take a signed bundle in")
    take.add_argument("path", metavar="FILE", help="a bundle on the server's host")
    take.add_argument("--name", help="its name here (default: the bundle's)")
    take.add_argument("--key", type=Path, metavar="FILE", help="bundle.pub of the site that signed it")
    take.add_argument("--allow-older", action="store_true", help="also where a newer one was taken in")
    take.add_argument("--no-smoke-test", action="store_true", help="do not have it answer one token first")
    take.set_defaults(action=_import)
    digests = actions.add_parser("digests", help="SHA-256 of the store's files, for `models export --have`")
    digests.set_defaults(action=_digests)
    for action in (pull, verify, collect, export, take, digests):
        add_json_option(action)
        add_server_options(action)


def add_source_key(parser: argparse.ArgumentParser) -> None:
    """`--key-file`, which `source_key` reads."""
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="holds a token of the source")


def source_key(given: argparse.Namespace) -> str | None:
    """What a hub or another Trivet knows us by. Raises: ConfigError."""
    return _text(given.key_file, "--key-file")


def _pull(given: argparse.Namespace) -> int:
    key = source_key(given)
    with connect(given) as client:
        return _finish(client, client.pulls.begin(given.source, given.name, key=key), given)


def _import(given: argparse.Namespace) -> int:
    with connect(given) as client:
        pull = client.pulls.begin(
            f"bundle:{absolute_path(given.path)}",
            given.name,
            trusted_key=_text(given.key, "--key"),
            allow_older=given.allow_older,
            smoke_test=not given.no_smoke_test,
        )
        return _finish(client, pull, given)


def _text(file: Path | None, option: str) -> str | None:
    """Of a file of a key. Raises: ConfigError."""
    try:
        return None if file is None else file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {file} cannot be read: {error}") from error


def _finish(client: Client, pull: Pull, given: argparse.Namespace) -> int:
    pull = followed(client, pull)
    if given.json:
        print_json(pull)
    elif pull.state == "done":
        print(f"{pull.source} is {pull.version}")
    else:
        note(f"trivet: {pull.source} {pull.state}: {pull.message}")
    return 0 if pull.state == "done" else 1


def followed(client: Client, pull: Pull) -> Pull:
    """Shown until it has ended. Ctrl-C cancels it."""
    try:
        return _watched(client, pull)
    except KeyboardInterrupt:
        client.pulls.cancel(pull.id)
        note(f"\n{pull.source} was cancelled; what has come stays: pull it again to go on")
        raise


def _watched(client: Client, pull: Pull) -> Pull:
    is_terminal = sys.stderr.isatty()
    while pull.state == "running":
        if is_terminal:
            print(f"\r\x1b[K{bar(pull)}", end="", file=sys.stderr, flush=True)
        time.sleep(POLL_INTERVAL_S)
        pull = client.pulls.get(pull.id)
    if is_terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return pull


def bar(pull: Pull) -> str:
    """One line: how much has come of how much."""
    if not pull.total_bytes:
        return f"{pull.source}: asks what there is"
    share = min(1.0, pull.done_bytes / pull.total_bytes)
    filled = "#" * round(share * BAR_WIDTH)
    sizes = f"{bytes_text(pull.done_bytes)} of {bytes_text(pull.total_bytes)}"
    return f"{pull.source} [{filled:<{BAR_WIDTH}}] {share:4.0%}  {sizes}"


def _verify(given: argparse.Namespace) -> int:
    name, colon, _ = given.name.partition(":")
    with connect(given) as client:
        if colon:
            references = [given.name]
        else:
            references = [f"{name}:{version.version}" for version in client.models.get(name).versions]
        patient = client.with_options(timeout_s=24 * 3600.0)
        verified = [patient.models.verify(reference) for reference in references]
    if given.json:
        print_json(verified)
    for one in () if given.json else verified:
        for problem in one.problems:
            print(f"{one.version} {problem.name}: {problem.problem}")
        if not one.problems:
            print(f"{one.version} is what was registered, {one.digest}")
    return 1 if any(one.problems for one in verified) else 0


def _export(given: argparse.Namespace) -> int:
    have = (_text(given.have, "--have") or "").split()
    with connect(given) as client:
        patient = client.with_options(timeout_s=24 * 3600.0)
        made = patient.models.export(given.name, str(absolute_path(given.path)), have=have)
    if given.json:
        print_json(made)
    else:
        files, size = counted(made.num_files, "file"), bytes_text(made.size_bytes)
        print(f"{made.path}: {made.version}, {files}, {size}, signed by {made.key[:16]}")
    return 0


def _digests(given: argparse.Namespace) -> int:
    with connect(given) as client:
        digests = client.store.digests()
    if given.json:
        print_json(digests)
    else:
        print(*digests, sep="\n", end="\n" if digests else "")
    return 0


def _collect(given: argparse.Namespace) -> int:
    with connect(given) as client:
        gone = client.store.collect()
        left = client.store.size()
    if given.json:
        print_json({"gone": gone, "left": left})
    else:
        print(
            f"removed {counted(gone.num_files, 'file')}, {bytes_text(gone.size_bytes)}; "
            f"the store has {counted(left.num_files, 'file')}, {bytes_text(left.size_bytes)}"
        )
    return 0
