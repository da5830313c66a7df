"""Which models are loaded before anybody asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trivet_web.models.served_models import ServedModel, ServedModels

if TYPE_CHECKING:
    from conftest import Eventually


def test_model_that_is_deployed_again_is_loaded_again_before_its_first_request(
    served_model: ServedModel, eventually: Eventually
) -> None:
    loaded: list[str] = []

    def load(path: str) -> ServedModel:
        loaded.append(path)
        return served_model

    models = ServedModels(load)
    models.follow(["a", "b"])
    eventually(lambda: sorted(loaded) == ["a", "b"], what="both are loaded")
    models.follow(["b"])
    models.follow(["a", "b"])
    eventually(lambda: sorted(loaded) == ["a", "a", "b"], what="the first is loaded again")
    models.follow(["a", "b"])
    models.get("a")
    assert sorted(loaded) == ["a", "a", "b"]
