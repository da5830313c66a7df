"""Body of a rank's process: `python -m trivet.runners.rank_process FD`, which `ranks` starts.

It opens its device, meets the other ranks and carries out what rank 0 says over the socket FD. Answers are
`rank_order.DONE` with the notices of its runner, or FAILED with words; steps are not answered, since the next
may be under way.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import torch.distributed as dist

from trivet.runners.collectives import Distributed
from trivet.runners.frames import Frames
from trivet.runners.rank_order import DONE, FAILED, OpensRank, RankOrder, ShardedRunner, meet
from trivet.runners.wire import flatten, restore

FAILURE = 1  # exit code
STEPS = ("forward", "take_part_in_sampling")


def carry_out(frames: Frames) -> None:
    """Until rank 0 says `close` or has gone. Ends the process where this rank fails."""
    runner: ShardedRunner | None = None
    try:
        order = RankOrder(*restore(frames.receive()))
        opened = _opener(order.opens)(order)
        frames.send(_done(None))
        meet(order, opened)
        runner = opened.make_runner(Distributed())
        frames.send(_done(runner))
        _obey(runner, frames)
    except EOFError:
        return
    except Exception as error:  # a border like the engine loop's: compilers have errors of their own
        logging.getLogger(__name__).exception("this rank has failed")
        with suppress(OSError):  # rank 0 may have gone before
            frames.send(FAILED + f"{type(error).__name__}: {error}".encode())
        logging.shutdown()
        os._exit(FAILURE)  # leaving the group would wait for the others; the driver takes its memory back
    finally:
        if runner is not None:
            runner.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def _obey(runner: ShardedRunner, frames: Frames) -> None:
    commands: Mapping[str, Callable[..., Any]] = {
        "load": lambda weights: runner.load(weights, lambda done, total: None),
        "load_adapter": runner.load_adapter,
        "unload_adapter": runner.unload_adapter,
        "allocate_kv": runner.allocate_kv,
        "warm_up": runner.warm_up,
        "forward": runner.forward,
        "take_part_in_sampling": runner.take_part_in_sampling,
    }
    while True:
        name, *arguments = restore(frames.receive())
        if name == "close":
            return
        commands[name](*arguments)
        if name not in STEPS:
            frames.send(_done(runner))


def _done(runner: ShardedRunner | None) -> bytes:
    return DONE + flatten(() if runner is None else runner.notices())


def _opener(name: str) -> OpensRank:
    """The function that "package.module:function" names; rank 0 chose it, in its own program."""
    module, _, function = name.partition(":")
    return cast("OpensRank", getattr(importlib.import_module(module), function))


def _end_with_rank_0(frames: Frames) -> None:
    """This process may stand inside a collective, where it reads nothing and no exception reaches it."""
    frames.wait_for_end()
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Entry of the process."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    frames = Frames(socket.socket(fileno=int(sys.argv[1])))
    threading.Thread(target=_end_with_rank_0, args=(frames,), daemon=True).start()
    carry_out(frames)
    return 0


if __name__ == "__main__":
    sys.exit(main())
