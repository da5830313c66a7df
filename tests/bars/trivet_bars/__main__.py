"""`tests/run bars [FOLDER]`: Trivet and the peers of a folder in one run, against the bars of the CPU.

Exit status: 0 all bars are met, 1 one is not, 2 the run could not be made, 3 some could not be measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trivet_bars.bars import BARS, Transport, judge
from trivet_bars.child import EngineFailed
from trivet_bars.engines import TRIVET, Engine, RunnerEngine, ServerEngine, TrivetServer
from trivet_bars.ladder import MEASURES
from trivet_bars.limits import Limits, NoCompiler, measure_limits
from trivet_bars.own_goals import OwnFigures, goals_of, measure_own
from trivet_bars.peer_kinds import PEERS, Peer, UnknownPeer, chosen_peers, pinned_threads
from trivet_bars.quiet import NotQuiet, busy_share, locked, wait_until_quiet
from trivet_bars.report import Comparison, Taken, as_json, table
from trivet_bars.rounds import Sample, ShortAnswer, take_turns, turns_of, values_of

from trivet.bench.machine import machine
from trivet.commands.connecting import parse_pairs
from trivet.demo_model import find_demo_model
from trivet.errors import TrivetError

# 4-bit weights as the GGUF stores them, like the peers': the bars are about these.
WEIGHTS_AS_STORED = {"options.weights": "stored"}
QUIET_TIMEOUT_S = 60.0
NOISY_TIMEOUT_S = 5.0  # with --noisy


class Run:
    """One comparison, from the command line's options."""

    def __init__(self, given: argparse.Namespace, peers: Sequence[Peer], missing: Sequence[Peer]) -> None:
        self._given = given
        self._peers = peers
        self._model: Path = given.model or find_demo_model()
        self._settings = {**WEIGHTS_AS_STORED, **parse_pairs(given.pairs)}
        self._measures = [MEASURES[name] for name in given.only] or list(MEASURES.values())
        self._salt = time.time_ns()  # a server's prefix cache must not know the prompts of another run
        self.result = Comparison(machine(), given.threads, given.rounds, [peer.name for peer in missing])

    def make(self) -> Comparison:
        """Measure everything. Raises: NotQuiet, EngineFailed, ShortAnswer, TrivetError."""
        result, given = self.result, self._given
        if given.goals:
            with locked(given.lock):
                self._settle()
                result.limits = self._limits()
        for transport in given.transports:
            self._compare(transport)
        own = OwnFigures({}, {}, {})
        if given.goals:
            say("Trivet by itself: host work, start-up, memory, KV waste, numbers of threads")
            with locked(given.lock):
                own = measure_own(self._model, self._settings, given.threads, self._settle)
        samples = result.samples
        for bar in BARS:
            of_transport = samples.get(bar.transport, [])
            peers = {p.name: values_of(of_transport, p.name, bar.measure) for p in self._peers}
            result.outcomes.append(judge(bar, values_of(of_transport, TRIVET, bar.measure), peers))
        in_process, over_http = samples.get(Transport.IN_PROCESS, []), samples.get(Transport.HTTP, [])
        result.goals = goals_of(in_process, over_http, result.limits, own)
        return result

    def _limits(self) -> Limits | None:
        try:
            return measure_limits(self._given.threads)
        except NoCompiler as error:
            say(f"warning: {error}")
            return None

    def _compare(self, transport: Transport) -> None:
        samples = self.result.samples[transport] = []
        folder = Path(tempfile.mkdtemp(prefix="tb"))  # stays with its logs if this fails
        with self._engines(transport, folder) as engines:
            for rung in dict.fromkeys(measure.rung.name for measure in self._measures):
                turns = turns_of(rung, self._measures, engines, self._salt)
                if not turns:
                    continue  # no bar compares this rung over this transport
                with locked(self._given.lock):
                    for sample in take_turns(turns, self._given.rounds, self._settle):
                        samples.append(sample)
                        tell(transport, sample)
            self.result.engines += [
                Taken(e.name, transport, e.command, e.versions, e.peak_rss_bytes()) for e in engines
            ]
        shutil.rmtree(folder)

    @contextmanager
    def _engines(self, transport: Transport, folder: Path) -> Iterator[list[Engine]]:
        engines: list[Engine] = []
        try:
            for peer in (None, *(p for p in self._peers if p.transport == transport)):
                say(f"{transport}: loading {peer.name if peer else TRIVET}")
                try:
                    engines.append(self._start(transport, peer, folder))
                except EngineFailed as error:
                    if peer is None or self._given.peers:
                        raise
                    say(f"warning: {error}")  # the others are worth their figures
                    self.result.missing.append(f"{peer.name} (does not start)")
            yield engines
        finally:
            for engine in reversed(engines):
                engine.stop()

    def _start(self, transport: Transport, peer: Peer | None, folder: Path) -> Engine:
        """None: Trivet itself."""
        threads = self._given.threads
        if transport == Transport.HTTP:
            if peer is None:
                return TrivetServer(self._model, self._settings, threads, folder)
            return ServerEngine(peer, self._given.folder, threads, folder / f"{peer.name}.log")
        if peer is None:
            pairs = [f"{key}={value}" for key, value in self._settings.items()]
            command = [sys.executable, "-m", "trivet_bars.peers.trivet_engine", str(self._model), *pairs]
            return RunnerEngine(TRIVET, command, pinned_threads(threads), folder / "trivet.log", frozenset())
        command = peer.command(self._given.folder, threads)
        return RunnerEngine(peer.name, command, peer.env(threads), folder / f"{peer.name}.log", peer.skips)

    def _settle(self) -> float:
        """Wait for a quiet machine. Raises: NotQuiet, unless noise was allowed."""
        try:
            return wait_until_quiet(NOISY_TIMEOUT_S if self._given.noisy else QUIET_TIMEOUT_S)
        except NotQuiet as error:
            if not self._given.noisy:
                raise
            say(f"warning: {error}")
            return busy_share()


def tell(transport: Transport, sample: Sample) -> None:
    """Progress, one line a sample."""
    measure = MEASURES[sample.measure]
    value = f"{sample.figures[measure.figure]:,.2f} {measure.unit}"
    say(f"{transport}: {measure.title}, round {sample.round_number + 1}: {sample.engine} {value}")


def say(text: str) -> None:
    """Progress goes to standard error; standard output is for the result."""
    print(text, file=sys.stderr, flush=True)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="tests/run bars", description="Trivet against other engines on this machine, in one run."
    )
    add = parser.add_argument
    add("folder", nargs="?", type=Path, metavar="FOLDER", help="peers, made by tests/bars/prepare_peers")
    add("--peers", type=_names, default=[], metavar="NAMES", help=f"of: {', '.join(p.name for p in PEERS)}")
    add("--only", type=_measures, default=[], metavar="NAMES", help=f"measures, of: {', '.join(MEASURES)}")
    add("--transports", type=_transports, default=list(Transport), metavar="in-process,http")
    add("--rounds", type=_count, default=3, metavar="N", help="turns of each engine at each measure (3)")
    add("--threads", type=_count, default=2, metavar="N", help="of every engine (2)")
    add("--set", action="append", default=[], dest="pairs", metavar="KEY=VALUE", help="a setting of Trivet's")
    add("--model", type=Path, metavar="FILE", help="Trivet's model (the demo model, which the peers have)")
    add("--no-goals", dest="goals", action="store_false", help="leave out what Trivet has to keep by itself")
    add("--lock", type=Path, metavar="FILE", help="hold this lock while something is timed")
    add("--noisy", action="store_true", help="measure although the machine is not quiet")
    add("--json", action="store_true", help="print JSON")
    add("-o", "--output", type=Path, metavar="FILE", help="write the JSON there as well")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _measures(text: str) -> list[str]:
    for name in _names(text):
        if name not in MEASURES:
            raise argparse.ArgumentTypeError(
                f"there is no measure {name!r}; choose from: {', '.join(MEASURES)}"
            )
    return _names(text)


def _transports(text: str) -> list[Transport]:
    known = {"in-process": Transport.IN_PROCESS, "http": Transport.HTTP}
    for name in _names(text):
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no transport {name!r}; choose from: in-process, http")
    return [known[name] for name in _names(text)]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; give a whole number from 1")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status as in the module's docstring."""
    given = parsed(arguments)
    try:
        peers, missing = (
            ([], list(PEERS)) if given.folder is None else chosen_peers(given.folder, given.peers)
        )
        result = Run(given, peers, missing).make()
    except (UnknownPeer, FileNotFoundError, NotQuiet, EngineFailed, ShortAnswer, TrivetError) as error:
        say(f"bars: {error}")
        return 2
    except subprocess.CalledProcessError as error:
        say(f"bars: {' '.join(map(str, error.cmd))} ended with exit status {error.returncode}")
        return 2
    told = json.dumps(as_json(result), indent=1)
    if given.output is not None:
        given.output.write_text(told + "\n")
    print(told if given.json else table(result))
    return result.exit_code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the engines as well
    sys.exit(main())
