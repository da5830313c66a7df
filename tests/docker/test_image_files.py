"""What images, compose.yaml and Kubernetes manifests promise; `tests/run images` lints and runs them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCKER = Path(__file__).parent.parent.parent / "docker"
IMAGES = ("cpu", "cuda", "ascend")
STOP_S = 60  # drain_timeout_s and what ends after it


def instructions(image: str) -> list[tuple[str, str]]:
    """Without comments; lines that are continued are one."""
    text = re.sub(r"^#.*\n", "", (DOCKER / f"Dockerfile.{image}").read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DOCKER / "compose.yaml").read_text()))


def deployment() -> dict[str, Any]:
    return dict(yaml.safe_load((DOCKER / "kubernetes" / "base" / "deployment.yaml").read_text()))


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_serves_as_nobody_special_with_prebuilt_kernels_and_a_health_check(image: str) -> None:
    steps = instructions(image)
    assert [rest for word, rest in steps if word == "USER"][-1] == "10001:10001"
    assert "kernels build --isa all --output /opt/trivet/kernels" in " ".join(rest for _, rest in steps)
    assert any(word == "ENV" and "TRIVET_KERNELS_DIR=/opt/trivet/kernels" in rest for word, rest in steps)
    (check,) = [rest for word, rest in steps if word == "HEALTHCHECK"]
    assert "/health/live" in check
    (command,) = [rest for word, rest in steps if word == "CMD"]
    assert command == '["trivet", "serve", "--host", "0.0.0.0", "--insecure"]'
    (entry,) = [rest for word, rest in steps if word == "ENTRYPOINT"]
    assert entry.startswith('["tini", "--"'), "engines that outlive their supervisor are reaped"


@pytest.mark.parametrize("image", IMAGES)
def test_what_an_image_copies_is_in_its_context(image: str) -> None:
    ignored = (DOCKER.parent / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    copied = [
        rest.split()[0] for word, rest in instructions(image) if word == "COPY" and "--from" not in rest
    ]
    assert copied
    assert {path for path in copied if path != "."} <= allowed
    assert not [path for path in allowed if not (DOCKER.parent / path).exists()]


@pytest.mark.parametrize(
    ("profile", "dockerfile", "target"),
    [
        ("cpu", "Dockerfile.cpu", None),
        ("cuda", "Dockerfile.cuda", None),
        ("ascend", "Dockerfile.ascend", "ascend"),
        ("mixed", "Dockerfile.ascend", "mixed"),
    ],
)
def test_each_profile_builds_an_image_that_there_is(
    profile: str, dockerfile: str, target: str | None
) -> None:
    service = compose()["services"][profile]
    assert service["profiles"] == [profile]
    assert service["build"]["dockerfile"] == f"docker/{dockerfile}"
    assert service["build"].get("target") == target
    stages = [rest.split()[-1] for word, rest in instructions(dockerfile.partition(".")[2]) if word == "FROM"]
    assert target is None or target in stages
    assert int(service["stop_grace_period"].removesuffix("s")) >= STOP_S
    assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "there is no TLS"


def test_a_site_drains_before_kubernetes_ends_it_and_can_be_reached_before_a_model_is_launched() -> None:
    spec = deployment()["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["strategy"]["type"] == "Recreate", "two may not serve one home"
    assert pod["terminationGracePeriodSeconds"] >= STOP_S
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["path"] == "/health/live"
    assert pod["securityContext"]["runAsUser"] == 10001


def test_the_account_of_the_manifests_is_that_of_the_images() -> None:
    for image in IMAGES:
        assert any("useradd --uid 10001 " in rest for _, rest in instructions(image))


@pytest.mark.parametrize(("given", "ends"), [(None, "/driver"), ("/opt/lib", "/driver:/opt/lib")])
def test_no_library_is_looked_for_in_the_current_folder(given: str | None, ends: str) -> None:
    environ = {"PATH": os.environ["PATH"]} | ({"LD_LIBRARY_PATH": given} if given else {})
    command = ["bash", str(DOCKER / "with_cann.sh"), "bash", "-c", 'printf %s "$LD_LIBRARY_PATH"']
    told = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.endswith(ends)
    assert "" not in told.stdout.split(":")
