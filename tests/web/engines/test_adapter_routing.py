"""Which replica may answer for an adapter (LoRA): one whose engine says that it has it."""

from __future__ import annotations

import pytest

from trivet.errors import Unavailable
from trivet.messages import Beat, Phase
from trivet_web.engines.engine_link import EngineView
from trivet_web.engines.prefix_affinity import SPAN_TOKENS
from trivet_web.engines.routing import NOWHERE, Deployed, InstanceRow, Router


class Site:
    """A deployment `m` with two replicas, and what their engines say of their adapters."""

    def __init__(self, **settings: str) -> None:
        self.settings = settings
        self.is_asleep = False
        self.rows = [InstanceRow(one, "ready", max_model_len=100) for one in ("a", "b")]
        self.views: dict[str, EngineView] = {}
        self.router = Router(self.read, self.views.get, lambda table: None, lambda: 0.0)

    def read(self) -> dict[str, Deployed]:
        rows = () if self.is_asleep else self.rows
        return {"m": Deployed("m", "/m", 0, rows, settings=self.settings, is_asleep=self.is_asleep)}

    def hear(self, instance: str, *adapters: str, phase: Phase = Phase.READY) -> None:
        view = self.views.setdefault(instance, EngineView(instance, 0.0))
        view.on_beat(Beat(instance, "lease", 1, 1, phase, adapters=adapters), 0.0)

    def chosen(self, adapter: str) -> set[str]:
        claims = [self.router.choose("m", 1, adapter=adapter) for _ in range(6)]
        for claim in claims:
            claim.release()
        return {claim.instance_id for claim in claims}

    def listed(self) -> tuple[list[str], list[str]]:
        """What is served, and what may be named."""
        deployed = self.read()["m"]
        return self.router.served_adapters(deployed), self.router.known_adapters(deployed)


def test_who_has_the_adapter_answers_for_it_and_everybody_for_the_model() -> None:
    site = Site()
    site.hear("a", "sql")
    site.hear("b", "tone", "sql")
    assert (site.chosen("tone"), site.chosen("sql"), site.chosen("")) == ({"b"}, {"a", "b"}, {"a", "b"})
    assert site.listed() == (["sql", "tone"], ["sql", "tone"])


def test_what_the_launch_names_counts_until_an_engine_was_heard_and_then_its_word() -> None:
    site = Site(adapters="sql=/sql")
    assert (site.chosen("sql"), site.listed()) == ({"a", "b"}, (["sql"], ["sql"]))
    site.hear("a")
    assert site.chosen("sql") == {"b"}
    site.hear("b")
    assert site.listed() == ([], ["sql"])
    with pytest.raises(Unavailable, match="cannot serve now: no instance that serves has adapter 'sql'"):
        site.router.choose("m", 1, adapter="sql")
    with pytest.raises(Unavailable, match="no instance that serves has adapter 'sql'"):
        site.router.ready("m", "sql")
    assert site.chosen("") == {"a", "b"}


def test_an_adapter_of_an_engine_that_cannot_serve_is_not_loaded() -> None:
    site = Site()
    site.hear("a", "sql", phase=Phase.DRAINING)
    site.hear("b")
    assert site.listed() == ([], [])


def test_a_replica_that_refused_it_is_left_out_though_others_could_serve_the_model() -> None:
    site = Site()
    site.hear("a", "sql")
    site.hear("b")
    with pytest.raises(Unavailable, match="has adapter 'sql'"):
        site.router.choose("m", 1, frozenset({"a"}), adapter="sql")


def test_a_deployment_that_is_unloaded_is_waited_for_with_its_adapters() -> None:
    site = Site(adapters="sql=/sql", idle_timeout_s="60")
    site.is_asleep = True
    assert site.router.choose("m", 1, adapter="sql").instance_id == NOWHERE
    assert site.router.ready("m", "sql").is_asleep
    assert site.listed() == (["sql"], ["sql"]), "a request for it wakes the deployment"
    site.is_asleep = False
    site.rows = []
    assert site.listed() == ([], ["sql"]), "it was not loaded yet"


@pytest.mark.parametrize(("adapter", "is_known"), [("sql", True), ("tone", False), ("", False)])
def test_who_has_read_a_prompt_for_an_adapter_has_not_read_it_for_another(
    adapter: str, is_known: bool
) -> None:
    site = Site()
    for one in ("a", "b"):
        site.hear(one, "sql", "tone")
    talk = [5] * SPAN_TOKENS
    reader = site.router.choose("m", 1, prompt=talk, adapter="sql").instance_id  # and is busy with it
    again = site.router.choose("m", 1, prompt=talk, adapter=adapter).instance_id
    assert (again == reader) is is_known


def test_settings_that_cannot_be_read_name_no_adapters() -> None:
    assert Site(adapters="sql").listed() == ([], [])
