"""`trivet update`."""

from __future__ import annotations

import pytest


@pytest.fixture
def serving(site, trivet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trivet.commands.launch.POLL_INTERVAL_S", 0.01)
    site.boot = ["ready"]
    trivet("launch", "smollm2", "--name", "chat")
    return site


def sent(site) -> object:
    return next(body for method, _, body in site.requests if method == "PATCH")


def test_an_update_sends_what_changes_and_waits_for_the_new_instances(serving, trivet) -> None:
    serving.boot = ["starting", "warming", "ready"]
    done = trivet("update", "chat", "--set", "max_num_seqs=8", "--unset", "seed", "--backend", "cuda,cpu")
    assert done.code == 0
    assert sent(serving) == {"backend": "cuda,cpu", "settings": {"max_num_seqs": "8", "seed": None}}
    assert done.err.splitlines()[0] == "chat: new instances replace the running ones as they become ready"
    assert done.err.splitlines()[-1] == "chat: ready", "the old one was ready from the start"
    assert done.out == f"chat is ready at {serving.url}/v1\n"


def test_what_is_given_up_is_told_as_null(serving, trivet) -> None:
    trivet("update", "chat", "--device", "any", "--fallback", "none", "--priority", "2", "--no-wait")
    assert sent(serving) == {"device": None, "fallback": None, "priority": 2}


def test_an_update_whose_new_instance_fails_says_why_and_exits_1(serving, trivet) -> None:
    serving.boot = ["starting", "failed"]
    done = trivet("update", "chat", "--model", "other")
    assert done.code == 1
    assert "DoesNotFit: weights 9.0 GiB" in done.err
    assert done.err.splitlines()[-1] == (
        "still serving: 1 instance of chat; `trivet update chat ...` with other values, or the old ones, "
        "ends this update"
    )


def test_an_update_of_nothing_is_refused(serving, trivet) -> None:
    done = trivet("update", "chat")
    assert done.code == 2
    assert "nothing is to be changed" in done.err


def test_a_deployment_that_sleeps_is_not_waited_for(serving, trivet) -> None:
    serving.deployments["chat"] |= {"is_asleep": True, "instances": []}
    done = trivet("update", "chat", "--replicas", "2")
    assert (done.code, done.out) == (0, "chat is asleep; a request wakes it\n")
