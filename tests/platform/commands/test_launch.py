"""`trivet launch` and `scale`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trivet.engine_settings import parse_engine_settings


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivet.commands.launch.POLL_INTERVAL_S", 0.01)


def test_launch_waits_until_ready_and_shows_the_way_there(site, trivet) -> None:
    done = trivet("launch", "smollm2", "--name", "chat", "--backend", "cpu", "--set", "max_model_len=2048")
    assert done.code == 0
    assert done.out == f"chat is ready at {site.url}/v1\n"
    way = ["chat: starting", "chat: loading 50%", "chat: warming", "chat: ready"]
    assert done.err.splitlines() == way  # the answer to the launch itself was "pending"
    health, launch = site.requests[:2]
    assert health[:2] == ("GET", "/health"), "whether a server is just starting"
    assert launch[2] == {
        "model": "smollm2",
        "name": "chat",
        "backend": "cpu",
        "replicas": 1,
        "settings": {"max_model_len": "2048"},
    }


def test_launch_of_a_path_sends_it_in_full(site, trivet, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert trivet("launch", "./model.gguf", "--no-wait").out == "smollm2 is starting\n"
    assert site.requests[1][2]["model"] == str(tmp_path / "model.gguf")


def test_adapters_are_sent_with_their_whole_paths(site, trivet, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert trivet("launch", "smollm2", "--adapter", "sql=./sql", "--adapter", "b=/a b", "--no-wait").code == 0
    adapters = {"sql": str(tmp_path / "sql"), "b": "/a b"}
    settings = site.requests[1][2]["settings"]
    assert json.loads(settings["adapters"]) == adapters
    assert parse_engine_settings(settings).adapters == adapters


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--adapter", "sql"], "--adapter 'sql' has no folder; write --adapter NAME=FOLDER"),
        (["--adapter", "sql="], "the path is empty"),
        (["--adapter", "s=/a", "--adapter", "s=/b"], "--adapter 's=/b' is there twice"),
        (["--adapter", "a/b=/a"], "an adapter's name is 'a/b'"),
        (["--adapter", "s=/a", "--set", "adapters=t=/b"], "are both given; give one of them"),
        (["--adapter", "s=/a", "--set", "max_loras=0"], "max_loras is 0"),
    ],
)
def test_an_adapter_that_cannot_be_meant_is_refused_before_anything_is_sent(
    site, trivet, options: list[str], sentence: str
) -> None:
    done = trivet("launch", "smollm2", *options)
    assert (done.code, sentence in done.err, site.requests) == (2, True, []), done.err


def test_an_unknown_name_that_is_a_folder_here_is_told_how_to_write_it(
    site, trivet, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trivet("launch", "nothing").err == "trivet: model 'nothing' is not registered\n"
    (tmp_path / "nothing").mkdir()
    done = trivet("launch", "nothing")
    assert done.code == 1
    assert done.err.endswith("; for the files in ./nothing write ./nothing\n")


def test_who_names_the_deployment_in_place_of_its_model_is_told_the_model(site, trivet) -> None:
    trivet("launch", "smollm2", "--name", "nothing")
    trivet("stop", "nothing")
    done = trivet("launch", "nothing")
    assert done.code == 1
    assert done.err == (
        "trivet: deployment 'nothing' runs a model of another name: `trivet launch smollm2 --name nothing`\n"
    )


def test_a_failed_launch_gives_reason_and_log_and_exits_1(site, trivet) -> None:
    site.boot = ["starting", "loading", "failed"]
    done = trivet("launch", "smollm2")
    assert done.code == 1
    assert done.out == ""
    assert "failed: DoesNotFit: weights 9.0 GiB, free 1.0 GiB" in done.err
    assert "  out of memory\n" in done.err
    assert done.err.endswith("\n`trivet stop smollm2` takes it away\n")


def test_a_launch_after_a_failed_one_waits_for_its_own_instances(site, trivet) -> None:
    site.boot = ["failed"]
    assert trivet("launch", "smollm2").code == 1
    site.boot = ["pending", "starting", "ready"]
    done = trivet("launch", "smollm2")
    assert len(site.deployments["smollm2"]["instances"]) == 2  # the failed one is still listed
    assert (done.code, done.out) == (0, f"smollm2 is ready at {site.url}/v1\n")
    assert done.err.splitlines() == ["smollm2: starting", "smollm2: ready"]


def test_a_launch_is_not_ready_because_an_earlier_one_still_is(site, trivet) -> None:
    site.boot, site.stop_states = ["ready"], ["ready", "ready", "stopped"]  # not yet told to stop
    trivet("launch", "smollm2")
    trivet("stop", "smollm2", "--no-wait")
    site.boot = ["failed"]
    assert trivet("launch", "smollm2").code == 1


def test_a_progress_bar_in_the_log_of_a_failure_is_one_line(site, trivet) -> None:
    site.boot = ["failed"]
    site.log = "start\n" + "".join(f"load {n}%\r" for n in range(50)) + "\nout of memory\n"
    done = trivet("launch", "smollm2")
    shown = [line for line in done.err.splitlines() if line.startswith("  ")]
    assert shown == ["  start", "  load 49%", "  out of memory"]


def test_an_instance_that_waits_for_its_next_attempt_has_failed(site, trivet) -> None:
    site.boot = ["pending", "starting", "loading", "pending"]
    assert trivet("launch", "smollm2").code == 1


def test_a_launch_that_someone_stops_is_told_so(site, trivet) -> None:
    site.boot = ["loading"]
    site.stop_after = 3
    done = trivet("launch", "smollm2")
    assert done.code == 1
    assert "was stopped while it was waited for" in done.err


def test_what_it_waits_for_is_shown(site, trivet) -> None:
    site.boot = ["pending", "placing", "ready"]
    assert trivet("launch", "smollm2").err == "smollm2: placing (waits for room)\nsmollm2: ready\n"


def test_no_instance_at_all_is_not_ready(site, trivet) -> None:
    site.num_unseen = 3
    done = trivet("launch", "smollm2")
    assert done.err.splitlines()[:2] == ["smollm2: pending", "smollm2: starting"]
    assert site.deployments["smollm2"]["instances"][0]["states"] == ["ready"]


def test_a_deadline_ends_the_waiting_and_not_the_launch(site, trivet) -> None:
    site.boot = ["placing"]
    done = trivet("launch", "smollm2", "--timeout", "0.05")
    assert done.code == 1
    assert "not ready after 0.05 s; it goes on starting; `trivet ps` shows it" in done.err
    assert site.deployments["smollm2"]["desired"] == "running"


def test_json_of_a_launch_is_the_deployment(site, trivet) -> None:
    shown = json.loads(trivet("launch", "smollm2", "--replicas", "2", "--json").out)
    assert [instance["state"] for instance in shown["instances"]] == ["ready", "ready"]


def test_a_setting_that_does_not_exist_is_refused_before_anything_is_sent(site, trivet) -> None:
    done = trivet("launch", "smollm2", "--set", "max_model_length=1")
    assert done.code == 2
    assert "did you mean 'max_model_len'?" in done.err
    assert site.requests == []


def test_a_setting_without_value_is_refused(site, trivet) -> None:
    done = trivet("launch", "smollm2", "--set", "seed")
    assert (done.code, site.requests) == (2, [])
    assert "KEY=VALUE" in done.err


def test_a_name_that_runs_already_is_one_sentence_on_stderr(site, trivet) -> None:
    trivet("launch", "smollm2", "--no-wait")
    done = trivet("launch", "smollm2")
    assert (done.code, done.out) == (1, "")
    assert done.err == "trivet: deployment 'smollm2' runs already\n"


def test_scale_waits_for_the_new_number(site, trivet) -> None:
    trivet("launch", "smollm2")
    assert trivet("scale", "smollm2", "3").out == f"smollm2 is ready at {site.url}/v1\n"
    assert len(site.deployments["smollm2"]["instances"]) == 3
    assert trivet("scale", "smollm2", "0").out == "smollm2 has no instances now\n"


def test_a_failure_without_a_log_still_gives_its_reason(site, trivet) -> None:
    site.boot = ["failed"]
    site.log = None
    done = trivet("launch", "smollm2")
    assert done.code == 1
    assert "DoesNotFit" in done.err
    assert "last lines" not in done.err
