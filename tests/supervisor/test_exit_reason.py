from __future__ import annotations

import pytest

from trivet.engine import process
from trivet.messages import Beat, Phase
from trivet_supervisor.exit_reason import CANNOT_START, exit_reason, own_words, stopped_reason


def beat(phase: Phase, reason: str) -> Beat:
    return Beat("i", "lease", 1, 1, phase, reason)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "killed by SIGKILL (the kernel does that too when memory runs out)"),
        (-11, "killed by SIGSEGV"),
        (-64, "killed by SIGRTMAX"),
        (-99, "killed by signal 99"),
        (0, "ended by itself with exit code 0"),
        (4, "exit code 4"),
        (255, "its process ended; no exit code, because another supervisor had started it"),
    ],
)
def test_every_way_to_end_has_its_words(code: int, words: str) -> None:
    assert exit_reason(code, "") == words


def test_the_engines_own_words_are_kept() -> None:
    assert exit_reason(3, own_words(beat(Phase.FAILED, "no such file"))) == "exit code 3: no such file"
    orphaned = "no supervisor was heard for 20 s (orphan_timeout_s)"
    said = own_words(beat(Phase.STOPPING, orphaned))
    assert exit_reason(0, said) == f"ended by itself with exit code 0: {orphaned}"
    assert own_words(beat(Phase.LOADING, "layer 3")) == own_words(None) == "", (
        "only a failure explains an end"
    )


def test_a_wanted_end_is_no_failure() -> None:
    assert stopped_reason(0) == "stopped with exit code 0"
    assert stopped_reason(-9) == "stopped; killed by SIGKILL"
    assert stopped_reason(255) == stopped_reason(None) == "stopped"


def test_the_code_for_a_hopeless_start_is_the_engines() -> None:
    assert CANNOT_START == process.EXIT_CANNOT_START
