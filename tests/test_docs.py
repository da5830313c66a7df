"""Whatever users rely on by name stands in the README."""

from __future__ import annotations

import re
import textwrap
import types
from pathlib import Path

import pytest

from trivet.commands import core_commands
from trivet.config import BackendSettings, Settings, load_settings
from trivet.engine_settings import EngineSettings
from trivet.metrics import METRICS
from trivet.plugins import HookSpecs, PluginHost, load_plugins
from trivet_web.app import create_app

README = (Path(__file__).parent.parent / "README.md").read_text()


def python_blocks() -> list[str]:
    return [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)]


@pytest.mark.parametrize("name", [name for name in vars(HookSpecs) if name.startswith("trivet_")])
def test_every_hook_is_named(name: str) -> None:
    assert f"`{name}`" in README


@pytest.mark.parametrize(
    "name",
    [
        name
        for settings in (Settings, BackendSettings, EngineSettings)
        for name in settings.__struct_fields__
        if name != "backend"
    ],
)
def test_every_setting_is_named(name: str) -> None:
    assert f"`{name}`" in README


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_named(metric: object) -> None:
    assert f"`{metric.name}`" in README  # type: ignore[attr-defined]  # pytest hands it on untyped


def test_every_route_is_named(tmp_path: Path) -> None:
    app = create_app(load_settings({"home": str(tmp_path)}, {}))
    missing = [rule.rule for rule in app.url_map.iter_rules() if f"`{rule.rule}`" not in README]
    assert not missing


def test_every_command_is_named() -> None:
    commands = [*core_commands(), *load_plugins().commands]
    assert commands
    assert not [c.name for c in commands if c.is_listed and f"`{c.name}`" not in README]


def test_the_plugin_of_the_readme_registers() -> None:
    (source,) = [block for block in python_blocks() if "hookimpl" in block]
    plugin = types.ModuleType("trivet_tpu")
    exec(compile(source, "README.md", "exec"), vars(plugin))
    host = PluginHost()
    host.register(plugin, "tpu")
    assert host.backend("tpu").probe(1.0)[0].uid == "tpu-0"


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from trivet.demo_model import find_demo_model

    (source,) = [block for block in python_blocks() if "LLM(" in block]
    exec(source.replace("/models/Qwen2.5-0.5B-Instruct", str(find_demo_model())), {})
    assert "The capital of France is" in capsys.readouterr().out
