"""What `trivet config diff` and `apply` find to do."""

from __future__ import annotations

import pytest

from trivet.commands.site_changes import steps
from trivet.commands.site_document import (
    DeploymentEntry,
    Document,
    KeyEntry,
    ModelEntry,
    VersionEntry,
    decode,
)
from trivet.errors import ConfigError

A, X = VersionEntry(path="/a.gguf"), VersionEntry(source="hf:org/x", digest="sha256:x")
B, B_READ = VersionEntry(path="/b.gguf"), VersionEntry(path="/b.gguf", digest="sha256:b")


def _document(model: str, *versions: VersionEntry) -> Document:
    return Document(
        models={"m": ModelEntry(versions=list(versions))}, deployments={"d": DeploymentEntry(model=model)}
    )


@pytest.mark.parametrize(
    ("site", "wanted", "texts"),
    [
        (_document("m:2", A, B), _document("m:2", A, B), []),
        (_document("m:3", A, X, B), _document("m:2", A, B), []),
        (_document("m:3", A, X, B_READ), _document("m:2", A, B), []),
        (
            _document("m:2", A, X, B),
            _document("m:2", A, B),
            ["~ deployment d: model m sha256:x to m /b.gguf"],
        ),
        (
            _document("m:2", A, X),
            _document("m:2", A, B),
            ["+ version of m from /b.gguf", "~ deployment d: model m sha256:x to m /b.gguf"],
        ),
        (_document("m:1", A, B), _document("m:prod", A, B), ["~ deployment d: model m /a.gguf to m:prod"]),
        (_document("m:2", A, X), Document(deployments={"d": DeploymentEntry(model="m:2")}), []),
        (Document(), _document("m:1", A), ["+ version of m from /a.gguf", "+ deployment d of m:1"]),
    ],
)
def test_a_number_is_the_version_at_that_place_of_its_own_document(
    site: Document, wanted: Document, texts: list[str]
) -> None:
    assert [step.text for step in steps(site, wanted, prunes=False)] == texts


def test_of_settings_and_lists_only_what_differs_is_shown() -> None:
    old, new = ({"dtype": "auto", "seed": 1}, {"dtype": "float32", "seed": 1, "max_num_seqs": 8})
    site, wanted = (
        Document(
            deployments={"d": DeploymentEntry(model="m:prod", given=given)},
            keys=[KeyEntry(name="k", models=models)],
        )
        for given, models in ((old, ["a", "b"]), (new, None))
    )
    assert [step.text for step in steps(site, wanted, prunes=False)] == [
        "~ deployment d: dtype auto to float32, max_num_seqs none to 8",
        "~ key k: models a,b to none",
    ]


def test_a_table_that_is_unknown_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown key 'deployment'; did you mean 'deployments'"):
        decode(b"[deployment.d]\nmodel = 'm:1'\n", "site.toml")
