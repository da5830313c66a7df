"""The calls of `/platform/v1` about models that come from elsewhere, and the store that keeps their files."""

from __future__ import annotations

from trivet.client.calls import ROOT, C, Call, Group, ask, ask_list, call, given, place
from trivet.client.results import Pull, Store


class Pulls(Group[C]):
    """Models that come from hubs, from other sites and from bundles.

    >>> pull = client.pulls.begin("trivet:http://127.0.0.1:9/nobody-there")
    >>> pull.id in [each.id for each in client.pulls.list()]
    True
    """

    @call
    def begin(
        self,
        source: str,
        name: str | None = None,
        *,
        key: str | None = None,
        trusted_key: str | None = None,
        allow_older: bool = False,
        smoke_test: bool = True,
    ) -> Call[Pull]:
        """Begin to bring a model from elsewhere; `get` shows how far it is.

        Args:
            source: hf:org/name[@revision][:FILE], ms:org/name[...], trivet:URL/name[:version] or bundle:PATH.
            key: a token of the source; it is kept nowhere.
            trusted_key: of a bundle: a public key (PEM) beside those that the site trusts.
            allow_older: of a bundle: also where a newer one was taken in.
            smoke_test: of a bundle: it must answer one token before it is registered.
        """
        body = given(
            source=source,
            name=name,
            key=key,
            trusted_key=trusted_key,
            allow_older=allow_older or None,
            smoke_test=None if smoke_test else False,
        )
        return ask("POST", f"{ROOT}/pulls", Pull, body=body)

    @call
    def list(self) -> Call[tuple[Pull, ...]]:
        """The newest first."""
        return ask_list(f"{ROOT}/pulls", Pull)

    @call
    def get(self, pull_id: str) -> Call[Pull]:
        """Raises: NotFound."""
        return ask("GET", f"{ROOT}/pulls/{place(pull_id)}", Pull)

    @call
    def cancel(self, pull_id: str) -> Call[Pull]:
        """End it; what has come stays for the next pull of it. Raises: NotFound."""
        return ask("DELETE", f"{ROOT}/pulls/{place(pull_id)}", Pull)


class ModelStore(Group[C]):
    """The site's own copies of model files, each kept once by its SHA-256.

    >>> client.store.size().num_files == len(client.store.digests())
    True
    """

    @call
    def size(self) -> Call[Store]:
        """How much is in the site's store of model files."""
        return ask("GET", f"{ROOT}/store", Store)

    @call
    def collect(self) -> Call[Store]:
        """Remove from the store what no version needs. Raises: Conflict while models are being added."""
        return ask("POST", f"{ROOT}/store/collect", Store)

    @call
    def digests(self) -> Call[tuple[str, ...]]:
        """SHA-256 of all files in the store: what a bundle for this site may leave out."""
        return ask_list(f"{ROOT}/store/digests", str)
