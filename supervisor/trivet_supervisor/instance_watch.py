"""What the signs of life of one engine mean for the state of its instance: a pure function of them.

Silence is judged late and carefully: past the limit and past any step deadline that the engine
announced, the engine is asked first (any control message makes it beat at once); only if it does not
answer is it given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from trivet.endpoints import Endpoints
from trivet.launching import EngineHandle
from trivet.messages import SILENCE_LIMIT_S, Beat, EngineLoad, Phase
from trivet_registry.instance_state import InstanceState


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds after which a state is given up."""

    placing_s: float = 45.0  # a probe may take 12 s
    starting_s: float = 120.0  # from spawn to the first beat: imports on a cold disk
    loading_stall_s: float = 300.0  # without one more byte loaded
    warming_s: float = 900.0  # a first build of kernels
    failing_s: float = 15.0  # between the beat that says FAILED and the exit
    drain_grace_s: float = 5.0  # past the drain's own deadline
    stop_s: float = 3.0  # from the Stop message to SIGTERM
    terminate_s: float = 5.0  # from SIGTERM to SIGKILL
    kill_s: float = 10.0  # from SIGKILL until the kernel has ended an engine and its ranks
    silence_s: float = SILENCE_LIMIT_S
    # While it comes up: loading a library of 2 GB from a cold disk holds the GIL, and the heart with it.
    boot_silence_s: float = 120.0
    answer_s: float = 3.0  # to the question that follows the silence
    memory_back_s: float = 30.0  # of a device, from the end of the processes that had it
    max_losses_per_minute: int = 3  # a busy host looks like many silent engines

    @property
    def ending_s(self) -> float:
        """From a drain's deadline until an engine is `stopped` that obeys nothing but SIGKILL."""
        signals_s = self.drain_grace_s + self.stop_s + self.terminate_s
        return signals_s + self.kill_s + self.memory_back_s


@dataclass(slots=True)
class Watched:
    """One engine process as this supervisor follows it. Times are CLOCK_MONOTONIC seconds."""

    handle: EngineHandle
    lease: str
    state: InstanceState
    entered_s: float  # the state, as far as this supervisor saw it
    heard_s: float  # of the last beat
    progressed_s: float  # of the last byte loaded
    busy_s: float  # when it was last seen with a request
    failing_s: float | None = None  # since the first beat that said FAILED
    beat: Beat | None = None
    asked_s: float | None = None  # since the question after a silence
    ready_s: float | None = None  # since it was ready
    drain_timeout_s: float | None = None  # as last told
    told_s: float = 0.0  # of the last Drain
    terminated_s: float | None = None  # since SIGTERM
    killed_s: float | None = None  # since SIGKILL
    is_kept: bool = False  # though silent
    gone_s: float | None = None  # since its processes have ended
    memory_note: str = ""  # on a device that has not given its memory back
    endpoints: Endpoints | None = None  # where it is followed
    saved: Beat | None = None  # the last beat whose content is in the registry

    def hear(self, beat: Beat, now: float) -> None:
        if self.beat is None or beat.progress_done != self.beat.progress_done:
            self.progressed_s = now
        if beat.phase is Phase.FAILED and self.failing_s is None:
            self.failing_s = now
        if self.beat is None or _works(beat.load) or _work_done(beat.load) != _work_done(self.beat.load):
            self.busy_s = now
        self.beat, self.heard_s, self.asked_s = beat.on_clock(now), now, None

    def told(self) -> dict[str, Any]:
        """The columns of an instance that its last beat tells; none before the first."""
        if self.beat is None:
            return {}
        return {
            "progress_done": self.beat.progress_done,
            "progress_total": self.beat.progress_total,
            "load": msgspec.structs.asdict(self.beat.load),
            "memory": dict(self.beat.memory),
            "notices": self.beat.notices,
        }

    def enter(self, state: InstanceState, now: float) -> None:
        self.state, self.entered_s, self.progressed_s = state, now, now
        if state is InstanceState.READY:
            self.ready_s = self.busy_s = now

    def resume(self, entered_s: float | None, now: float) -> None:
        """Count a state's deadline from when an earlier supervisor wrote it down.

        CLOCK_MONOTONIC is the host's: as the process lives, the host was not started anew since.
        """
        if entered_s is not None and entered_s <= now:
            self.entered_s = entered_s


@dataclass(frozen=True, slots=True)
class Advance:
    """The engine itself says that it is in another state."""

    to: InstanceState
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A deadline has passed; the process is to be killed."""

    reason: str
    for_silence: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Silent for too long: ask the engine itself."""


Verdict: TypeAlias = Advance | GiveUp | Ask | None

_STATE_OF_PHASE = {
    Phase.LOADING: InstanceState.LOADING,
    Phase.WARMING: InstanceState.WARMING,
    Phase.READY: InstanceState.READY,
    Phase.STOPPING: InstanceState.STOPPING,
}
_REASONS = {  # for an engine that adds nothing
    InstanceState.LOADING: "reads the model's weights",
    InstanceState.WARMING: "warms up and generates a first token",
    InstanceState.READY: "generated a token and serves",
}
_BOOT = (InstanceState.STARTING, InstanceState.LOADING, InstanceState.WARMING, InstanceState.READY)


def judge(watched: Watched, now: float, limits: Limits) -> Verdict:
    """For an instance that shall live. Its exit code is looked at before."""
    beat = watched.beat
    if beat is not None:
        to = _STATE_OF_PHASE.get(beat.phase)
        if to is InstanceState.STOPPING and watched.state in _BOOT:
            return Advance(to, beat.reason or "its engine was told to stop by someone else")
        if to in _BOOT and watched.state in _BOOT and _BOOT.index(to) > _BOOT.index(watched.state):
            return Advance(to, beat.reason or _REASONS[to])
    return _judge_deadlines(watched, now, limits) or _judge_silence(watched, now, limits)


def _judge_deadlines(watched: Watched, now: float, limits: Limits) -> GiveUp | None:
    since_s = now - watched.entered_s
    if watched.beat is None and now - watched.heard_s <= limits.silence_s:
        return None  # adopted a moment ago: it may be far beyond the state that was written down
    if watched.failing_s is not None and now - watched.failing_s > limits.failing_s:
        return GiveUp(f"it failed and did not end within {limits.failing_s:.0f} s: {_reason(watched.beat)}")
    if watched.state is InstanceState.STARTING and since_s > limits.starting_s:
        said = "said nothing of loading" if watched.beat else "gave no sign of life"
        return GiveUp(f"its process {said} within {limits.starting_s:.0f} s of its start")
    if watched.state is InstanceState.LOADING and now - watched.progressed_s > limits.loading_stall_s:
        beat = watched.beat
        done = (
            f"{beat.progress_done} of {beat.progress_total} bytes" if beat else "an unknown number of bytes"
        )
        return GiveUp(f"loading stood still for {limits.loading_stall_s:.0f} s at {done}")
    if watched.state is InstanceState.WARMING and since_s > limits.warming_s:
        return GiveUp(f"it was warming up for more than {limits.warming_s:.0f} s")
    return None


def _judge_silence(watched: Watched, now: float, limits: Limits) -> Verdict:
    beat = watched.beat
    if watched.state is InstanceState.STARTING:
        return None  # has a deadline of its own
    is_booting = watched.state in (InstanceState.LOADING, InstanceState.WARMING)
    limit_s = limits.boot_silence_s if is_booting else limits.silence_s
    step_deadline_s = (beat.step_deadline_s if beat else None) or 0.0
    if watched.handle.unreachable():  # a long step makes no host silent
        step_deadline_s = 0.0
    if (
        now - watched.heard_s < limits.silence_s
        and step_deadline_s
        and now - step_deadline_s > limits.silence_s
    ):
        return GiveUp("a step has run past the deadline that the engine gave for it; the device may hang")
    silent_s = now - max(watched.heard_s, step_deadline_s)
    if silent_s <= limit_s:
        return None
    if watched.asked_s is None:
        return Ask()
    if now - watched.asked_s > limits.answer_s:
        return GiveUp(
            f"it was silent for {now - watched.heard_s:.0f} s and did not answer when asked", for_silence=True
        )
    return None


def _works(load: EngineLoad) -> bool:
    return load.num_running > 0 or load.num_waiting > 0


def _work_done(load: EngineLoad) -> tuple[int, int]:
    """Grows with each request, also with one that came and went between two beats."""
    return load.prompt_tokens, load.num_refused


def _reason(beat: Beat | None) -> str:
    return (beat.reason if beat else "") or "no reason given"
