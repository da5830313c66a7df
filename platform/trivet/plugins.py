"""The plugin host: hook specifications and their registration, by pluggy.

A plugin is a module named in the entry-point group `trivet.plugins`. Each hook is documented here
and nowhere else. A plugin that does not fit fails at registration, with plugin, hook and place named; the
others serve without it.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol, cast

import pluggy

from trivet.config import Settings
from trivet.contract import Backend
from trivet.errors import ConfigError, PluginError, Unsupported
from trivet.launching import Launcher

if TYPE_CHECKING:
    from trivet.models.spec import ModelSpec

PROJECT = "trivet"
ENTRY_POINT_GROUP = "trivet.plugins"
BACKEND_MEMBERS = ("name", "probe", "launch_env", "check", "plan", "create_runner")
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the CLI."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]  # returns the exit code; TrivetError becomes a message
    is_listed: bool = True  # in `trivet --help`


class HookSpecs(Protocol):
    """What a plugin may implement; every hook is optional."""

    @hookspec
    def trivet_backend(self) -> Backend:
        """Offer a kind of hardware.

        Called in the supervisor, where neither torch nor a vendor library may be imported: return the
        torch-free half (`contract.Backend`); the runner half is imported by `create_runner`.
        """

    @hookspec
    def trivet_architectures(self) -> Mapping[str, Callable[[Mapping[str, Any]], ModelSpec]]:
        """Offer model architectures by the name that `config.json` gives under `architectures`.

        Each maps to a function of that file's content. Raises from it: UnsupportedArchitecture,
        ModelFilesError.
        """

    @hookspec
    def trivet_launcher(self, settings: Settings) -> Launcher:
        """Offer a way to start engine processes; the setting `launcher` chooses by its `name`.

        Every one that is installed is made where one is needed, so making it starts and connects nothing.
        What it owes the supervisor, and what nobody promises it, stands in `launching.py`.
        """

    @hookspec(firstresult=True)
    def trivet_offline_accounts(
        self, settings: Settings
    ) -> AbstractContextManager[tuple[Callable[..., Any], str]]:
        """Offer users, keys, audit log and usage of a home whose server is off.

        A WSGI application with those routes of the management API, and a token that may all.
        """

    @hookspec
    def trivet_commands(self) -> list[Command]:
        """Offer commands of the `trivet` CLI. Import heavy modules inside `Command.run`."""


class PluginHost:
    """The registered plugins of this process."""

    def __init__(self, *, check_backends: bool = True) -> None:
        self._checks_backends = check_backends
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        self._backend_names: set[str] = set()
        self.failures: dict[str, PluginError] = {}  # by entry point: installed, and not to be had

    def register(self, plugin: object, name: str) -> None:
        """Raises: PluginError naming plugin, hook and place."""
        try:
            self._manager.register(plugin, name=name)
            self._manager.check_pending()
            self._check_backend(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            self._take_back(plugin)
            raise PluginError(f"plugin {name!r} cannot be registered: {error}") from error
        except PluginError:
            self._take_back(plugin)
            raise

    def load_entry_points(self, points: list[EntryPoint] | None = None) -> None:
        """Register every installed plugin; what one that fails has against it is in `failures`."""
        found = entry_points(group=ENTRY_POINT_GROUP) if points is None else points
        for point in sorted(found, key=lambda p: p.name):
            try:
                self.register(_imported(point), point.name)
            except PluginError as error:
                self.failures[point.name] = error

    @property
    def backends(self) -> dict[str, Backend]:
        return {backend.name: backend for backend in self._manager.hook.trivet_backend()}

    def backend(self, name: str) -> Backend:
        """Raises: Unsupported naming the backends that exist, or why this one is not to be had."""
        try:
            return self.backends[name]
        except KeyError:
            if name in self.failures:
                raise Unsupported(f"backend {name!r} cannot be used: {self.failures[name]}") from None
            known = ", ".join(sorted(self.backends))
            raise Unsupported(f"backend {name!r} is not installed; installed: {known}") from None

    @property
    def architectures(self) -> dict[str, Callable[[Mapping[str, Any]], ModelSpec]]:
        merged: dict[str, Callable[[Mapping[str, Any]], ModelSpec]] = {}
        for offered in self._manager.hook.trivet_architectures():
            merged.update(offered)
        return merged

    def launcher(self, settings: Settings) -> Launcher:
        """The one that the site has chosen. Raises: ConfigError naming the launchers that exist."""
        offered = self._manager.hook.trivet_launcher(settings=settings)
        launchers: dict[str, Launcher] = {each.name: each for each in offered}
        name = settings.launcher
        if name not in launchers:
            known = ", ".join(sorted(launchers)) or "none"
            raise ConfigError(f"launcher {name!r} is not installed; installed: {known}")
        return launchers[name]

    def offline_accounts(
        self, settings: Settings
    ) -> AbstractContextManager[tuple[Callable[..., Any], str]] | None:
        """None where no plugin has a registry."""
        found = self._manager.hook.trivet_offline_accounts(settings=settings)
        return cast("AbstractContextManager[tuple[Callable[..., Any], str]] | None", found)

    @property
    def commands(self) -> list[Command]:
        groups = cast("list[list[Command]]", self._manager.hook.trivet_commands())
        return sorted((c for group in groups for c in group), key=lambda command: command.name)

    def _take_back(self, plugin: object) -> None:
        if self._manager.is_registered(plugin):
            self._manager.unregister(plugin)

    def _check_backend(self, plugin: object, name: str) -> None:
        hook = getattr(plugin, "trivet_backend", None)
        if hook is None or not self._checks_backends:
            return
        where = f"plugin {name!r}, hook trivet_backend ({_place(hook)})"
        try:
            backend = hook()
        except Exception as error:  # a stranger's code may raise anything
            raise PluginError(f"{where} raised {type(error).__name__}: {error}") from error
        missing = [member for member in BACKEND_MEMBERS if not hasattr(backend, member)]
        if missing:
            raise PluginError(
                f"{where}: {type(backend).__name__} lacks {', '.join(missing)} of trivet.contract.Backend"
            )
        if backend.name in self._backend_names:
            raise PluginError(f"{where}: a backend named {backend.name!r} is already registered")
        self._backend_names.add(backend.name)


def _imported(point: EntryPoint) -> object:
    """Raises: PluginError."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a stranger's code may raise anything while it is imported
        origin = point.dist.name if point.dist else "an unknown distribution"
        raise PluginError(
            f"plugin {point.name!r} ({point.value}, from {origin}) cannot be imported: "
            f"{type(error).__name__}: {error}; repair or uninstall {origin}"
        ) from error


def _place(function: Callable[..., object]) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def load_plugins(*, check_backends: bool = True) -> PluginHost:
    """The host with every installed plugin that can be loaded; `failures` has the others.

    `check_backends` False is for the command line, which must start at once: a backend then is made, and
    what it needs imported (NumPy: 0.1 s), when it is first asked for.
    """
    host = PluginHost(check_backends=check_backends)
    host.load_entry_points()
    return host
