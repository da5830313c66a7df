"""Dockerfiles by hadolint, compose.yaml by Compose's schema, manifests by Kubernetes' schemas."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

IMAGES = ("cpu", "cuda", "ascend")
KUBERNETES = ("1.29", "1.35")  # the oldest that people run, and a new one


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_finds_nothing(checkout: Path, image: str) -> None:
    done = run("hadolint", "--no-color", checkout / "docker" / f"Dockerfile.{image}")
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian\nRUN sudo apt-get install g++\n")
    assert run("hadolint", tmp_path / "Dockerfile").returncode != 0


def test_compose_keeps_to_its_schema(checkout: Path, tmp_path: Path) -> None:
    schema = ("check-jsonschema", "--builtin-schema", "vendor.compose-spec")
    done = run(*schema, checkout / "docker" / "compose.yaml")
    assert done.returncode == 0, done.stdout
    wrong = (checkout / "docker" / "compose.yaml").read_text().replace("restart:", "restarts:", 1)
    (tmp_path / "wrong.yaml").write_text(wrong)
    assert run(*schema, tmp_path / "wrong.yaml").returncode != 0


def kustomized(folder: Path) -> list[dict[str, Any]]:
    """What `kubectl kustomize` makes of the few things that our folders use."""
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text())
    made: list[dict[str, Any]] = []
    for resource in plan["resources"]:
        place = folder / resource
        made += kustomized(place) if place.is_dir() else list(yaml.safe_load_all(place.read_text()))
    for patch in plan.get("patches", ()):
        kind, name = patch["target"]["kind"], patch["target"]["name"]
        (target,) = [each for each in made if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        for change in yaml.safe_load(patch["patch"]):
            *above, last = [part.replace("~1", "/") for part in change["path"].split("/")[1:]]
            place: Any = target
            for part in above:
                place = place[int(part) if isinstance(place, list) else part]
            assert (last in place) == (change["op"] == "replace"), change
            place[last] = change["value"]
    for image in plan.get("images", ()):
        for container in [c for each in made if each["kind"] == "Deployment" for c in containers(each)]:
            name, _, _ = container["image"].partition(":")
            if name == image["name"]:
                container["image"] = f"{name}:{image['newTag']}"
    return made


def containers(deployment: dict[str, Any]) -> list[dict[str, Any]]:
    return list(deployment["spec"]["template"]["spec"]["containers"])


@pytest.mark.parametrize(
    ("folder", "image", "resource"),
    [
        ("base", "cpu", "cpu"),
        ("cuda", "cuda", "nvidia.com/gpu"),
        ("ascend", "ascend", "huawei.com/Ascend910"),
    ],
)
@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_object(
    checkout: Path, folder: str, image: str, resource: str, version: str
) -> None:
    made = kustomized(checkout / "docker" / "kubernetes" / folder)
    assert sorted(each["kind"] for each in made) == [
        *("Deployment", "PersistentVolumeClaim", "PersistentVolumeClaim", "Service")
    ]
    for each in made:
        kubernetes_validate.validate(each, version, strict=True)
    (deployment,) = [each for each in made if each["kind"] == "Deployment"]
    (container,) = containers(deployment)
    assert container["image"] == f"trivet:{image}"
    assert resource in {**container["resources"]["requests"], **container["resources"]["limits"]}
    container["resource"] = container.pop("resources")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, version, strict=True)
