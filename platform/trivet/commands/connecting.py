"""Options and checks that all commands share which talk to a server."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.commands.output import note
from trivet.demo_model import find_demo_model
from trivet.errors import ConfigError, ModelFilesError, ModelNotFound, Unavailable

if TYPE_CHECKING:
    from trivet.client import Client


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """`--url` and `--api-key-file`; without them it is the server of this home."""
    parser.add_argument("--url", help="the server (default: the one of TRIVET_HOME)")
    parser.add_argument("--ca-file", metavar="FILE", help="certificates to trust of an https server (PEM)")
    # Never the key itself: every account of a host can read the command lines of its processes.
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="file that holds the API key or token"
    )


def connect(given: argparse.Namespace, max_connections: int = 100, patience_s: float = 0.0) -> Client:
    """The client for the options; where the server of this home is just starting, it has been waited for.

    Args:
        patience_s: for a `trivet serve` that was started a moment ago.

    Raises: ConfigError.
    """
    from trivet.access import is_served
    from trivet.client import Client
    from trivet.commands.starting_server import wait_for_start
    from trivet.config import load_settings

    key = None
    if given.api_key_file is not None:
        try:
            key = given.api_key_file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise ConfigError(f"--api-key-file {given.api_key_file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"--api-key-file {given.api_key_file} holds no key: byte {error.start} is not ASCII"
            ) from error

    def answers() -> bool:
        with Client(None, key, ca_file=given.ca_file) as client:
            return client.health()

    if given.url is None:
        paths = load_settings().paths
        wait_for_start(answers, paths, patience_s)
        if not is_served(paths) and answers():
            note(f"no server of {paths.home} runs; the one at this address is another's")
    # Without retries: who types sees at once why, and when to come again.
    return Client(given.url, key, max_connections=max_connections, max_retries=0, ca_file=given.ca_file)


@contextmanager
def connect_or_open(given: argparse.Namespace) -> Iterator[Client]:
    """As `connect`; where the server of this home is off, what is asked for is done on the home itself.

    Raises: ConfigError.
    """
    from trivet.access import is_served
    from trivet.config import load_settings

    with connect(given) as client:
        is_ours = given.url is None and given.api_key_file is None
        if not is_ours or is_served(load_settings().paths):
            yield client
            return
    import httpx2

    from trivet.client import Client
    from trivet.plugins import load_plugins

    offered = load_plugins(check_backends=False).offline_accounts(load_settings())
    if offered is None:
        raise Unavailable("no server answers; start it with trivet serve")
    note("no server is running: this is done on the home itself")
    with offered as (app, token):
        transport = httpx2.WSGITransport(app, raise_app_exceptions=False)
        with Client("http://localhost", token, transport=transport, max_retries=0) as client:
            yield client


def is_source(text: str) -> bool:
    """Whether MODEL is what `trivet models pull` takes."""
    return text.startswith(("hf:", "ms:", "trivet:"))


def refuse_hub_name(text: str) -> None:
    """MODEL has to be here. Raises: ModelFilesError saying how a hub's is brought here."""
    source = text if is_source(text) else f"hf:{text}"
    if is_source(text) or (re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text) and not Path(text).exists()):
        raise ModelFilesError(
            f"{text} is no model or folder here; if a hub has it, `trivet models pull {source}` brings it"
        )


def model_argument(text: str) -> str:
    """MODEL as the server must hear it: a path of this host in full, a name as it is.

    Raises: ModelFilesError for what looks like the name of a hub's model.
    """
    refuse_hub_name(text)
    return str(absolute_path(text)) if is_path(text) else text


def absolute_path(text: str) -> Path:
    """The whole path, with a home folder in place of `~`; an account that does not exist stays as it is.

    Raises: ConfigError for none, as of a variable that is not set: it would be the working directory.
    """
    if not text.strip():
        raise ConfigError("the path is empty; give one, or . for this folder")
    return Path(os.path.expanduser(text)).absolute()  # Path.expanduser raises for such an account


def is_path(text: str) -> bool:
    """Whether MODEL looks like a path: a slash, a leading dot or tilde, `.gguf`.

    Not whether it exists: a folder that happens to lie in the working directory must not hide a
    registered model of the same name.
    """
    return "/" in text or text.startswith((".", "~")) or text.endswith(".gguf")


def with_path_hint(error: ModelNotFound, text: str) -> ModelNotFound:
    """Where a file, a folder or the demo model has the name that was looked up: how to write its path."""
    if text == "smollm2":
        try:
            return ModelNotFound(f"{error}; the demo model is here: {find_demo_model()}", param=error.param)
        except ModelFilesError:
            return error
    if is_path(text) or not Path(text).exists():
        return error
    return ModelNotFound(f"{error}; for the files in ./{text} write ./{text}", param=error.param)


def local_model(text: str) -> Path:
    """Where MODEL's files are on this host; a name is looked up in the registry of this home's server.

    Raises: ModelNotFound; Unavailable where a name is given and no server answers.
    """
    refuse_hub_name(text)
    if is_path(text):
        return absolute_path(text)
    from trivet.client import Client

    try:
        with Client(timeout_s=10.0) as client:
            try:
                return Path(client.models.version(text).path)
            except ModelNotFound as error:
                raise _with_model_hint(client, with_path_hint(error, text), text) from None
    except Unavailable as error:
        raise Unavailable(f"{text!r} is a name (a path has a slash: ./{text}), and {error}") from error


def _with_model_hint(client: Client, error: ModelNotFound, name: str) -> ModelNotFound:
    """Who knows the deployment's name is told which model it runs."""
    for each in client.deployments.list():
        if each.name == name:
            model = f"{each.model}:{each.alias or each.version}"
            return ModelNotFound(
                f"{name!r} is a deployment, and no model; it runs {model}: give that", param="model"
            )
    return error


def parse_pairs(pairs: list[str]) -> dict[str, str]:
    """`KEY=VALUE` arguments, checked against the engine settings. Raises: ConfigError."""
    from trivet.engine_settings import parse_engine_settings

    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair!r} has no value; write --set KEY=VALUE")
        settings[key.strip()] = value.strip()
    parse_engine_settings(settings)
    return settings


def given_settings(given: argparse.Namespace) -> dict[str, str]:
    """What `add_settings_option` has read. Raises: ConfigError."""
    from trivet.adapters import spelled_adapters
    from trivet.engine_settings import parse_engine_settings

    settings = parse_pairs(given.pairs)
    folders: dict[str, str] = {}
    for pair in given.adapters:
        name, equals, folder = pair.partition("=")
        if not equals or name in folders:
            wrong = "is there twice" if equals else "has no folder; write --adapter NAME=FOLDER"
            raise ConfigError(f"--adapter {pair!r} {wrong}")
        folders[name] = str(absolute_path(folder))
    if folders:
        if "adapters" in settings:
            raise ConfigError("--adapter and --set adapters=... are both given; give one of them")
        settings["adapters"] = spelled_adapters(folders)
        parse_engine_settings(settings)
    return settings


def add_settings_option(parser: argparse.ArgumentParser) -> None:
    """`--set KEY=VALUE` and `--adapter NAME=FOLDER`, repeatable."""
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        dest="adapters",
        metavar="NAME=FOLDER",
        help="a LoRA adapter beside the model, a folder as PEFT writes it (repeatable; give all of them)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="pairs",
        metavar="KEY=VALUE",
        help="an engine setting by vLLM's name, such as max_model_len=4096 (repeatable)",
    )
