"""kill -9 of anything at random moments under load: what is written down stays true, and no client hangs.

`tests/run faults` kills 200 times; plain pytest runs a short form. The seed is printed; the same one kills
the same kinds of process in the same order.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import httpx2
import msgspec
import psutil
import pytest

from trivet_registry.database import Database, open_database
from trivet_registry.instance_state import PROCESS_STATES
from trivet_registry.instances_store import list_instances

if TYPE_CHECKING:
    from conftest import Site

GOAL_S = 5.0  # within which a living supervisor has every state right
DEADLINE_S = 10 * GOAL_S  # the test's verdict: hosts differ
HANG_S = 60.0  # without a byte: an answer hangs
NUM_CLIENTS = 6
MAX_TOKENS = 60
SERVED_SHARE = 0.25  # of the rounds are followed by answers; the others meet what is still coming up
VICTIMS = ("parent", "supervisor", "web", "web worker", "engine", "engine", "engine")


@dataclass
class Crowd:
    """Clients that ask on and on, and how their requests have ended."""

    url: str
    model: str
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    whole: str = ""  # what the model says: greedy, so always the same

    @property
    def num_answered(self) -> int:
        return self.ends["streamed"] + self.ends["answered"]

    def has_answered_since(self, num_answered: int) -> bool:
        return self.num_answered > num_answered

    def ask(self, stream: bool) -> str:
        """How it ended."""
        body = {"model": self.model, "prompt": "Hello", "temperature": 0, "max_tokens": MAX_TOKENS}
        body |= {"ignore_eos": True, "stream": stream}
        url, timeout = f"{self.url}/v1/completions", httpx2.Timeout(HANG_S)
        if not stream:
            answer = httpx2.post(url, json=body, timeout=timeout)
            if answer.status_code != 200:
                return str(answer.status_code)
            self.check(answer.json()["choices"][0]["text"], is_whole=True)
            return "answered"
        with httpx2.stream("POST", url, json=body, timeout=timeout) as response:
            if response.status_code != 200:
                return str(response.status_code)
            return self.read(response.iter_lines())

    def read(self, lines: Iterator[str]) -> str:
        text = ""
        for line in lines:
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                self.check(text, is_whole=True)
                return "streamed"
            if '"error"' in data:
                self.check(text, is_whole=False)
                return "error event"
            if line.startswith("data: "):
                text += msgspec.json.decode(data)["choices"][0]["text"]
        self.wrong.append(f"a stream ended without [DONE] and without an error, after {text!r}")
        return "cut"

    def check(self, text: str, *, is_whole: bool) -> None:
        """Whatever died meanwhile, no token is lost, doubled or another's."""
        if text != self.whole[: None if is_whole else len(text)]:
            self.wrong.append(f"{text!r} is not {'all' if is_whole else 'the beginning'} of {self.whole!r}")

    def go_on(self, is_over: threading.Event, stream: bool) -> None:
        while not is_over.is_set():
            try:
                self.ends[self.ask(stream)] += 1
            except httpx2.TimeoutException as error:
                self.wrong.append(f"no byte for {HANG_S:.0f} s: {type(error).__name__}")
            except httpx2.TransportError as error:  # its web worker was killed, or none is there
                self.ends[type(error).__name__] += 1
                is_over.wait(0.1)

    @contextmanager
    def asking(self) -> Iterator[None]:
        is_over = threading.Event()
        clients = [
            threading.Thread(target=self.go_on, args=(is_over, number % 3 != 0), daemon=True)
            for number in range(NUM_CLIENTS)
        ]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            is_over.set()
            for client in clients:
                client.join(2 * HANG_S)
        if any(client.is_alive() for client in clients):
            self.wrong.append("a client still waits")


def lies(site: Site, database: Database) -> list[str]:
    """What the registry says that is not so, and engines that nobody owns or that have two rows."""
    engines: dict[str, list[int]] = {}
    for process in site.processes():
        with suppress(psutil.NoSuchProcess):
            if "trivet.engine.process" in process.cmdline():
                engines.setdefault(process.environ().get("TRIVET_LEASE", ""), []).append(process.pid)
    with database.reading() as session:
        rows = [i for i in list_instances(session) if i.instance_state in PROCESS_STATES]
    owned = {row.lease or "" for row in rows}
    found = [f"pid {pids} has no row" for lease, pids in engines.items() if lease not in owned]
    found += [f"pids {pids} share a lease" for pids in engines.values() if len(pids) > 1]
    for row in rows:
        pids = engines.get(row.lease or "", [])
        if row.state != "stopping" and pids != [row.pid]:
            found.append(f"{row.id} is {row.state} with pid {row.pid}, and its processes are {pids}")
    return found


class Killer:
    """Kills, brings back what nobody but an operator would bring back, and looks for lies."""

    def __init__(self, site: Site, seed: int, database: Database) -> None:
        self.site = site
        self.rng = random.Random(seed)
        self.database = database
        self.killed: Counter[str] = Counter()
        self.right_after_s: list[float] = []

    def round(self) -> int:
        """One to three kills close to each other; then all must become right. Returns how many hit."""
        hits = 0
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            hits += self.kill(self.rng.choice(VICTIMS))
            time.sleep(self.rng.choice((0.0, 0.05, 0.3)))
        if self.site.parent is not None and self.site.parent.poll() is not None:
            self.site.serve()
        self.wait_until_right()
        time.sleep(self.rng.uniform(0.0, 0.5))  # the next finds some still coming up
        return hits

    def kill(self, victim: str) -> bool:
        """False where there is none just now."""
        pids = self.pids_of(victim)
        if not pids:
            return False
        try:
            os.kill(self.rng.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return False
        if victim == "parent":
            assert self.site.parent is not None
            self.site.parent.wait(DEADLINE_S)
        self.killed[victim] += 1
        return True

    def pids_of(self, victim: str) -> list[int]:
        if victim == "parent":
            parent = self.site.parent
            return [parent.pid] if parent is not None and parent.poll() is None else []
        if victim == "engine":
            return self.site.engine_pids()
        if victim == "supervisor":
            pid = self.site.supervisor_pid_or_none()
            return [] if pid is None else [pid]
        web = self.site._pids_of("trivet_web")
        with suppress(ProcessLookupError):
            return [pid for pid in web if (os.getsid(pid) == pid) == (victim == "web")]
        return []

    def wait_until_right(self) -> None:
        """Raises: AssertionError naming what stays wrong."""
        self.site.wait_for("a supervisor lives", self.supervisor_answers, DEADLINE_S)
        began_s = time.monotonic()
        while found := lies(self.site, self.database):
            assert time.monotonic() - began_s < DEADLINE_S, f"not right after {DEADLINE_S:.0f} s: {found}"
            time.sleep(0.1)
        self.right_after_s.append(time.monotonic() - began_s)

    def supervisor_answers(self) -> bool:
        from trivet.config import Paths
        from trivet_supervisor.client import SupervisorClient

        return SupervisorClient(Paths(self.site.home)).status() is not None


@pytest.fixture
def killer(site: Site, request: pytest.FixtureRequest) -> Iterator[Killer]:
    given = request.config.getoption("--seed", default=None)
    seed = random.SystemRandom().randrange(10**6) if given is None else int(given)
    print(f"--seed {seed}")
    site.serve()
    with closing(open_database(f"sqlite:///{site.home / 'registry.db'}")) as database:
        yield Killer(site, seed, database)


def survive(killer: Killer, model: str, num_replicas: int, num_kills: int) -> None:
    """Kill so often under load; then everything serves, nothing was wrong, and a stop leaves nothing."""
    site = killer.site
    crowd = Crowd(site.base_url, model)
    body = {"model": model, "prompt": "Hello", "temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    answer = httpx2.post(f"{site.base_url}/v1/completions", json=body, timeout=HANG_S)
    crowd.whole = answer.json()["choices"][0]["text"]
    assert crowd.whole
    began_s = time.monotonic()
    with crowd.asking():
        num_hits = 0
        while num_hits < num_kills:
            num_hits += killer.round()
            assert not crowd.wrong
            answered = crowd.num_answered
            if not answered or killer.rng.random() < SERVED_SHARE:  # the next kills meet requests at work
                site.wait_for("requests are answered again", partial(crowd.has_answered_since, answered))
    site.wait_for("the server answers", site._answers)
    site.wait_ready(model, num_replicas)
    assert crowd.ask(stream=True) == "streamed"
    assert crowd.ask(stream=False) == "answered"
    tell(killer, crowd, num_hits, time.monotonic() - began_s)
    assert not crowd.wrong
    assert crowd.num_answered
    assert site.stop() == 0
    assert not site.processes()


def tell(killer: Killer, crowd: Crowd, num_hits: int, took_s: float) -> None:
    times = sorted(killer.right_after_s)
    print(f"{num_hits} kills in {took_s:.0f} s: {dict(killer.killed)}")
    print(f"requests ended: {dict(crowd.ends)}")
    print(
        f"all states right after a supervisor answered: median {times[len(times) // 2]:.2f} s, "
        f"worst {times[-1]:.2f} s (goal {GOAL_S:g} s)"
    )


def num_kills(request: pytest.FixtureRequest, option: str, short: int) -> int:
    given = request.config.getoption(option, default=None)
    return short if given is None else int(given)


def test_kills_of_anything_at_random_moments(killer: Killer, request: pytest.FixtureRequest) -> None:
    killer.site.launch("m", "null", 3, **{"options.step_ms": "5", "max_num_seqs": "4"})
    survive(killer, "m", 3, num_kills(request, "--kills", 4))


def test_kills_with_a_real_model(killer: Killer, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--kills", default=None) is None:
        pytest.skip("of tests/run faults: the null backend does here")
    killer.site.launch("m", "cpu", 1, max_num_seqs="4", max_model_len="512")
    survive(killer, "m", 1, num_kills(request, "--kills-real", 10))
