"""The text of a systemd unit for `trivet serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_UNIT = """\
# Written by `trivet service install`, which writes it anew: changes belong into `systemctl edit {name}`.
[Unit]
Description=Trivet serves large language models from {home_text}
Wants=network-online.target
After=network-online.target postgresql.service nvidia-persistenced.service
RequiresMountsFor={home}
# A database that comes up later than this host is waited for, however long that takes.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={command} serve
Environment={environment}
# Settings are in trivet.toml of the home; what only root may read (TRIVET_DATABASE_URL) can be in this file.
EnvironmentFile=-%E/trivet/{name}.env
UMask=0077
TimeoutStartSec=900
Restart=on-failure
RestartSec=10

# SIGTERM drains, then ends every engine. When `serve` itself is killed or crashes, its engines go on: the
# next one adopts them, so nothing but the main process may be ended by systemd.
KillMode=process
TimeoutStopSec={stop_timeout_s}
# One engine that the kernel ends for memory is started again by the supervisor; the rest serves on.
OOMPolicy=continue

LimitNOFILE=65536
TasksMax=16384
# Dumps would hold prompts, and as much as the weights.
LimitCORE=0
"""
_OF_THE_SYSTEM = """\
# Host memory that a device reads is pinned.
LimitMEMLOCK=infinity
NoNewPrivileges=yes
ProtectSystem=full
ProtectKernelTunables=yes
ProtectControlGroups=yes
PrivateTmp=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
SystemCallArchitectures=native
"""


@dataclass(frozen=True, slots=True)
class Service:
    """One site as a service. `account` None: a service of who is logged in, not of the system."""

    name: str
    home: Path
    command: Path  # the executable `trivet`
    stop_timeout_s: float
    account: str | None = None
    groups: Sequence[str] = ()  # of the account besides its own, which own device files
    memory_max: str | None = None  # "200G" of all processes together, of the host


def unit_text(service: Service) -> str:
    """The whole unit file."""
    text = _UNIT.format(
        name=service.name,
        home_text=_without_specifiers(str(service.home)),
        home=_quoted(str(service.home)),
        command=_quoted(str(service.command)).replace("$", "$$"),
        environment=_quoted(f"TRIVET_HOME={service.home}"),
        stop_timeout_s=round(service.stop_timeout_s),
    )
    if service.memory_max:
        text += f"MemoryMax={service.memory_max}\n"
    if service.account is None:
        return f"{text}\n[Install]\nWantedBy=default.target\n"
    text += _OF_THE_SYSTEM + f"User={service.account}\n"
    if service.groups:
        text += f"SupplementaryGroups={' '.join(service.groups)}\n"
    return f"{text}\n[Install]\nWantedBy=multi-user.target\n"


def _without_specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """By the rules of systemd.syntax(7): `%` begins a specifier."""
    escaped = _without_specifiers(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if escaped != text or any(c in " \t'" for c in text) else escaped
