"""Settings from `trivet.toml`, the environment and the command line, validated once.

The one module that reads the environment. Command line beats environment beats file; a key that
does not exist is refused with the nearest one that does.
"""

from __future__ import annotations

import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from trivet.errors import ConfigError
from trivet.setting_faults import converted, refuse_misspelt, refuse_unknown

KERNELS_VARIABLE = "TRIVET_KERNELS_DIR"
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]+)?|https?://\[[0-9a-f:]+\](:[0-9]+)?")
_PASSWORD_IN_QUERY = re.compile(r"[?&](ssl)?password=", re.IGNORECASE)
_PROXY = re.compile(r"https?://[^/\s]+/?")
YEAR_S = 365 * 86_400.0  # more means nothing, and the clocks of threads and files have an end
MAX_SOCKET_PATH = 107  # bytes: sockaddr_un.sun_path less its NUL, unix(7)


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[backend.NAME]`: the interpreter of the backend's own environment, and what to set in it."""

    python: str = sys.executable
    env: dict[str, str] = {}
    cpus: str = ""  # "0-7,16": the cores of its engines; all where it is empty
    memory_limit_gib: float | None = None  # private memory of each process of an engine

    def cpu_set(self) -> frozenset[int] | None:
        """None: all. Raises: ConfigError."""
        return parse_cpus(self.cpus) if self.cpus else None


class PriceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[price.MODEL]`: what a million tokens of a deployment cost; `[price."*"]` is for all others."""

    prompt: float = 0.0
    cached: float | None = None  # of the prompt, found in the prefix cache; None: as `prompt`
    completion: float = 0.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator sets for a site. Each key may come as TRIVET_KEY from the environment."""

    home: str = "~/.trivet"
    database_url: str | None = None  # None: SQLite in the home
    host: str = "127.0.0.1"
    port: int = 8000
    auth: str = "auto"  # "auto" | "required" | "off"
    insecure: bool = False  # allow a bind beyond loopback without TLS
    allowed_hosts: str = ""  # names, with commas, that a Host header may have; empty: as `auth` says
    cors_origins: str = ""  # with commas: whose pages may use /v1, as https://app.example.com
    num_proxies: int = 0  # in front of this server, whose X-Forwarded-* are believed
    tls_cert: str | None = None  # PEM: the server's certificate, and the chain up to who signed it
    tls_key: str | None = None  # PEM, without a password
    tls_ca: str | None = None  # PEM: whom clients of this home trust instead of the system's authorities
    log_level: str = "INFO"
    web_workers: int = 1
    web_threads: int = 512  # a whole answer holds one, a stream none; they start on demand
    launcher: str = "local"  # how engine processes are started; plugins offer others
    ray_address: str = ""  # of the Ray cluster's head, HOST:PORT; empty: the cluster of this host
    drain_timeout_s: float = 30.0
    orphan_timeout_s: float | None = None  # an engine ends itself after so long without a supervisor
    store_responses: bool = False  # keep what /v1/responses answers, as OpenAI does
    retention_days: float = 30.0  # of stored responses, files and batches
    model_roots: str = ""  # folders, with colons between: models may be registered from there only
    hf_endpoint: str = "https://huggingface.co"  # or a mirror of it
    ms_endpoint: str = "https://modelscope.cn"
    private_sources: bool = False  # models may be pulled from private addresses, and without TLS
    source_proxy: str = ""  # URL of an HTTP proxy through which public sources are reached
    pull_timeout_s: float = 86_400.0  # of a whole pull; what has come by then stays
    allow_pickle: bool = False  # pickled weights may be pulled; they are converted to safetensors
    currency: str = ""  # of the prices
    price: dict[str, PriceSettings] = {}
    backend: dict[str, BackendSettings] = {}

    @property
    def paths(self) -> Paths:
        return Paths(Path(self.home).expanduser().absolute())

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.paths.home / 'registry.db'}"

    def for_backend(self, name: str) -> BackendSettings:
        return self.backend.get(name) or BackendSettings()


_SECTIONS: dict[str, type[msgspec.Struct]] = {  # tables of the file: no variable sets them
    "backend": BackendSettings,
    "price": PriceSettings,
}


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a site keeps its things."""

    home: Path
    ENGINE_KEYS: ClassVar[str] = "engine-keys.json"  # in the home

    @property
    def config_file(self) -> Path:
        return self.home / "trivet.toml"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def stored(self) -> Path:
        """What users asked to be kept: responses, files, batches."""
        return self.home / "stored"

    @property
    def peaks(self) -> Path:
        """What the steps of earlier starts took of their devices, for the next plans."""
        return self.home / "peaks"

    @property
    def keys(self) -> Path:
        """Of bundles: the site's own, and those that it trusts."""
        return self.home / "keys"

    @property
    def ollama(self) -> Path:
        """Names that Ollama's dialect has made."""
        return self.home / "ollama"

    @property
    def kept(self) -> tuple[Path, ...]:
        """What a backup holds beside the registry and the models; the rest is made anew."""
        return (self.config_file, self.engine_keys_file, self.keys, self.stored, self.ollama)

    @property
    def token_file(self) -> Path:
        """The management token, mode 0600: who can read it may manage this site."""
        return self.run / "token"

    @property
    def url_file(self) -> Path:
        """Where the running `trivet serve` of this home listens, for its own commands."""
        return self.run / "url"

    @property
    def cert_file(self) -> Path:
        """Holds the path of the certificate that the running `trivet serve` shows, where it has one."""
        return self.run / "cert"

    @property
    def lock_file(self) -> Path:
        """Held by the one `trivet serve` of this home."""
        return self.run / "serve.lock"

    def create(self) -> None:
        """Make the folders; the run directory is closed to other users (it holds sockets).

        Raises: ConfigError where the home cannot be written.
        """
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)  # an existing one stays as it is
            for folder in (self.logs, self.models):
                folder.mkdir(exist_ok=True)
            self.run.mkdir(mode=0o700, exist_ok=True)
            self.stored.mkdir(mode=0o700, exist_ok=True)
            self.run.chmod(0o700)
        except OSError as error:
            raise ConfigError(
                f"home {self.home} cannot be written: {error.strerror}; set TRIVET_HOME to a folder that can"
            ) from error

    @property
    def engine_keys_file(self) -> Path:
        """This site's pair, by which engines on other hosts know it."""
        return self.home / self.ENGINE_KEYS

    def supervisor_socket(self) -> str:
        return socket_address(self.run / "supervisor.sock")


def engine_address(run_dir: str | Path, instance_id: str, kind: str) -> str:
    """ZeroMQ address of an engine's socket; `kind` is "sock", "beat" or "ctl" (messages.py)."""
    return socket_address(Path(run_dir) / f"engine-{instance_id}.{kind}")


def socket_address(path: Path) -> str:
    """Raises: ConfigError where the path is longer than the kernel allows."""
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        raise ConfigError(
            f"socket path {path} has {size} bytes and the kernel allows {MAX_SOCKET_PATH}; "
            "set TRIVET_HOME to a shorter path"
        )
    return f"ipc://{path}"


def load_settings(
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    reads_file: bool = True,
) -> Settings:
    """Merge file, environment and `overrides` (command line; None values are absent).

    `reads_file` False is for `trivet doctor`, which goes on where the file is at fault.

    Raises: ConfigError naming the key, where it stands, and the nearest key that exists.
    """
    environ = os.environ if environ is None else environ
    given = {key: value for key, value in (overrides or {}).items() if value is not None}
    from_env = {
        key: environ[variable]
        for key in Settings.__struct_fields__
        if key not in _SECTIONS and (variable := f"TRIVET_{key.upper()}") in environ
    }
    refuse_misspelt(environ, [f"TRIVET_{name.upper()}" for name in Settings.__struct_fields__])
    if "HF_ENDPOINT" in environ:  # where other tools of this host look for a mirror
        from_env.setdefault("hf_endpoint", environ["HF_ENDPOINT"])
    home = str(given.get("home") or from_env.get("home") or Settings().home)
    file = Paths(Path(home).expanduser()).config_file
    from_file = _read_toml(file) if reads_file else {}
    refuse_unknown(from_file, Settings.__struct_fields__, str(file))
    for kind, struct in _SECTIONS.items():
        sections = from_file.get(kind, {})
        if not isinstance(sections, dict):
            raise ConfigError(
                f"{file}: {kind} is {str(sections)[:80]}; it must be tables such as [{kind}.NAME]"
            )
        for name, section in sections.items():
            where = f"{file} [{kind}.{name}]"
            if not isinstance(section, dict):
                raise ConfigError(
                    f"{where} must be a table with {' and '.join(struct.__struct_fields__[:2])}"
                )
            refuse_unknown(section, struct.__struct_fields__, where)
            converted(section, struct, where)
    where = f"settings ({file}, environment, command line)"
    given_values = {**from_file, **from_env, **given, "home": home}
    settings = converted(given_values, Settings, where)
    host = settings.host.removeprefix("[").removesuffix("]")  # in which URLs have IPv6's addresses
    settings = msgspec.structs.replace(settings, host=host)
    for name, is_good, wanted in _rules(settings):
        if not is_good:
            raise ConfigError(f"{where}: {name} is {getattr(settings, name)!r}; it must be {wanted}")
    _check_parts(settings, where, file)
    return settings


def _check_parts(settings: Settings, where: str, file: Path) -> None:
    """Raises: ConfigError."""
    if settings.source_proxy and not _PROXY.fullmatch(settings.source_proxy):
        raise ConfigError(
            f"{where}: source_proxy is no address such as http://proxy:3128"
        )  # of what may hold a password
    if settings.database_url and _PASSWORD_IN_QUERY.search(settings.database_url):
        raise ConfigError(
            f"{where}: database_url has a password behind its ?, where nothing hides it; write it as "
            "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE, or name a passfile"
        )
    for origin in filter(None, (each.strip() for each in settings.cors_origins.split(","))):
        if not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"{where}: cors_origins has {origin!r}; origins are as https://app.example.com, exactly as "
                "browsers send them, with commas between"
            )
    for name, price in settings.price.items():
        if not all(0 <= value < math.inf for value in msgspec.structs.astuple(price) if value is not None):
            raise ConfigError(f"{file} [price.{name}]: prices are numbers from 0 on")
    for name, backend in settings.backend.items():
        _check_backend(backend, f"{file} [backend.{name}]")


def _check_backend(backend: BackendSettings, where: str) -> None:
    try:
        backend.cpu_set()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    limit = backend.memory_limit_gib
    if limit is not None and not 0 < limit < math.inf:
        raise ConfigError(f"{where}: memory_limit_gib is {limit}; it must be more than 0")


def home_of_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variable that names the home, if it is set, and no other."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in ("TRIVET_HOME",) if name in environ}


def home_paths(environ: Mapping[str, str] | None = None) -> Paths:
    """Of the home that the environment names, else the usual one; no file of it is read."""
    return Settings(home=home_of_environment(environ).get("TRIVET_HOME") or Settings().home).paths


def service_socket(environ: Mapping[str, str] | None = None) -> str | None:
    """NOTIFY_SOCKET: where systemd waits for the word that this service is up."""
    environ = os.environ if environ is None else environ
    return environ.get("NOTIFY_SOCKET")


def kernels_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """TRIVET_KERNELS_DIR: where `trivet kernels build --output` has put kernels, as in an image."""
    environ = os.environ if environ is None else environ
    folder = environ.get(KERNELS_VARIABLE)
    return Path(folder) if folder else None


def parse_cpus(text: str) -> frozenset[int]:
    """The kernel's list format, "0-7,16". Raises: ConfigError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"cpus is {text!r}; it is a list of cores such as 0-7,16")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def _rules(settings: Settings) -> list[tuple[str, bool, str]]:
    orphan_s = settings.orphan_timeout_s
    return [
        ("host", bool(settings.host.strip()), "a name or an address, such as 127.0.0.1 or 0.0.0.0"),
        ("port", 0 <= settings.port <= 65535, "0 (any free one) to 65535"),
        ("log_level", settings.log_level.upper() in LOG_LEVELS, f"one of {', '.join(LOG_LEVELS)}"),
        ("num_proxies", 0 <= settings.num_proxies <= 10, "0 to 10"),
        ("web_workers", 1 <= settings.web_workers <= 1024, "1 to 1024"),
        ("web_threads", 1 <= settings.web_threads <= 65_536, "1 to 65536"),
        ("drain_timeout_s", 0 <= settings.drain_timeout_s <= YEAR_S, "seconds, from 0 to those of a year"),
        ("pull_timeout_s", 0 < settings.pull_timeout_s <= YEAR_S, "seconds, more than 0, at most a year's"),
        ("retention_days", 0 < settings.retention_days <= 36_500, "days, more than 0, at most 36500"),
        (
            "orphan_timeout_s",
            orphan_s is None or 0 < orphan_s <= YEAR_S,
            "seconds, more than 0, at most a year's",
        ),
    ]


def settings_to_environment(settings: Settings) -> dict[str, str]:
    """The variables from which a child reads the same settings; `[backend.*]` it finds in the home."""
    values = {name: getattr(settings, name) for name in Settings.__struct_fields__ if name not in _SECTIONS}
    return {
        f"TRIVET_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }


def process_environment() -> Mapping[str, str]:
    """All variables of this process, for whoever has to recognise their values."""
    return os.environ


def inherited_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without Trivet's own variables, which may hold a database password.

    Where kernels were built ahead of time is no setting of a site and stays.
    """
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("TRIVET_") or name == KERNELS_VARIABLE
    }


def environment_of_home(home: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """As `inherited_environment`, with the home."""
    return {**inherited_environment(environ), "TRIVET_HOME": str(home)}


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
