"""The calls of `/platform/v1` about models, their versions and aliases."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trivet.client.answers import ServedModel
from trivet.client.calls import (
    ROOT,
    C,
    Call,
    Download,
    Group,
    StreamCall,
    ask,
    ask_list,
    call,
    download,
    given,
    nothing,
    place,
    stream,
)
from trivet.client.results import (
    Alias,
    AliasMove,
    Bundle,
    FoundFiles,
    Model,
    Verified,
    Version,
    VersionDetails,
)


class Models(Group[C]):
    """The registry of models.

    >>> version = client.models.add(model_path, "smollm2")
    >>> version.name, version.version, version.format
    ('smollm2', 1, 'gguf')
    >>> "smollm2" in [model.name for model in client.models.list()]
    True
    >>> client.models.get("smollm2").versions[0].digest == version.digest
    True
    >>> [file.name for file in client.models.version("smollm2:1").files]
    ['SmolLM2-135M-Instruct.Q4_1.gguf']
    >>> model_path in [files.path for files in client.models.found()]
    True
    >>> client.models.get_served("null").ready
    True
    """

    @call
    def list(self) -> Call[tuple[Model, ...]]:
        """All that are registered."""
        return ask_list(f"{ROOT}/models", Model)

    @call
    def get(self, name: str) -> Call[Model]:
        """Raises: ModelNotFound naming what exists."""
        return ask("GET", f"{ROOT}/models/{place(name)}", Model)

    @call
    def versions(self, model: str | None = None) -> Call[tuple[Version, ...]]:
        """Of one model, or of all. Raises: ModelNotFound."""
        return ask_list(f"{ROOT}/versions", Version, {"model": model})

    @call
    def version(self, reference: str) -> Call[VersionDetails]:
        """All about "model" (its newest version), "model:3" or "model:prod". Raises: ModelNotFound."""
        return ask("GET", f"{ROOT}/versions/{place(reference)}", VersionDetails)

    @call
    def add(
        self, path: str, name: str | None = None, *, verify: bool = True, copy: bool = False
    ) -> Call[Version]:
        """Register a folder or GGUF file of the server's host, which is used where it lies.

        Args:
            verify: read all of it through and remember its SHA-256.
            copy: put its files into the site's store, and use those.

        Raises: ModelFilesError; PermissionDenied outside of the site's `model_roots`.
        """
        body = given(path=path, name=name, verify=None if verify else False, copy=copy or None)
        return ask("POST", f"{ROOT}/models", Version, body=body)

    @call
    def found(self) -> Call[tuple[FoundFiles, ...]]:
        """Model files on the server's host, in the folders of `model_roots` or in the usual ones."""
        return ask_list(f"{ROOT}/model-files", FoundFiles)

    @call
    def remove(self, name: str) -> Call[None]:
        """Forget a model ("name") or one version ("name:version").

        Raises: ModelNotFound; Conflict while it is deployed, or an alias points at the version.
        """
        return ask("DELETE", f"{ROOT}/models/{place(name)}", object).then(nothing)

    @call
    def verify(self, reference: str) -> Call[Verified]:
        """Read all files of a version through and compare them with what was registered.

        Of a version whose files had not been read through, the SHA-256 is remembered now.

        Raises: ModelNotFound.
        """
        return ask("POST", f"{ROOT}/versions/{place(reference)}/verify", Verified)

    @call
    def file(self, reference: str, name: str) -> Call[bytes]:
        """The content of one file of a version, whole: for small ones. Raises: ModelNotFound, NotFound."""
        return ask("GET", _file(reference, name), bytes)

    @stream
    def read_file(self, reference: str, name: str) -> StreamCall[bytes]:
        """The content of a file of any size, as it comes. Raises: as `file`, also in the middle."""
        return StreamCall("GET", _file(reference, name), bytes)

    @download
    def download_file(self, reference: str, name: str, to: str | Path) -> Download:
        """The content into a file, which is there when it is whole. Raises: as `file`; OSError."""
        return Download(StreamCall("GET", _file(reference, name), bytes), Path(to))

    @call
    def export(self, version: str, path: str, *, have: Iterable[str] = ()) -> Call[Bundle]:
        """Write a signed bundle of a version to a file of the server's host.

        Args: have: SHA-256 of files that the other site has (its `store.digests`), which are left out.

        Raises: ModelNotFound; ModelFilesError where a file has changed; Conflict where `path` exists.
        """
        return ask(
            "POST", f"{ROOT}/bundles", Bundle, body={"version": version, "path": path, "have": [*have]}
        )

    @call
    def served(self) -> Call[tuple[ServedModel, ...]]:
        """What can be asked for as `model`, from `/v1/models`."""
        return ask_list("/v1/models", ServedModel)

    @call
    def get_served(self, name: str) -> Call[ServedModel]:
        """Raises: ModelNotFound."""
        return ask("GET", f"/v1/models/{place(name)}", ServedModel)


class Aliases(Group[C]):
    """Movable names of versions: who launches "smollm2:prod" follows the alias.

    >>> version = client.models.add(model_path, "smollm2")
    >>> client.aliases.set("smollm2", "prod", version.version).version
    1
    >>> client.models.version("smollm2:prod").aliases
    ('prod',)
    >>> [(move.from_version, move.to_version) for move in client.aliases.history("smollm2", "prod")]
    [(None, 1)]
    >>> client.aliases.remove("smollm2", "prod")
    >>> client.aliases.list("smollm2")
    ()
    """

    @call
    def list(self, model: str | None = None) -> Call[tuple[Alias, ...]]:
        """Of one model, or of all. Raises: ModelNotFound."""
        return ask_list(f"{ROOT}/aliases", Alias, {"model": model})

    @call
    def set(self, model: str, alias: str, version: int | str) -> Call[Alias]:
        """Make it, or move it: deployments that follow it get the other version, replica by replica.

        Args: version: a number, or another alias of the model.

        Raises: ModelNotFound; RequestError for the alias's name.
        """
        return ask("PUT", _alias(model, alias), Alias, body={"version": str(version)})

    @call
    def roll_back(self, model: str, alias: str) -> Call[Alias]:
        """Point it at what it pointed at before its last move. Raises: NotFound; Conflict."""
        return ask("POST", f"{_alias(model, alias)}/roll-back", Alias)

    @call
    def history(self, model: str, alias: str) -> Call[tuple[AliasMove, ...]]:
        """Its moves, the newest first. Raises: ModelNotFound."""
        return ask_list(f"{_alias(model, alias)}/history", AliasMove)

    @call
    def remove(self, model: str, alias: str) -> Call[None]:
        """Raises: NotFound; Conflict while a deployment follows it."""
        return ask("DELETE", _alias(model, alias), object).then(nothing)


def _file(reference: str, name: str) -> str:
    return f"{ROOT}/versions/{place(reference)}/files/{'/'.join(map(place, name.split('/')))}"


def _alias(model: str, alias: str) -> str:
    return f"{ROOT}/aliases/{place(model, alias)}"
