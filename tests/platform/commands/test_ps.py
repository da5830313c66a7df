"""`trivet ps`, `logs`, `events` and `models`."""

from __future__ import annotations

import json

import pytest

from trivet.client.results import Instance, InstancePlan, PlanPart
from trivet.commands.ps import memory_text


@pytest.fixture
def launched(site, trivet):
    site.boot = ["ready"]
    trivet("launch", "smollm2", "--no-wait")
    return site


def test_ps_lists_instances_with_their_state(launched, trivet) -> None:
    done = trivet("ps")
    header, row = done.out.splitlines()
    assert header.split()[:4] == ["NAME", "MODEL", "INSTANCE", "STATE"]
    assert row.split()[:8] == ["smollm2", "smollm2:1", "smollm2-0", "ready", "cpu", "host", "4711", "135.0"]
    assert done.err == ""


def test_ps_compares_what_is_held_with_the_plan() -> None:
    plan = InstancePlan(
        parts=(PlanPart(name="kv", size_bytes=1 << 30), PlanPart(name="context", size_bytes=1 << 28))
    )

    def shown(*uids: str, **memory: int) -> str | None:
        return memory_text(
            Instance(id="i", deployment="d", state="ready", plan=plan, device_uids=uids, memory=memory)
        )

    assert shown("host") == "1.2 GiB", "nothing is measured yet"
    assert shown("host", kv=1 << 30, resident=11 << 27) == "1.4 GiB +10%", "the process and all its parts"
    assert shown("GPU-1", kv=11 << 27, resident=1 << 20) == "1.4 GiB +38%", "the part that the runner knows"


def test_ps_says_since_when_the_supervisor_is_gone(launched, trivet) -> None:
    launched.supervisor_up = False
    done = trivet("ps")
    assert "ready" in done.out
    assert "as of 20:00:00 UTC" in done.err


def test_ps_hides_what_is_stopped_unless_asked(launched, trivet) -> None:
    trivet("stop", "smollm2")
    assert len(trivet("ps").out.splitlines()) == 1
    assert "stopped" in trivet("ps", "--all").out


def test_ps_shows_a_deployment_that_has_no_instance_yet(launched, trivet) -> None:
    launched.deployments["smollm2"]["instances"] = []
    assert trivet("ps").out.splitlines()[1].split()[:5] == ["smollm2", "smollm2:1", "-", "pending", "auto"]


def test_what_is_wanted_0_times_is_not_called_running(launched, trivet) -> None:
    assert "smollm2: 0 replicas" in trivet("scale", "smollm2", "0").err
    assert "  0 replicas  " in trivet("ps").out.splitlines()[1]


def test_ps_shows_no_process_no_load_and_the_reason_of_what_has_failed(
    site, trivet, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.boot = ["failed"]
    site.failure_reason = "exit code 3:\n" + "no room " * 20 + "at all"
    trivet("launch", "smollm2", "--no-wait")
    _, row = trivet("ps").out.splitlines()
    assert row.split()[3:9] == ["failed", "cpu", "host", "-", "-", "-"]
    reason = row[row.index("exit code 3: no room") :]
    assert reason.endswith("no room at all")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)  # a pipe has room for all, a terminal may not
    for columns, width in (("40", row.index(reason) + 60), ("200", 200)):
        monkeypatch.setenv("COLUMNS", columns)
        _, cut = trivet("ps").out.splitlines()
        assert (len(cut), cut[-3:]) == (width, "...")
    (deployment,) = json.loads(trivet("ps", "--json").out)
    assert deployment["instances"][0]["reason"] == site.failure_reason


def test_ps_tells_what_a_running_engine_warns_of(launched, trivet) -> None:
    launched.notices = ["swiglu failed its self-test"]
    done = trivet("ps")
    assert len(done.out.splitlines()) == 2
    assert "smollm2 smollm2-0: swiglu failed its self-test" in done.err
    (deployment,) = json.loads(trivet("ps", "--json").out)
    assert deployment["instances"][0]["notices"] == launched.notices
    trivet("stop", "smollm2")
    assert "swiglu" not in trivet("ps", "--all").err


def test_ps_json_is_the_deployments(launched, trivet) -> None:
    (deployment,) = json.loads(trivet("ps", "--json").out)
    assert deployment["instances"][0]["load"]["num_running"] == 1


def test_ps_without_the_token_says_what_is_needed(launched, trivet, tmp_path) -> None:
    (tmp_path / "home/run/token").unlink()
    done = trivet("ps")
    assert (done.code, done.err) == (1, "trivet: this needs the site's token\n")


def test_api_key_file_is_read(launched, trivet, tmp_path) -> None:
    key = tmp_path / "key"
    key.write_text("other\n")
    assert trivet("ps", "--api-key-file", str(key)).code == 1
    assert launched.authorization[-1] == "Bearer other"
    missing = trivet("ps", "--api-key-file", str(tmp_path / "nope"))
    assert missing.code == 2
    assert "No such file" in missing.err


@pytest.mark.parametrize("name", ["smollm2", "smollm2-0"])
def test_logs_of_a_deployment_or_an_instance(launched, trivet, name) -> None:
    assert trivet("logs", name, "--tail", "5", "--attempt", "2").out == launched.log
    assert launched.requests[-1][1] == "/platform/v1/logs/smollm2-0?attempt=2&tail=5&follow=0"


def test_logs_follow_asks_for_the_rest(launched, trivet) -> None:
    assert trivet("logs", "smollm2", "-f").out == launched.log
    assert launched.requests[-1][1].endswith("follow=1")


def test_logs_of_an_unknown_name_lists_what_there_is(launched, trivet) -> None:
    done = trivet("logs", "nope")
    assert done.code == 1
    assert "deployments: smollm2" in done.err


def test_events_are_listed(launched, trivet) -> None:
    assert "starting -> loading  weights" in trivet("events", "smollm2").out
    (event,) = json.loads(trivet("events", "--json").out)
    assert (event["from"], event["to"]) == ("starting", "loading")


def test_events_of_a_name_that_never_was_is_an_error(launched, trivet) -> None:
    done = trivet("events", "nope")
    assert (done.code, done.out) == (1, "")
    assert done.err == "trivet: deployment 'nope' does not exist\n"


def test_models_are_added_listed_shown_and_removed(site, trivet, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    added = trivet("models", "add", "folder", "--name", "m")
    assert added.out == "registered version 1: LlamaForCausalLM, 94.0 MiB\n"
    assert site.models["m"]["versions"][0]["path"] == str(tmp_path / "folder")
    row = trivet("models", "list").out.splitlines()[1].split()
    assert row[:5] == ["m", "1", "-", "LlamaForCausalLM", "q4_1"]
    assert "context_length  8192" in trivet("models", "show", "m").out
    assert json.loads(trivet("models", "show", "m", "--json").out)["versions"][0]["format"] == "gguf"
    assert trivet("models", "show", "m:1").out.startswith("m:1\n")
    assert "model 'm:2' is not registered" in trivet("models", "show", "m:2").err
    removed = trivet("models", "remove", "m")
    assert removed.out == "m and all its versions are no longer registered; its files are untouched\n"
    assert site.models == {}


def test_one_version_of_a_model_is_removed_by_its_number(site, trivet) -> None:
    site.models["m:1"] = {"name": "m", "versions": []}  # what the server does with it is the registry's test
    removed = trivet("models", "remove", "m:1")
    assert removed.out == "m:1 is no longer registered; its files are untouched\n"
    assert site.requests[-1][:2] == ("DELETE", "/platform/v1/models/m:1")


def test_a_model_that_is_deployed_is_not_removed(site, trivet) -> None:
    trivet("models", "add", "/m", "--name", "m")
    trivet("launch", "m", "--no-wait")
    done = trivet("models", "remove", "m")
    assert (done.code, done.err) == (1, "trivet: m is deployed; stop it first\n")


def test_ps_tells_what_is_unloaded_from_what_comes_up(launched, trivet) -> None:
    launched.deployments["smollm2"] |= {"instances": [], "is_asleep": True}
    shown = trivet("ps").out
    assert "asleep" in shown
    assert "the next request wakes it" in shown
