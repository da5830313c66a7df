"""The deployments that exist for whoever asks: a key may be made for some of them only."""

from __future__ import annotations

from trivet.errors import ModelNotFound
from trivet_web.accounts.principal import principal_of_request
from trivet_web.engines.routing import Table
from trivet_web.web_process import web_process


def visible(table: Table) -> Table:
    """Without those that the key is not made for."""
    principal = principal_of_request()
    if principal.models is None:
        return table
    return {name: deployed for name, deployed in table.items() if name in principal.models}


def check_visible(name: str) -> None:
    """Raises: ModelNotFound, as for one that does not exist, and naming no other that the key may not use."""
    principal = principal_of_request()
    if principal.models is None:
        return
    table = web_process().router.table
    if principal.may_use(name) and (name in table() or name in table(fresh=True)):
        return
    known = ", ".join(sorted(visible(table()))) or "none; launch one with `trivet launch MODEL`"
    raise ModelNotFound(f"model {name!r} does not exist; deployed: {known}", param="model")
