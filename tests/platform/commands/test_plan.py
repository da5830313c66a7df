"""`trivet plan` and `devices`."""

from __future__ import annotations

import json
import subprocess
import sys

from trivet.contract import DeviceInfo
from trivet.demo_model import find_demo_model

MODEL = str(find_demo_model())


def test_the_plan_of_a_file_needs_no_server_and_no_torch() -> None:
    code = (
        "import sys\nfrom trivet import cli\n"
        f"code = cli.main(['plan', {MODEL!r}, '--backend', 'cpu'])\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fits on cpu host\n  weights")


def test_the_report_tells_parts_blocks_and_sequences(trivet) -> None:
    arguments = ["--backend", "null", "--set", "max_model_len=1024", "--set", "num_gpu_blocks_override=17"]
    text = trivet("plan", MODEL, *arguments).out
    plan = json.loads(trivet("plan", MODEL, *arguments, "--json").out)
    assert plan["num_blocks"] == [17]
    assert plan["block_size"] == 128
    total = sum(part["size_bytes"] for part in plan["parts"]) / 2**20
    assert f"total          {f'{total:.1f} MiB':>12}" in text
    assert "17 blocks of 128 tokens = 2,048 tokens" in text
    assert "context 1,024 tokens: 2 sequences of full length at once" in text
    assert f"{plan['kv_token_bytes']:,} bytes a token in int32" in text


def test_what_does_not_fit_gives_the_reason_and_exits_1(trivet) -> None:
    done = trivet("plan", MODEL, "--backend", "cpu", "--set", "gpu_memory_utilization=0.0001")
    assert done.code == 1
    assert done.out.startswith("does not fit: ")
    shown = trivet("plan", MODEL, "--backend", "cpu", "--set", "gpu_memory_utilization=0.0001", "--json")
    assert json.loads(shown.out)["fits"] is False


def test_what_would_make_it_fit_does(trivet) -> None:
    asked = ["--set", "max_model_len=8192", "--set", "gpu_memory_utilization=0.014"]
    plan = json.loads(trivet("plan", MODEL, "--backend", "cpu", *asked, "--json").out)
    assert not plan["fits"]
    changes = {change["setting"]: change["value"] for change in plan["changes"]}
    assert {"max_model_len", "gpu_memory_utilization"} <= set(changes)
    for setting, value in changes.items():
        tried = trivet("plan", MODEL, "--backend", "cpu", *asked, "--set", f"{setting}={value}", "--json")
        assert json.loads(tried.out)["fits"], setting


def test_every_device_that_was_looked_at_answers(trivet) -> None:
    text = trivet("plan", MODEL).out
    assert "backend cuda has no usable device here" in text
    (line,) = (line for line in text.splitlines() if line.startswith("cpu host: "))
    assert "instances hold 0.0 MiB" in line


def test_a_faulty_backend_is_a_reason_not_a_traceback(trivet, monkeypatch) -> None:
    monkeypatch.setattr("trivet_null.backend.NullBackend.plan", lambda *_: None)
    done = trivet("plan", MODEL, "--backend", "null")
    assert done.code == 1
    assert done.out.startswith("does not fit: backend null is faulty: plan returned None")


def test_a_backend_that_does_not_exist_is_named(trivet) -> None:
    assert "backend 'tpu' is not installed" in trivet("plan", MODEL, "--backend", "tpu").out


def test_a_name_asks_the_server(site, trivet) -> None:
    assert trivet("plan", "smollm2", "--set", "seed=1").out.startswith("fits on cpu host\n")
    assert site.requests[-1][2] == {
        "model": "smollm2",
        "backend": "auto",
        "device": None,
        "settings": {"seed": "1"},
    }


def test_a_path_asks_the_server_that_is_named(site, trivet) -> None:
    assert trivet("plan", MODEL, "--url", site.url).code == 0
    assert site.requests[-1][1] == "/platform/v1/plan"


def test_a_path_asks_the_server_of_this_home_which_knows_what_is_held(site, trivet, tmp_path) -> None:
    (tmp_path / "home" / "run" / "url").write_text(site.url)
    assert trivet("plan", MODEL).code == 0
    assert site.requests[-1][1] == "/platform/v1/plan"


def test_a_server_that_was_killed_is_not_asked_for_the_plan_of_a_file(trivet, tmp_path, monkeypatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "url").write_text("http://127.0.0.1:9")
    monkeypatch.setenv("TRIVET_HOME", str(tmp_path))
    assert trivet("plan", MODEL, "--backend", "null").out.startswith("fits on null")


def test_devices_of_this_host(trivet) -> None:
    assert "usable" in next(line for line in trivet("devices").out.splitlines() if line.startswith("cpu"))
    kinds = {device["kind"] for device in json.loads(trivet("devices", "--json").out)}
    assert "cpu" in kinds
    assert "null" not in kinds
    assert "null" in {device["kind"] for device in json.loads(trivet("devices", "--all", "--json").out)}


def test_an_absent_or_unusable_device_shows_why(trivet, monkeypatch) -> None:
    class Broken:
        name = "npu"

        def probe(self, timeout_s: float) -> list[DeviceInfo]:
            return [DeviceInfo("npu", 0, "npu0", "910B", "910B", 0, 0, frozenset(), (), "driver is missing")]

    class Absent(Broken):
        name = "gpu"

        def probe(self, timeout_s: float) -> list[DeviceInfo]:
            return []

    class Host:
        backends = {"npu": Broken(), "gpu": Absent()}  # noqa: RUF012

    monkeypatch.setattr("trivet.commands.devices.load_plugins", Host)
    gpu, npu = trivet("devices").out.splitlines()[1:]
    assert gpu.startswith("gpu")
    assert gpu.endswith("no device found")
    assert npu.endswith("driver is missing")
