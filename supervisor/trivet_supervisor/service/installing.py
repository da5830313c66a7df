"""Puts the unit where systemd finds it, after it has looked at what would keep the service from starting."""

from __future__ import annotations

import os
import pwd
import re
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from trivet.errors import ConfigError
from trivet_supervisor.service.unit import Service, unit_text

SYSTEM_UNITS = Path("/etc/systemd/system")
RUNNING = Path("/run/systemd/system")  # there while systemd is the one that starts services
DEVICE_GROUPS = ("HwHiAiUser",)  # who owns Ascend's device files; NVIDIA's are open to all
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MEMORY = re.compile(r"\d+(\.\d+)?[KMGT%]?|infinity")


@dataclass(frozen=True, slots=True)
class Units:
    """Where units are, and how systemd is told."""

    folder: Path
    systemctl: tuple[str, ...] = ("systemctl",)
    is_running: bool = True

    @classmethod
    def of_system(cls) -> Units:
        return cls(SYSTEM_UNITS, is_running=RUNNING.is_dir())

    @classmethod
    def of_user(cls) -> Units:
        folder = Path("~/.config/systemd/user").expanduser()
        return cls(folder, ("systemctl", "--user"), RUNNING.is_dir())

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.service"

    def tell(self, *arguments: str) -> None:
        """Raises: ConfigError with what systemctl says."""
        command = [*self.systemctl, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ConfigError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")


def check_unit(service: Service) -> None:
    """Raises: ConfigError for what systemd would refuse."""
    if _NAME.fullmatch(service.name) is None:
        raise ConfigError(f"name is {service.name!r}; it has letters, digits, - and _")
    if service.memory_max is not None and _MEMORY.fullmatch(service.memory_max) is None:
        raise ConfigError(f"memory limit is {service.memory_max!r}; it is an amount such as 200G, or 80%")
    if "\n" in f"{service.home}{service.command}":
        raise ConfigError("a path has a line break in it, which a unit cannot hold; move it")


def check_service(service: Service) -> None:
    """Raises: ConfigError for what systemd would refuse, or what the account cannot reach."""
    check_unit(service)
    if service.account is None:
        return
    account = account_of(service.account)
    if not Path(account.pw_dir).is_dir():
        raise ConfigError(
            f"account {service.account} has no home folder ({account.pw_dir} is none); compiled code is kept "
            f"there; make it, or name another: usermod --home /var/lib/{service.account} {service.account}"
        )
    if closed := _closed_folder(service.command, account):
        raise ConfigError(
            f"account {service.account} may not enter {closed}, where {service.command} is; install Trivet "
            "where it may, such as in /opt/trivet: python3 -m venv /opt/trivet"
        )


def account_of(name: str) -> pwd.struct_passwd:
    """Raises: ConfigError with the command that makes it."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(
            f"there is no account {name}; make it: useradd --system --home-dir /var/lib/{name} "
            f"--create-home --shell /usr/sbin/nologin {name}"
        ) from None


def install(service: Service, units: Units) -> None:
    """Write the unit and make the home; enabled where systemd runs. Raises: ConfigError."""
    check_service(service)
    file = units.file(service.name)
    try:
        _make_home(service)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}")
        draft.write_text(unit_text(service))
        draft.chmod(0o644)
        draft.replace(file)
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be written: {error.strerror}; run it as root, or give --user"
        ) from error
    if units.is_running:
        units.tell("daemon-reload")
        units.tell("enable", service.name)


def uninstall(name: str, units: Units) -> Path:
    """Stop and forget the service; the home stays. Returns the file that is gone. Raises: ConfigError."""
    file = units.file(name)
    if not file.exists():
        raise ConfigError(f"there is no service {name}: {file} does not exist")
    if units.is_running:
        units.tell("disable", "--now", name)
    try:
        file.unlink()
    except OSError as error:
        raise ConfigError(f"{file} cannot be removed: {error.strerror}; run it as root") from error
    if units.is_running:
        units.tell("daemon-reload")
    return file


def _make_home(service: Service) -> None:
    """The account's own; one that is there must be its already. Raises: ConfigError; OSError."""
    service.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if service.account is None:
        return
    account, owner = account_of(service.account), service.home.stat().st_uid
    if owner == account.pw_uid:
        return
    if any(service.home.iterdir()):
        raise ConfigError(
            f"home {service.home} belongs to uid {owner} and the service runs as {service.account}; "
            f"chown -R {service.account}: {service.home}"
        )
    os.chown(service.home, account.pw_uid, account.pw_gid)


def _closed_folder(path: Path, account: pwd.struct_passwd) -> Path | None:
    """The outermost folder on the way to `path` that the account may not enter."""
    if account.pw_uid == 0:
        return None
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    for folder in reversed(path.parents):
        status = folder.stat()
        bit = stat.S_IXOTH
        if status.st_uid == account.pw_uid:
            bit = stat.S_IXUSR
        elif status.st_gid in groups:
            bit = stat.S_IXGRP
        if not status.st_mode & bit:
            return folder
    return None
