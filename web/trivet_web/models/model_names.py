"""What a request's `model` names: a deployment, or an adapter (LoRA) of one.

`DEPLOYMENT:ADAPTER` is an adapter's id (SGLang's form), which no deployment can have. `ADAPTER` alone will do
where one deployment has it and none bears that name (vLLM's form). Rights, limits, usage and metrics are
those of the deployment.
"""

from __future__ import annotations

from dataclasses import dataclass

from trivet.errors import ModelNotFound, RequestError
from trivet_web.engines.routing import Deployed, Table
from trivet_web.models.visible_models import check_visible, visible
from trivet_web.web_process import web_process

COLON = ":"


@dataclass(frozen=True, slots=True)
class ModelName:
    """What is asked for; neither need be there."""

    deployment: str
    adapter: str = ""  # empty: the deployment's own model

    @property
    def id(self) -> str:
        """As `/v1/models` has it."""
        return f"{self.deployment}{COLON}{self.adapter}" if self.adapter else self.deployment


def meant_by(model: str) -> ModelName:
    """For whoever asks: what their key may not use does not exist. What does not exist is a deployment.

    Raises: ModelNotFound for an adapter that several deployments have.
    """
    table = web_process().router.table
    # Fresh only where it must be: it may have been launched, or stopped, within the last half second.
    try:
        found = _found(model, visible(table()))
    except ModelNotFound:
        found = None
    return found or _found(model, visible(table(fresh=True))) or ModelName(model)


def with_adapter(name: ModelName, adapter: str | None, field: str) -> ModelName:
    """With the adapter that `field` of the request names. Raises: RequestError for a second one."""
    if not adapter or adapter == name.adapter:
        return name
    if name.adapter:
        raise RequestError(
            f"{field} is {adapter[:80]!r} and adapter {name.adapter[:80]!r} is named, too; a request has one "
            "adapter: leave one of them out",
            param=field,
        )
    return ModelName(name.deployment, adapter)


def check_known(name: ModelName) -> Deployed:
    """Its deployment; an engine need not be ready.

    Raises: ModelNotFound, for a deployment that the key may not use as for one that does not exist; and
    naming the adapters that there are.
    """
    check_visible(name.deployment)
    router = web_process().router
    deployed = router.deployed(name.deployment)
    if name.adapter and name.adapter not in (known := router.known_adapters(deployed)):
        there = ", ".join(known) or "none; launch it with `--adapter NAME=FOLDER`"
        raise ModelNotFound(
            f"model {name.deployment!r} has no adapter {name.adapter[:200]!r}; it has: {there}",
            param="model",
        )
    return deployed


def _found(model: str, table: Table) -> ModelName | None:
    """Raises: ModelNotFound for an adapter that several deployments have."""
    deployment, colon, adapter = model.partition(COLON)
    if deployment in table and bool(colon) is bool(adapter):
        return ModelName(deployment, adapter)
    known_adapters = web_process().router.known_adapters
    having = sorted(name for name, one in table.items() if model in known_adapters(one))
    if len(having) > 1:
        ids = ", ".join(ModelName(name, model).id for name in having)
        raise ModelNotFound(f"adapter {model!r} is of several models; name one: {ids}", param="model")
    return ModelName(having[0], model) if having else None
