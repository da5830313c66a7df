"""Compiles the grammars of strangers where they can do no harm: in a process that is killed.

llguidance bounds what a grammar costs for each token, not what compiling it costs: 30 patterns over one
string, 1 KB of JSON, keep a core busy for minutes, and a thread cannot be stopped; 3,000 nested rules
overflow its stack, which ends a process. So a process of its own compiles each grammar first, in a child
that the kernel ends when its processor time, memory or stack is used up; what passes is compiled again in
the engine, where it takes as long.

The process starts with the first grammar (0.5 s) and ends with the engine, whose end closes its pipe.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import IO, NoReturn

import msgspec

from trivet.child_limits import limit_this_process
from trivet.engine.grammar import GrammarCompiler
from trivet.errors import RequestError, Unavailable, UnsupportedParameter
from trivet.structured_outputs import StructuredOutputsParams

MEMORY_BYTES = 512 << 20  # of one grammar; the largest that is of use took 120 MB
START_TIMEOUT_S = 60.0  # of the process, on a busy machine
WAIT_FACTOR = 20  # wall time that is waited for a second of processor time: the engine goes before
WAIT_S = 10.0  # and this, for a grammar that takes none
STACK_BYTES = 1 << 20  # a thread of the engine has 2 MiB or more
NICENESS = 5  # the cores are the engine's, which computes on them where its device is the CPU
_LENGTH = struct.Struct("<I")


class Vocabulary(msgspec.Struct, array_like=True, frozen=True):
    """What the process compiles with."""

    token_bytes: list[bytes]  # [num_tokens]
    special_ids: frozenset[int]
    end_ids: list[int]


class Tokens:
    """A vocabulary as a `TokenTable`. It encodes by the longest token that fits: nobody reads the result."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.token_bytes = vocabulary.token_bytes
        self.special_ids = vocabulary.special_ids
        self._ids = {text: token_id for token_id, text in enumerate(vocabulary.token_bytes)}
        self._longest = max(map(len, self._ids), default=0)

    def encode(self, text: str, add_special_tokens: bool, parse_special_tokens: bool) -> list[int]:
        """Ids of a text; bytes without a token are left out."""
        data, ids, start = text.encode("utf-8", "replace"), [], 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((one for one in ends if data[start:one] in self._ids), None)
            if end is not None:
                ids.append(self._ids[data[start:end]])
            start = end or start + 1
        return ids


class Trial(msgspec.Struct, array_like=True, frozen=True):
    """One grammar, and the seconds of processor time that it has."""

    params: StructuredOutputsParams
    limit_s: float
    niceness: int = 0  # more than others'


class Verdict(msgspec.Struct, array_like=True, frozen=True):
    """How it ended; at most 4096 bytes on the wire, so that a pipe takes it whole."""

    message: str = ""  # empty: it can be compiled
    param: str | None = None
    is_unsupported: bool = False
    is_killed: bool = False  # by its limit, or its own fault


class GrammarTrial:
    """One thread uses it, but for `end`."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._lock = threading.Lock()  # of what is below
        self._process: subprocess.Popen[bytes] | None = None
        self._has_ended = False

    def run(self, params: StructuredOutputsParams, limit_s: float, niceness: int = 0) -> bool:
        """Whether the grammar can be compiled within so much processor time.

        Args: niceness: more than other grammars'.

        Raises: RequestError, UnsupportedParameter where it never can; Unavailable without the process.
        """
        try:
            process = self._process or self._start()
            _write(_of(process.stdin), msgspec.msgpack.encode(Trial(params, limit_s, niceness)))
            answer = _read_within(_of(process.stdout), limit_s * WAIT_FACTOR + WAIT_S)
        except OSError as error:
            self.close()
            raise Unavailable(f"the grammar could not be tried: {error}; send it again") from error
        if answer is None:  # not even the child's end: it is not scheduled, or all of it is stuck
            self.close()
            return False
        verdict = msgspec.msgpack.decode(answer, type=Verdict)
        if verdict.is_killed:
            return False
        if verdict.is_unsupported:
            raise UnsupportedParameter(verdict.message, param=verdict.param)
        if verdict.message:
            raise RequestError(verdict.message, param=verdict.param)
        return True

    def end(self) -> None:
        """Any thread: what is tried now is given up, and nothing is from now on. `close` follows."""
        with self._lock:
            self._has_ended = True
            if self._process is not None:
                _kill(self._process)

    def close(self) -> None:
        """Kill the process; the next `run` starts another."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            _kill(process)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            _of(pipe).close()

    def _start(self) -> subprocess.Popen[bytes]:
        """Raises: OSError."""
        compiler = self._compiler
        ids = range(compiler.num_tokens)
        vocabulary = Vocabulary(
            [compiler.tokens.token_bytes[token_id] for token_id in ids],
            compiler.tokens.special_ids,
            compiler.end_ids,
        )
        with self._lock:
            if self._has_ended:
                raise OSError("the engine stops")
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is the engine's, which ends it
            )
        _write(_of(process.stdin), msgspec.msgpack.encode(vocabulary))
        if _read_within(_of(process.stdout), START_TIMEOUT_S) is None:
            raise OSError("its process did not start")
        return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """And the child that it waits for."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


# ---- the process -----------------------------------------------------------------------------------


def main() -> None:
    """Reads a vocabulary, answers that it is ready, then a verdict for each trial until its input ends."""
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # nothing else may write into the answers
    os.nice(NICENESS)
    data = _read(source)
    if data is None:
        return
    vocabulary = msgspec.msgpack.decode(data, type=Vocabulary)
    compiler = GrammarCompiler(Tokens(vocabulary), len(vocabulary.token_bytes), vocabulary.end_ids)
    _try(compiler, StructuredOutputsParams(json_object=True))  # loads the library, for all children
    _write(answers, b"")
    while (data := _read(source)) is not None:
        trial = msgspec.msgpack.decode(data, type=Trial)
        child = os.fork()  # one thread, no torch: the child has the library loaded
        if child == 0:
            _run_child(compiler, trial, answers)
        _, status = os.waitpid(child, 0)
        if status:
            _write(answers, msgspec.msgpack.encode(Verdict(is_killed=True)))


def _run_child(compiler: GrammarCompiler, trial: Trial, answers: IO[bytes]) -> NoReturn:
    """Its end by a signal is the verdict that it did not write."""
    os.nice(trial.niceness)
    limit_this_process(trial.limit_s, MEMORY_BYTES, STACK_BYTES)
    verdict = _try(compiler, trial.params)
    signal.setitimer(signal.ITIMER_PROF, 0)  # there is one verdict
    _write(answers, msgspec.msgpack.encode(verdict))
    os._exit(0)


def _try(compiler: GrammarCompiler, params: StructuredOutputsParams) -> Verdict:
    try:
        compiler.compile(params)
    except RequestError as error:
        return Verdict(error.message, error.param, isinstance(error, UnsupportedParameter))
    except MemoryError:
        return Verdict(is_killed=True)
    return Verdict()


# ---- frames: a length, then so many bytes ----------------------------------------------------------


def _write(pipe: IO[bytes], data: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[pipe.write(rest) :]


def _read(pipe: IO[bytes]) -> bytes | None:
    """None at the end of the input."""
    head = _read_exactly(pipe, _LENGTH.size)
    return None if head is None else _read_exactly(pipe, _LENGTH.unpack(head)[0])


def _read_exactly(pipe: IO[bytes], count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        more = pipe.read(count - len(data))
        if not more:
            return None
        data += more
    return data


def _read_within(pipe: IO[bytes], timeout_s: float) -> bytes | None:
    """None where nothing has come. Raises: OSError where the process has ended."""
    deadline_s = time.monotonic() + timeout_s
    while not select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        if time.monotonic() >= deadline_s:
            return None
    data = _read(pipe)
    if data is None:
        raise OSError("its process has ended")
    return data


def _of(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None, "it is a pipe"
    return pipe


if __name__ == "__main__":
    main()
