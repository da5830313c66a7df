"""The torch-free half: what the supervisor calls, in a process that must not load a device library."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from trivet.contract import DeviceInfo, Feature
from trivet.contract_suite.subject import Subject
from trivet.errors import TrivetError, Unsupported

# Importing these in the supervisor costs seconds, memory, or a context on the device.
FORBIDDEN = ("torch", "torch_npu", "transformers", "triton", "acl", "pynvml", "cupy")

PLAN_WITHOUT_TORCH = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {forbidden!r}:
            raise ImportError(f"{{name}} was imported in the torch-free half")

sys.meta_path.insert(0, Refuse())
from trivet.contract import RunnerConfig
from trivet.models.model_files import open_model
from trivet.plugins import load_plugins

backend = load_plugins().backend({name!r})
device = next(d for d in backend.probe(20.0) if d.unusable_because is None)
backend.launch_env([device])
files = open_model({path!r})
config = RunnerConfig(dtype={dtype!r}, max_model_len=256, num_blocks=65, options={options!r})
backend.check(files.spec, files.weights, config, device)
print(backend.plan(files.spec, files.weights, config, [device]).total_bytes)
"""


def test_probe_check_and_plan_import_no_device_library(subject: Subject) -> None:
    """In a fresh interpreter where those imports are errors."""
    code = PLAN_WITHOUT_TORCH.format(
        forbidden=FORBIDDEN,
        name=subject.backend.name,
        path=str(subject.models.files("llama").path),
        dtype=subject.dtype,
        options=subject.options,
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_probe_describes_each_device(subject: Subject) -> None:
    """Also with no time to spare; it never raises."""
    for timeout_s in (20.0, 0.0):
        for device in subject.backend.probe(timeout_s):
            assert isinstance(device, DeviceInfo)
            assert device.kind == subject.backend.name
            assert device.uid
            if device.unusable_because is None:
                assert 0 < device.free_bytes <= device.total_bytes
                assert device.dtypes


def test_devices_have_the_same_uid_each_time(subject: Subject) -> None:
    """A deployment names its devices by it."""
    first, second = ([device.uid for device in subject.backend.probe(20.0)] for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)


def test_launch_env_is_text(subject: Subject) -> None:
    """It goes into a process's environment as it is."""
    env = subject.backend.launch_env([subject.device])
    assert {type(text) for pair in env.items() for text in pair} <= {str}


@pytest.mark.parametrize(
    "changes",
    [{"dtype": "f13"}, {"kv_dtype": "f13"}, {"options": {"no_such_option": "1"}}, {"tensor_parallel": 4096}],
    ids=["dtype", "kv_dtype", "option", "tensor_parallel"],
)
def test_a_setting_that_cannot_be_met_is_refused_by_name(subject: Subject, changes: dict[str, Any]) -> None:
    """Before launch, naming the setting or its value."""
    files, config = subject.models.files("llama"), subject.config(**changes)
    with pytest.raises(Unsupported) as refusal:
        subject.backend.check(subject.models.spec("llama"), files.weights, config, subject.device)
    named = next(iter(changes.values()))
    words = [*named, *named.values()] if isinstance(named, dict) else [next(iter(changes)), str(named)]
    assert any(word in str(refusal.value) for word in words), str(refusal.value)
    assert isinstance(refusal.value, TrivetError)


def test_a_runner_declares_what_it_can_do(subject: Subject) -> None:
    """Features of the contract's enumeration, and one or two steps in flight."""
    runner = subject.driver().runner
    assert all(isinstance(feature, Feature) for feature in runner.features)
    assert runner.max_in_flight in (1, 2)
