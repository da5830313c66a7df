"""What a stranger's backend answers becomes a reason, never a traceback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from msgspec import structs

from trivet.contract import DeviceInfo
from trivet.demo_model import find_demo_model
from trivet.engine.assembly import assemble
from trivet.engine.backend_answers import NoDevice
from trivet.engine.placement import Placement, place
from trivet.engine_settings import EngineSettings
from trivet.errors import DoesNotFit, Unsupported
from trivet.models.model_files import ModelFiles, open_model
from trivet.models.spec import ModelSpec, Rope
from trivet.plugins import PluginHost, hookimpl
from trivet_null.backend import NullBackend

SETTINGS = EngineSettings(max_model_len=64, max_num_seqs=2)


class Strange(NullBackend):
    """A backend of another name whose members the tests replace."""

    name = "strange"


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    return open_model(find_demo_model())


@pytest.fixture
def backend() -> Strange:
    return Strange()


@pytest.fixture
def try_place(backend: Strange, files: ModelFiles) -> Callable[..., Placement]:
    class Plugin:
        @hookimpl
        def trivet_backend(self) -> Strange:
            return backend

    host = PluginHost()
    host.register(Plugin(), "strange")

    def placed(settings: EngineSettings = SETTINGS, of: ModelFiles = files) -> Placement:
        return place(host, of, settings, backend.name)

    return placed


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("member", ["check", "plan"])
@pytest.mark.parametrize(
    "error", [KeyError("vram"), AttributeError("x"), ImportError("no vendorlib"), ZeroDivisionError("0")]
)
def test_a_strangers_exception_names_backend_member_and_place(
    backend: Strange, try_place: Callable[..., Placement], member: str, error: Exception
) -> None:
    setattr(backend, member, _raising(error))
    with pytest.raises(Unsupported) as caught:
        try_place()
    told = f"backend strange is faulty: {member} raised {type(error).__name__}: {error} (test_backend_answers"
    assert str(caught.value).startswith(told)


def test_a_refusal_keeps_its_own_words(backend: Strange, try_place: Callable[..., Placement]) -> None:
    backend.plan = _raising(DoesNotFit("it needs more"))  # type: ignore[method-assign]
    with pytest.raises(DoesNotFit, match=r"^it needs more$"):
        try_place()


@pytest.mark.parametrize(
    ("member", "answer", "told"),
    [
        ("plan", None, "plan returned None and must return a MemoryPlan"),
        ("plan", {"num_blocks": 3}, "plan returned a value of type dict"),
    ],
)
def test_an_answer_of_another_type_is_named(
    backend: Strange, try_place: Callable[..., Placement], member: str, answer: object, told: str
) -> None:
    setattr(backend, member, lambda *_: answer)
    with pytest.raises(Unsupported, match=f"backend strange is faulty: {told}"):
        try_place()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_blocks": 7}, r"wrong value: Expected `array`, got `int` - at `\$.num_blocks`"),
        ({"max_model_len": None}, r"wrong value: .*max_model_len"),
        ({"parts": None}, r"wrong value: .*parts"),
        ({"kv": object()}, "wrong value: .*object"),
        ({"num_blocks": ()}, r"plan has \[\] blocks"),
        ({"num_blocks": (0,)}, r"plan has \[0\] blocks"),
        ({"max_num_batched_tokens": 0}, "steps of 0 tokens"),
    ],
)
def test_a_plan_with_wrong_values_is_named(
    backend: Strange, try_place: Callable[..., Placement], changes: dict[str, Any], told: str
) -> None:
    whole = try_place().plan
    backend.plan = lambda *_: replace(whole, **changes)  # type: ignore[method-assign]
    with pytest.raises(Unsupported, match=r"^backend strange is faulty: its plan ") as caught:
        try_place()
    assert caught.match(told)


def test_a_library_that_the_runner_lacks_is_named(
    backend: Strange, files: ModelFiles, try_place: Callable[..., Placement]
) -> None:
    placed = try_place()
    backend.create_runner = _raising(ImportError("No module named 'vendor'"))  # type: ignore[method-assign]
    with pytest.raises(Unsupported, match=r"backend strange cannot make its runner: ImportError: No module"):
        assemble(files, placed, SETTINGS)
    backend.create_runner = lambda *_: None  # type: ignore[method-assign, assignment]
    with pytest.raises(Unsupported, match="create_runner returned None and must return a Runner"):
        assemble(files, placed, SETTINGS)


# ---- devices ----


def test_a_probe_that_fails_is_a_reason(backend: Strange, try_place: Callable[..., Placement]) -> None:
    backend.probe = _raising(KeyError("vram"))  # type: ignore[method-assign]
    with pytest.raises(NoDevice, match=r"strange has no usable device here .*probe raised KeyError: 'vram'"):
        try_place()


def _device(index: int, fault: str | None = None) -> DeviceInfo:
    return DeviceInfo(
        "strange", index, f"dev{index}", "", "", 1 << 40, 1 << 40, frozenset({"f32"}), (), fault
    )


def test_too_few_devices_are_counted(backend: Strange, try_place: Callable[..., Placement]) -> None:
    backend.probe = lambda *_: [_device(0), _device(1, "ECC error")]  # type: ignore[method-assign]
    with pytest.raises(Unsupported) as caught:
        try_place(EngineSettings(tensor_parallel_size=2))
    assert str(caught.value) == (
        "backend strange has 1 usable device here and tensor_parallel_size 2 needs 2 (dev1: ECC error); "
        "set at most 1"
    )
    backend.probe = lambda *_: []  # type: ignore[method-assign]
    with pytest.raises(NoDevice, match=r"^backend strange has no usable device here \(it found none\)$"):
        try_place()


# ---- the context ----


def _with_rope(files: ModelFiles, rope: Rope) -> ModelFiles:
    assert files.spec is not None
    kinds = tuple(replace(kind, attention=replace(kind.attention, rope=rope)) for kind in files.spec.kinds)
    return replace(files, spec=replace(files.spec, kinds=kinds))


def test_a_context_beyond_the_models_own_is_refused_with_both_numbers(
    files: ModelFiles, try_place: Callable[..., Placement]
) -> None:
    assert try_place(EngineSettings(max_model_len=8192, max_num_seqs=1)).plan.max_model_len == 8192
    with pytest.raises(Unsupported) as caught:
        try_place(EngineSettings(max_model_len=8193))
    assert str(caught.value) == (
        f"max_model_len 8193 is beyond the 8192 tokens that {files.name} was made for; set at most 8192"
    )


def test_a_dynamic_rope_and_an_unknown_context_set_no_limit(
    files: ModelFiles, try_place: Callable[..., Placement]
) -> None:
    settings = EngineSettings(max_model_len=9000, max_num_seqs=1)
    for free in (
        _with_rope(files, Rope(64, scaling="dynamic", factor=2.0, original_max_len=8192)),
        replace(files, context_length=0),
    ):
        assert try_place(settings, free).plan.max_model_len == 9000
    with pytest.raises(Unsupported, match="beyond the 8192"):
        try_place(settings, _with_rope(files, Rope(64, scaling="llama3", factor=2.0)))


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_a_dynamic_rope_of_a_model_without_a_spec_is_read_in_its_config(
    files: ModelFiles, try_place: Callable[..., Placement], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    assert files.spec is not None
    outline: ModelSpec = replace(files.spec, shapes_only=True)
    monkeypatch.setattr("trivet.engine.placement.outline_spec", lambda config, num_tokens: outline)
    settings = EngineSettings(max_model_len=9000, max_num_seqs=1)
    for name, is_free in (("dynamic", True), ("yarn", False)):
        config = MappingProxyType({key: {"rope_type": name, "factor": 2.0}})
        other = replace(files, spec=None, config=config)
        if is_free:
            assert try_place(settings, other).plan.max_model_len == 9000
            continue
        with pytest.raises(Unsupported, match="beyond the 8192"):
            try_place(settings, other)


def test_a_context_of_one_token_is_refused(try_place: Callable[..., Placement]) -> None:
    with pytest.raises(Unsupported, match=r"max_model_len 1 is too short: a context needs at least 2 tokens"):
        try_place(EngineSettings(max_model_len=1))
    with pytest.raises(DoesNotFit, match=r"leaves a context of 1 token and 2 are needed"):
        try_place(EngineSettings(block_size=1, num_gpu_blocks_override=2))


def test_slots_for_adapters_are_refused_before_the_weights_are_read(
    backend: Strange, try_place: Callable[..., Placement], files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner that does not declare them, of a backend whose check has let them pass."""
    monkeypatch.setattr(backend, "check", lambda *_: None)
    settings: EngineSettings = structs.replace(SETTINGS, max_loras=2)
    read: list[int] = []
    with pytest.raises(Unsupported, match=r"backend strange serves no adapters \(LoRA\) with this model"):
        assemble(files, try_place(settings), settings, lambda done, total: read.append(done))
    assert not read
