"""Body of an engine process: `python -m trivet.engine.process ORDER_FILE`.

One thread takes messages, schedules, submits, commits and sends; the heart beats beside it. Exit codes
tell the supervisor what happened: 0 stopped as told, 3 cannot start (starting again gives the same),
4 crashed, 5 device lost.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import time
from collections import deque
from pathlib import Path

import msgspec
import zmq

from trivet.confining import no_memory_left
from trivet.engine.assembly import Engine, assemble
from trivet.engine.batch_view import batch_view
from trivet.engine.doors import Doors
from trivet.engine.grammar_queue import GrammarQueue
from trivet.engine.grammar_trial import GrammarTrial
from trivet.engine.heartbeat import Heart
from trivet.engine.mailbox import Mailbox, Unreadable
from trivet.engine.measured_peaks import NOWHERE, PeakStore
from trivet.engine.new_sequence import make_sequence
from trivet.engine.order_file import check_version, read_order
from trivet.engine.placement import place
from trivet.engine.sequence import Sequence
from trivet.engine_settings import EngineSettings, parse_engine_settings
from trivet.errors import (
    DeviceLost,
    DoesNotFit,
    EngineLost,
    InstanceStopped,
    Overloaded,
    TrivetError,
    Unavailable,
)
from trivet.messages import (
    BEAT_INTERVAL_S,
    Abort,
    ControlRequest,
    Drain,
    EngineRequest,
    FinishReason,
    LaunchOrder,
    Look,
    Phase,
    Piece,
    ResetPrefixCache,
    Stop,
    Submit,
)
from trivet.models.model_files import open_model
from trivet.optional_contract import GivesNotices, HasRanks
from trivet.plugins import load_plugins
from trivet.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_CANNOT_START = 3
EXIT_CRASHED = 4
EXIT_DEVICE_LOST = 5
RANKS_WAIT_S = 1.0  # how often an idle engine looks at the other processes of its runner
GRAMMAR_WAIT_S = 0.5  # how often a grammar that is being compiled is looked at
SWITCH_INTERVAL_S = 0.0005  # beside a busy thread a 3 ms native call otherwise returns after 8 ms


class EngineProcess:
    """One instance: loads, proves itself with a token, serves until it is told to stop."""

    def __init__(self, order: LaunchOrder, engine: Engine | None = None) -> None:
        """Args: engine that is loaded already; None loads the one of the order."""
        self._order = order
        self._loaded = engine
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._control: deque[ControlRequest] = deque()
        self._doors = Doors(order)
        self._heart = Heart(order, self._on_control, self._on_hang, self._on_unreachable, self._doors)
        self._is_unreachable = False
        self._drain_deadline_s: float | None = None
        self._step_timeout_s = EngineSettings().step_timeout_s
        self._stopping = False
        self._grammars: GrammarQueue  # from the time on when it serves

    def run(self) -> int:
        """Returns the exit code; says the reason of a failure in a last beat."""
        mailbox = Mailbox(self._doors, self._wake)
        self._heart.start()
        engine: Engine | None = None
        try:
            if self._doors.is_remote:
                mailbox.open()  # its port is to be told, too
                self._doors.announce()
            engine = self._start()
            self._serve(engine, mailbox)
            return EXIT_STOPPED
        except DeviceLost as error:
            return self._fail(EXIT_DEVICE_LOST, error)
        except (DoesNotFit, Unavailable) as error:  # may pass: memory comes back
            return self._fail(EXIT_CRASHED, error)
        except TrivetError as error:
            return self._fail(EXIT_CANNOT_START if engine is None else EXIT_CRASHED, error)
        except MemoryError:
            logger.exception("instance=%s has no memory left", self._order.instance_id)
            return self._fail(EXIT_CRASHED, Unavailable(no_memory_left(self._order.backend)))
        except Exception as error:  # the engine loop's border: the process ends and says why
            logger.exception("instance=%s crashed", self._order.instance_id)
            return self._fail(EXIT_CRASHED, error)
        finally:
            mailbox.close()
            if engine is not None:
                engine.close()
            self._heart.stop()
            self._doors.close()

    # ---- start ----

    def _start(self) -> Engine:
        check_version(self._order.version)
        self._heart.set_phase(Phase.LOADING)
        settings = parse_engine_settings(self._order.settings)
        self._step_timeout_s = settings.step_timeout_s
        engine = self._loaded or self._load(settings)
        self._generate_first_token(engine)
        self._heart.set_memory([(part.name, part.size_bytes) for part in engine.runner.memory()])
        own = engine.runner.notices() if isinstance(engine.runner, GivesNotices) else ()
        self._heart.set_notices([*self._order.notices, *own])
        self._heart.set_adapters(engine.core.adapters)
        return engine

    def _load(self, settings: EngineSettings) -> Engine:
        host = load_plugins()
        files = open_model(self._order.model_path, host)
        peaks = PeakStore(Path(self._order.peaks_dir)) if self._order.peaks_dir else NOWHERE
        placement = place(host, files, settings, self._order.backend, self._order.device_uids, peaks)
        return assemble(
            files,
            placement,
            settings,
            on_progress=self._heart.set_progress,
            on_warming=lambda: self._heart.set_phase(Phase.WARMING),
            peaks=peaks,
        )

    def _generate_first_token(self, engine: Engine) -> None:
        """READY means that this loop has produced a token. Raises: Unavailable."""
        prompt = engine.tokenizer.encode("Hello", add_special_tokens=True) or [0]
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        engine.core.add(Sequence("first-token", prompt, params))
        produced: list[int] = []
        while engine.core.has_work:
            self._heart.begin_step(self._step_timeout_s)
            for update in engine.core.step():
                if update.failure is not None:
                    raise Unavailable(f"the first token failed: {update.failure.message}")
                produced.extend(update.token_ids)
            self._heart.end_step(engine.core.load())
        if not produced:
            raise Unavailable("the engine's loop ended without a first token")
        logger.info("instance=%s first_token=%s", self._order.instance_id, produced[0])

    # ---- serve ----

    def _serve(self, engine: Engine, mailbox: Mailbox) -> None:
        mailbox.open()  # not sooner: who has the address of an earlier attempt is refused, and asks another
        grammars = self._grammars = GrammarQueue(
            engine.grammars, GrammarTrial(engine.grammars), lambda: os.eventfd_write(self._wake, 1)
        )
        try:
            self._heart.set_phase(Phase.READY)
            while not self._is_done(engine):
                is_idle = not engine.core.has_work
                if is_idle and isinstance(engine.runner, HasRanks):
                    engine.runner.check_ranks()
                for client, request in mailbox.drain(self._idle_wait_s(engine) if is_idle else 0.0):
                    self._handle(engine, mailbox, client, request)
                self._take_control()
                if self._is_unreachable:
                    self._is_unreachable = False
                    mailbox.keep_bound()
                for sequence, failure in grammars.take():
                    self._add(engine, mailbox, sequence, failure)
                if engine.core.has_work and not self._stopping:
                    self._step(engine, mailbox)
                elif not is_idle:  # an abort was its last work: no step will report the new load
                    self._heart.set_load(engine.core.load())
            self._heart.set_phase(Phase.STOPPING)
            reason = "was stopped" if self._stopping else "reached its drain deadline"
            stopped = InstanceStopped(f"instance {self._order.instance_id} {reason}; send the request again")
            self._end_all(engine, mailbox, stopped)
        except BaseException as error:
            lost = EngineLost(f"instance {self._order.instance_id} ended: {error}")
            self._end_all(engine, mailbox, lost)
            raise
        finally:
            grammars.close()

    def _end_all(self, engine: Engine, mailbox: Mailbox, error: Unavailable) -> None:
        """Open requests, and those that have come unread, learn that this engine will not serve them."""
        load = engine.core.load()
        for client, request in mailbox.drain(0.0):
            if not isinstance(request, Abort):
                mailbox.refuse(client, request.request_id, error, load)
        mailbox.fail_all(error, load)

    def _step(self, engine: Engine, mailbox: Mailbox) -> None:
        self._heart.begin_step(self._step_timeout_s)
        updates = engine.core.step()
        load = engine.core.load()
        self._heart.end_step(load)
        for client in mailbox.send(updates, load):
            self._drop_client(engine, mailbox, client)

    def _handle(
        self, engine: Engine, mailbox: Mailbox, client: bytes, request: EngineRequest | Unreadable
    ) -> None:
        if isinstance(request, Unreadable):
            mailbox.refuse(client, request.request_id, request.error, engine.core.load())
            return
        if isinstance(request, ResetPrefixCache):
            num_tokens = engine.core.reset_prefix_cache()
            logger.info("instance=%s prefix_cache=reset tokens=%d", self._order.instance_id, num_tokens)
            told = Piece(request.request_id, "", [], FinishReason.STOP, cached_tokens=num_tokens)
            mailbox.answer(client, told, engine.core.load())
            return
        if isinstance(request, Look):
            view = msgspec.json.encode(batch_view(engine.core)).decode()
            mailbox.answer(client, Piece(request.request_id, view, [], FinishReason.STOP), engine.core.load())
            return
        if isinstance(request, Abort):
            sequence_id = mailbox.forget(client, request.request_id)
            if sequence_id is not None:
                self._abort(engine, sequence_id)
            return
        try:
            self._admit(engine, mailbox, client, request)
        except TrivetError as error:
            mailbox.refuse(client, request.request_id, error, engine.core.load())

    def _admit(self, engine: Engine, mailbox: Mailbox, client: bytes, request: Submit) -> None:
        if self._heart.phase is not Phase.READY:
            raise Unavailable(f"instance {self._order.instance_id} is {self._heart.phase}")
        sequence = make_sequence(
            engine.tokenizer,
            mailbox.sequence_id(client, request.request_id),
            request.prompt_token_ids,
            request.params,
            priority=request.priority,
            key=request.key,
            key_class=request.key_class,
            deadline_s=request.deadline_on(time.monotonic()),
            adapter=request.adapter,
            cache_salt=request.cache_salt,
            group=request.group,
            index=request.index,
        )
        if request.pooling is not None:
            sequence.pooling = engine.resolved_pooling(request.pooling)
        if request.params.structured_outputs is None:
            engine.core.add(sequence)
        else:
            try:
                self._grammars.submit(sequence, request.params.structured_outputs)
            except Overloaded as error:
                engine.core.count_failure(error)
                raise
        mailbox.remember(client, request.request_id)

    def _add(self, engine: Engine, mailbox: Mailbox, sequence: Sequence, failure: TrivetError | None) -> None:
        """Queue a sequence whose grammar is compiled, or answer why it cannot be."""
        try:
            if failure is not None:
                engine.core.count_failure(failure)
                raise failure
            engine.core.add(sequence)
        except TrivetError as error:
            load = engine.core.load()
            mailbox.refuse_open(sequence.request_id, error, load)
            self._heart.set_load(load)  # there may be no step to report it

    def _abort(self, engine: Engine, sequence_id: str) -> None:
        self._grammars.cancel(sequence_id)
        engine.core.abort(sequence_id)

    def _drop_client(self, engine: Engine, mailbox: Mailbox, client: bytes) -> None:
        """A web worker that has gone, or takes nothing any more: its sequences end."""
        dropped = mailbox.forget_client(client)
        for sequence_id in dropped:
            self._abort(engine, sequence_id)
        logger.warning("client=%s is gone: num_aborted=%d", client.hex(), len(dropped))

    # ---- control ----

    def _on_control(self, request: ControlRequest) -> None:
        """On the heart's thread. While a model loads there is nothing to lose: end at once."""
        if self._heart.phase in (Phase.STARTING, Phase.LOADING, Phase.WARMING):
            logger.info("stopped while %s", self._heart.phase)
            os._exit(EXIT_STOPPED)
        self._control.append(request)
        os.eventfd_write(self._wake, 1)

    def _on_unreachable(self) -> None:
        """On the heart's thread."""
        self._is_unreachable = True
        os.eventfd_write(self._wake, 1)

    def _on_hang(self, age_s: float) -> None:
        """On the heart's thread: the loop waits for a device that does not answer and cannot end itself."""
        reason = (
            f"a step has run for {age_s:.0f} s and step_timeout_s is {self._step_timeout_s:g}: the device "
            "hangs, or is slower than that"
        )
        logger.critical("instance=%s exit_code=%d %s", self._order.instance_id, EXIT_CRASHED, reason)
        faulthandler.dump_traceback()
        self._heart.set_phase(Phase.FAILED, reason)
        self._heart.publish_last()
        os._exit(EXIT_CRASHED)

    def _take_control(self) -> None:
        while self._control:
            request = self._control.popleft()
            logger.info("instance=%s control=%s", self._order.instance_id, type(request).__name__)
            if isinstance(request, Stop):
                self._stopping = True
            elif isinstance(request, Drain):
                self._drain_deadline_s = time.monotonic() + request.timeout_s
                self._heart.set_phase(Phase.DRAINING)

    def _idle_wait_s(self, engine: Engine) -> float | None:
        if len(self._grammars):
            return GRAMMAR_WAIT_S
        if self._drain_deadline_s is not None:
            return 0.0
        return RANKS_WAIT_S if isinstance(engine.runner, HasRanks) else None

    def _is_done(self, engine: Engine) -> bool:
        if self._stopping:
            return True
        if self._drain_deadline_s is None:
            return False
        has_work = engine.core.has_work or len(self._grammars)
        return not has_work or time.monotonic() > self._drain_deadline_s

    def request_stop(self) -> None:
        """For the signal handler."""
        self._on_control(Stop(self._order.lease))

    def _fail(self, code: int, error: Exception) -> int:
        reason = str(error) or type(error).__name__
        if not isinstance(error, TrivetError):
            reason = f"{type(error).__name__}: {reason}"
        logger.error("instance=%s exit_code=%d reason=%s", self._order.instance_id, code, reason)
        self._heart.set_phase(Phase.FAILED, reason)
        time.sleep(2 * BEAT_INTERVAL_S)  # the beat that carries the reason must reach its subscribers
        return code


def main(argv: list[str] | None = None) -> int:
    """Entry of the process."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("usage: python -m trivet.engine.process ORDER_FILE", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        process = EngineProcess(read_order(Path(arguments[0])))
    except TrivetError as error:  # there is no heart that could tell it
        logger.error("exit_code=%d reason=%s", EXIT_CANNOT_START, error)
        return EXIT_CANNOT_START
    signal.signal(signal.SIGTERM, lambda signum, frame: process.request_stop())
    code = process.run()
    zmq.Context.instance().term()
    if code == EXIT_DEVICE_LOST:  # a thread may wait in its driver for ever, and an exit for that thread
        logging.shutdown()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
