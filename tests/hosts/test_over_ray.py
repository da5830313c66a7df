"""One site over two hosts of a Ray cluster: interpreted GPUs on the one, an emulated NPU on the other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
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
NULL = {"options.step_ms": "50", "max_model_len": "8192"}
BOTH = {"tensor_parallel_size": "2"}  # of the GPUs of host a
ON_BOTH = [["a", "GPU"]] * 2
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


@pytest.fixture(scope="module")
def on_gpus(head: Head, hosts: dict[str, FarHost], tiny: Path) -> Iterator[str]:
    """A model over both GPUs of host a, for all tests here: torch takes its time to load."""
    name = "on-gpus"
    head.knows(*hosts.values())
    head.launch_model(tiny, name, GPU, {**TINY, **BOTH})
    yield name
    if head.instances(name):
        head.stop(name)


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


def no_gpu_is_left(head: Head, model: Path) -> None:
    """One that fits beside what runs is refused by Ray, with a sentence."""
    with head.client() as client:
        client.deployments.create(str(model), name="third", backend=GPU, settings=TINY)
    refusal = "Ray has not 1 x 1 GPU left on host a, where engines of this site have 2 of 2"
    wait_for(
        "Ray refuses a third",
        lambda: any(refusal in reason for reason in head.reasons("third")),
        tell=lambda: head.reasons("third"),
    )
    head.stop("third")


def test_two_gpus_of_one_host_and_an_npu_of_another_serve_one_site(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost], tiny: Path, on_gpus: str
) -> None:
    head.launch_model(tiny, "on-npu", NPU, TINY)
    assert head.instance(on_gpus).device_uids == ("a/interpreted", "a/interpreted1")
    assert head.where("on-npu") == "b"
    assert engines_of(hosts) == {"a": 1, "b": 1}
    question = [{"role": "user", "content": "t1 t2 t3"}]
    with head.client() as client:
        answers = [
            client.chat.complete(name, question, temperature=0, max_tokens=4, ignore_eos=True)
            for name in (on_gpus, "on-npu")
        ]
    assert [answer.usage.completion_tokens for answer in answers if answer.usage] == [4, 4]
    assert answers[0].text == answers[1].text, "one float32 model, whatever computes it"
    wait_for("Ray knows who has them", lambda: claims(cluster) == [*ON_BOTH, ["b", "NPU"]])
    no_gpu_is_left(head, tiny)

    devices = head.run("devices")
    assert "a/interpreted" in devices
    assert "b/emulated" in devices
    assert {d.host for d in head.devices()} == {"a", "b", "head"}
    why = [d.unusable_because or "" for d in head.devices() if d.uid == "head/?"]
    assert "did you mean 'launcher'?" in why[0], "why no agent runs on the site's own host"
    ps = head.run("ps")
    assert "a/interpreted" in ps
    assert "b/emulated" in ps
    assert head.run("logs", on_gpus)
    assert head.run("logs", "on-npu")
    plan = head.run("plan", str(tiny), "--backend", f"{NPU},{GPU}", "--set", "max_model_len=256")
    assert "b/emulated" in plan
    pid = head.instance(on_gpus).pid
    assert pid in hosts["a"].engines()
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"TRITON_INTERPRET=1" in environ, "as the host's own trivet.toml says"
    assert b"CUDA_VISIBLE_DEVICES=interpreted,interpreted1" in environ, "as its own host names them"
    assert not [each for each in environ if each.startswith(b"RAY_")]
    head.stop("on-npu")
    wait_for("Ray has the NPU back", lambda: claims(cluster) == ON_BOTH)


def test_without_ray_all_goes_on_and_its_claims_come_back_with_a_new_head(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost], on_gpus: str
) -> None:
    head.launch("m", "a/null", **NULL)
    stream = Stream(head, "m", 8000)
    wait_for("it has begun", lambda: stream.num_chunks > 3 or stream.failure)
    before = [head.instance(name).pid for name in ("m", on_gpus)]
    cluster.end(hosts.values())
    head.launch("new", "b/null", **NULL)
    stream.goes_on()
    cluster.begin_anew(hosts.values())
    wait_for(
        "Ray knows of its engines again",
        lambda: claims(cluster) == [*ON_BOTH, ["a", "null"], ["b", "null"]],
        tell=lambda: claims(cluster),
    )
    stream.goes_on()
    assert [head.instance(name).pid for name in ("m", on_gpus)] == before
    for name in ("m", "new"):
        head.stop(name)


def test_a_host_that_dies_loses_engines_and_claims(
    head: Head, cluster: RayCluster, hosts: dict[str, FarHost], on_gpus: str
) -> None:
    head.launch("anywhere", **NULL)
    head.launch("at-b", "b/null", **NULL)
    first = head.where("anywhere")
    assert first in hosts, head.reasons("anywhere")
    before = [head.instance(name).pid for name in (on_gpus, "at-b")]
    hosts["a"].kill()
    for name in [on_gpus] + ["anywhere"] * (first == "a"):
        wait_for(
            f"{name} is given up, and why is told",
            lambda one=name: (
                head.where(one) != "a"
                and any("host a has not answered for" in reason for reason in head.reasons(one))
            ),
            tell=lambda one=name: head.reasons(one),
        )
    wait_for("one is at b", lambda: head.where("anywhere") == "b", tell=lambda: head.reasons("anywhere"))
    cluster.join(hosts["a"])
    wait_for("one is started again", lambda: head.where(on_gpus) == "a", tell=lambda: head.reasons(on_gpus))
    assert head.instance(on_gpus).pid != before[0]
    assert head.where("anywhere") == "b", "what is well is left where it is"
    assert head.instance("at-b").pid == before[1]
    wait_for("Ray counts its devices once", lambda: claims(cluster) == [*ON_BOTH, *[["b", "null"]] * 2])
    for name in ("anywhere", "at-b", on_gpus):
        head.stop(name)
    wait_for("Ray has everything back", lambda: claims(cluster) == [])
