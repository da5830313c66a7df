"""Plugins register, or fail naming plugin, hook and place."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from trivet.config import Settings
from trivet.errors import ConfigError, PluginError, Unsupported
from trivet.plugins import HookSpecs, PluginHost, hookimpl, load_plugins


class GoodBackend:
    name = "good"

    def probe(self, timeout_s: float) -> list[object]:
        return []

    launch_env = check = plan = create_runner = probe


class GoodPlugin:
    @hookimpl
    def trivet_backend(self) -> GoodBackend:
        return GoodBackend()


def test_a_registered_backend_is_found_by_its_name() -> None:
    host = PluginHost()
    host.register(GoodPlugin(), "good-plugin")
    assert host.backend("good").name == "good"


def test_a_misspelt_hook_is_refused_by_name() -> None:
    class Misspelt:
        @hookimpl
        def trivet_bakcend(self) -> None: ...

    with pytest.raises(PluginError, match=r"'odd'.*trivet_bakcend"):
        PluginHost().register(Misspelt(), "odd")


def test_a_hook_with_a_wrong_argument_is_refused_by_plugin_and_hook() -> None:
    class WrongArgument:
        @hookimpl
        def trivet_commands(self, surplus: int) -> None: ...

    with pytest.raises(PluginError, match=r"(?s)'odd'.*trivet_commands.*surplus"):
        PluginHost().register(WrongArgument(), "odd")


def test_an_incomplete_backend_is_refused_with_its_place() -> None:
    class Incomplete:
        @hookimpl
        def trivet_backend(self) -> SimpleNamespace:
            return SimpleNamespace(name="half", probe=None)

    with pytest.raises(PluginError, match=r"'half'.*trivet_backend.*test_plugins\.py:\d+.*launch_env"):
        PluginHost().register(Incomplete(), "half")


def test_a_backend_hook_that_raises_is_refused_with_its_place() -> None:
    class Raises:
        @hookimpl
        def trivet_backend(self) -> None:
            raise RuntimeError("no driver")

    with pytest.raises(PluginError, match=r"'broken'.*trivet_backend.*test_plugins\.py:\d+.*no driver"):
        PluginHost().register(Raises(), "broken")


def test_two_plugins_may_not_offer_one_backend_name() -> None:
    host = PluginHost()
    host.register(GoodPlugin(), "first")
    with pytest.raises(PluginError, match=r"'second'.*'good'.*already"):
        host.register(GoodPlugin(), "second")


def test_a_plugin_that_cannot_be_imported_is_named() -> None:
    point = EntryPoint(name="ghost", value="trivet_no_such_module", group="trivet.plugins")
    host = PluginHost()
    host.load_entry_points([point])
    assert "'ghost' (trivet_no_such_module" in str(host.failures["ghost"])
    with pytest.raises(Unsupported, match=r"backend 'ghost' cannot be used: .*ModuleNotFoundError"):
        host.backend("ghost")


def test_what_failed_to_register_is_not_asked_for_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raises:
        @hookimpl
        def trivet_backend(self) -> None:
            raise RuntimeError("no driver")

    class Point(EntryPoint):
        def load(self) -> object:
            return {"good": GoodPlugin(), "odd": Raises()}[self.name]

    host = PluginHost()
    host.load_entry_points([Point(name, "", "trivet.plugins") for name in ("odd", "good")])
    assert (set(host.backends), set(host.failures)) == ({"good"}, {"odd"})


def test_an_unknown_backend_names_those_that_exist() -> None:
    with pytest.raises(Unsupported, match=r"'tpu' is not installed; installed: .*cpu"):
        load_plugins().backend("tpu")


def test_the_installed_plugins_offer_the_four_backends() -> None:
    assert set(load_plugins().backends) >= {"cpu", "cuda", "ascend", "null"}


def test_every_hook_has_a_docstring() -> None:
    hooks = [name for name in vars(HookSpecs) if name.startswith("trivet_")]
    assert hooks
    assert all(getattr(HookSpecs, name).__doc__ for name in hooks)


def test_an_unknown_launcher_names_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"'slurm' is not installed; installed: .*local"):
        load_plugins().launcher(Settings(launcher="slurm"))
    assert load_plugins().launcher(Settings()).name == "local"
