"""The client library against a real site, in both flavours, and every example of its documentation."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import pkgutil
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import trivet.client
from trivet.client import AsyncClient, Client, CompletionFields
from trivet.client.retries import Retries
from trivet.demo_model import find_demo_model

if TYPE_CHECKING:
    from conftest import Site

MESSAGES = [{"role": "user", "content": "Hello"}]
SHORT = {"max_tokens": 4, "temperature": 0}
LONG: CompletionFields = {"max_tokens": 8000, "ignore_eos": True}
README = Path(__file__).parent.parent.parent / "README.md"


@pytest.fixture(scope="module")
def served(site_of_module: Site) -> Site:
    """A site with "null", "slow" (50 steps/s), and "narrow": a slow one for one request, with one waiting."""
    site_of_module.launch("null", "null")
    slow = {"options.step_ms": "20", "max_model_len": "8192"}
    site_of_module.launch("slow", "null", **slow)
    site_of_module.launch("narrow", "null", max_num_seqs="1", max_num_waiting="1", **slow)
    return site_of_module


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(recurse=True, exclude_empty=True)
    names = [f"trivet.client.{module.name}" for module in pkgutil.iter_modules(trivet.client.__path__)]
    return [test for name in names for test in finder.find(importlib.import_module(name)) if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_every_example_of_the_documentation_runs(
    served: Site, example: doctest.DocTest, tmp_path: Path
) -> None:
    with served.client() as client:
        example.globs.update(client=client, model_path=str(find_demo_model()), folder=tmp_path)
        result = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(example)
    assert result.attempted
    assert not result.failed, "see the captured output"


def test_the_example_of_the_readme_runs(
    served: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = [
        b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if "Client(" in b
    ]
    monkeypatch.setenv("TRIVET_HOME", str(served.home))
    exec(source.replace('"qwen"', '"null"').replace("max_tokens=200", "max_tokens=5"), {})
    assert capsys.readouterr().out.strip()


async def collect_async(site: Site) -> dict[str, Any]:
    """What the client for asyncio gets."""
    async with AsyncClient(site.base_url, site.token) as client:
        file = await client.files.upload(b"{}")
        seen: dict[str, Any] = {
            "chat": (await client.chat.complete("null", MESSAGES, **SHORT)).text,
            "stream": "".join([c.text async for c in client.chat.stream("null", MESSAGES, **SHORT)]),
            "completion": (await client.completions.complete("null", [1, 2], **SHORT)).text,
            "embedding": (await client.embed("null", "Hello")).data[0].embedding,
            "scores": [s.score for s in (await client.score("null", "a", ["b", "c"])).data],
            "tokens": (await client.tokenize("null", MESSAGES)).tokens,
            "events": {e.type async for e in client.responses.stream("null", "Hello", max_output_tokens=4)},
            "file": await client.files.content(file.id),
            "deployment": (await client.deployments.get("null")).settings,
            "instances": [one.id for one in await client.instances.list("null")],
            "health": await client.health(ready=True),
        }
        await client.files.delete(file.id)
        return seen


def collect_sync(site: Site) -> dict[str, Any]:
    """What the client for threads gets."""
    with Client(site.base_url, site.token) as client:
        file = client.files.upload(b"{}")
        seen: dict[str, Any] = {
            "chat": client.chat.complete("null", MESSAGES, **SHORT).text,
            "stream": "".join([c.text for c in client.chat.stream("null", MESSAGES, **SHORT)]),
            "completion": client.completions.complete("null", [1, 2], **SHORT).text,
            "embedding": client.embed("null", "Hello").data[0].embedding,
            "scores": [s.score for s in client.score("null", "a", ["b", "c"]).data],
            "tokens": client.tokenize("null", MESSAGES).tokens,
            "events": {e.type for e in client.responses.stream("null", "Hello", max_output_tokens=4)},
            "file": client.files.content(file.id),
            "deployment": client.deployments.get("null").settings,
            "instances": [one.id for one in client.instances.list("null")],
            "health": client.health(ready=True),
        }
        client.files.delete(file.id)
        return seen


def test_both_flavours_get_the_same(served: Site) -> None:
    seen = collect_sync(served)
    assert seen["stream"] == seen["chat"] != ""
    assert len(seen["scores"]) == 2
    assert seen["file"] == b"{}"
    assert seen["events"] >= {"response.created", "response.output_text.delta", "response.incomplete"}
    assert asyncio.run(collect_async(served)) == seen


def running(client: Client, name: str) -> int:
    """-1: it has not told yet."""
    (instance,) = client.instances.list(name)
    return -1 if instance.load is None else instance.load.num_running


def test_leaving_a_stream_ends_the_request_in_the_engine(served: Site) -> None:
    with served.client() as client:
        with client.completions.stream("slow", "Hello", **LONG) as chunks:
            next(chunks)
            served.wait_for("it runs", lambda: running(client, "slow") == 1)
        served.wait_for("it has ended", lambda: running(client, "slow") == 0)


async def leave_early(client: AsyncClient) -> None:
    async with client.completions.stream("slow", "Hello", **LONG) as chunks:
        await anext(chunks)


async def read_all(client: AsyncClient) -> None:
    async for _ in client.completions.stream("slow", "Hello", **LONG):
        pass


async def wait_for_the_whole(client: AsyncClient) -> None:
    await client.completions.complete("slow", "Hello", **LONG)


@pytest.mark.parametrize("ask", [leave_early, read_all, wait_for_the_whole])
def test_a_task_that_leaves_or_is_cancelled_ends_its_request_in_the_engine(served: Site, ask: Any) -> None:
    async def run() -> None:
        async with AsyncClient(served.base_url, served.token) as client:
            task = asyncio.create_task(ask(client))
            if ask is not leave_early:
                await asyncio.to_thread(served.wait_for, "it runs", lambda: running(watching, "slow") == 1)
                task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() == (ask is not leave_early)
            await asyncio.to_thread(served.wait_for, "it has ended", lambda: running(watching, "slow") == 0)

    with served.client() as watching:
        asyncio.run(run())


def test_who_is_patient_is_answered_by_a_full_queue(served: Site) -> None:
    """One runs and one waits; the four others come again when the server says."""
    with served.client() as client:
        patient = client.with_options(max_retries=100)
        draws: list[float] = []
        patient._connection.retries = Retries(100, 60.0, draw=lambda: draws.append(0.5) or 0.5)

        def ask(number: int) -> str | None:
            answer = patient.completions.complete("narrow", f"{number}", max_tokens=20, ignore_eos=True)
            return answer.finish_reason

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(ask, range(6))) == ["length"] * 6
    assert draws, "nobody was refused"


def test_a_log_is_followed_until_its_stream_is_closed(served: Site) -> None:
    with served.client() as client:
        (instance,) = client.instances.list("null")
        with client.logs(instance.id, follow=True, tail=5) as pieces:
            assert next(pieces)
        assert client.health()
