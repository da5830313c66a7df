"""One site over two hosts of a Ray cluster: an interpreted GPU on the one, an emulated NPU on the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import RayCluster
from far_hosts import FarHost, wait_for
from head import Head, Stream, engines_of

from trivet.contract_suite.tiny_models import make_tiny_model

GPU, NPU = "cuda-interpreted", "ascend-emulated"
TINY = {
    "dtype": "f32",
    "max_model_len": "256",
    "max_num_seqs": "2",
    "max_num_batched_tokens": "32",
    "num_gpu_blocks_override": "40",
    "options.self_test": "off",
}
NULL = {"options.step_ms": "20", "max_model_len": "8192"}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {f"t{n}": n for n in range(160)}, "unk_token": "t0"},
}
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
CLAIMS = """
import json, sys, ray
ray.init(sys.argv[1], log_to_driver=False)
groups = ray.util.placement_group_table().values()
print("claims", json.dumps(sorted(
    [g["name"].split("/")[1], *sorted(k for k in b if not k.startswith("node"))]
    for g in groups if g["state"] == "CREATED" for b in g["bundles"].values()
)))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model: Path = make_tiny_model("qwen3", tmp_path_factory.mktemp("models"))
    (model / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return model


def claims(cluster: RayCluster) -> list[list[str]]:
    """Host and resources of each bundle that Ray has given away."""
    done = subprocess.run(
        [sys.executable, "-c", CLAIMS, cluster.environ["TRIVET_RAY_ADDRESS"]],
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("claims ")]
    assert lines, done.stderr
    found: list[list[str]] = json.loads(lines[0].removeprefix("claims "))
    return found


def test_a_gpu_of_one_host_and_an_npu_of_another_serve_one_site(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost], tiny: Path
) -> None:
    for name, backend in (("on-gpu", GPU), ("on-npu", NPU)):
        head.launch_model(tiny, name, backend, TINY)
    assert (head.where("on-gpu"), head.where("on-npu")) == ("a", "b")
    assert engines_of(hosts) == {"a": 1, "b": 1}
    question = [{"role": "user", "content": "t1 t2 t3"}]
    with head.client() as client:
        answers = [
            client.chat.complete(name, question, temperature=0, max_tokens=4, ignore_eos=True)
            for name in ("on-gpu", "on-npu")
        ]
    assert [answer.usage.completion_tokens for answer in answers if answer.usage] == [4, 4]
    assert answers[0].text == answers[1].text, "one float32 model, whatever computes it"
    wait_for("Ray knows who has them", lambda: claims(cluster) == [["a", "GPU"], ["b", "NPU"]])

    devices = head.run("devices")
    assert "a/interpreted" in devices
    assert "b/emulated" in devices
    why = [d.unusable_because or "" for d in head.devices() if d.uid == "head/?"]
    assert "did you mean 'launcher'?" in why[0], "why no agent runs on the site's own host"
    ps = head.run("ps")
    assert "a/interpreted" in ps
    assert "b/emulated" in ps
    assert head.run("logs", "on-gpu")
    assert head.run("logs", "on-npu")
    plan = head.run("plan", str(tiny), "--backend", f"{NPU},{GPU}", "--set", "max_model_len=256")
    assert "b/emulated" in plan
    (pid,) = hosts["a"].engines()
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"TRITON_INTERPRET=1" in environ, "as the host's own trivet.toml says"
    assert b"CUDA_VISIBLE_DEVICES=interpreted" in environ, "as its own host names it"
    assert not [each for each in environ if each.startswith(b"RAY_")]
    for name in ("on-gpu", "on-npu"):
        head.stop(name)
    wait_for("Ray has everything back", lambda: claims(cluster) == [])


def test_a_head_that_is_started_anew_touches_no_stream(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost]
) -> None:
    head.launch("m", "a/null", **NULL)
    stream = Stream(head, "m", 8000)
    wait_for("it has begun", lambda: stream.num_chunks > 3 or stream.failure)
    pid = head.instance("m").pid
    cluster.restart_head(hosts.values())
    wait_for("Ray knows of its engine again", lambda: claims(cluster) == [["a", "null"]])
    stream.goes_on()
    assert (head.instance("m").state, head.instance("m").pid) == ("ready", pid)
    head.stop("m")
