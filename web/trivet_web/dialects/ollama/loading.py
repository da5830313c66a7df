"""A request without a prompt asks that a model be loaded, or unloaded: the deployment decides that here."""

from __future__ import annotations

from trivet.errors import RequestError
from trivet_web.api.inference import find_target
from trivet_web.dialects.ollama.names import Named
from trivet_web.dialects.ollama.requests import check_keep_alive


def loaded(named: Named, keep_alive: float | str | None) -> None:
    """Nothing where it can answer. Raises: RequestError where it shall be unloaded; Unavailable."""
    check_keep_alive(keep_alive)
    if keep_alive in (0, "0", "0s"):
        raise RequestError(
            f"keep_alive is {keep_alive!r} and no prompt is sent: that unloads nothing here; stop the model "
            f"with `trivet stop {named.deployment}`, or launch it with idle_timeout_s=SECONDS",
            param="keep_alive",
        )
    find_target(named.model)
