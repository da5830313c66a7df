"""Few threads for many short works, and more where all of them wait."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from trivet_web.stream_worker import pool as pool_module
from trivet_web.stream_worker.pool import NUM_AT_ONCE, Pool

WITHIN_S = 20.0


@pytest.fixture
def make_pool() -> Iterator[Callable[[int], Pool]]:
    pools: list[Pool] = []

    def make(max_threads: int) -> Pool:
        pools.append(Pool(max_threads))
        return pools[-1]

    yield make
    for pool in pools:
        pool.shutdown()


def test_a_burst_of_short_works_takes_few_threads(make_pool: Callable[[int], Pool]) -> None:
    pool = make_pool(512)
    futures = [pool.submit(time.sleep, 0.0) for _ in range(2_000)]
    for future in futures:
        future.result(WITHIN_S)
    assert pool.num_threads <= 8 * NUM_AT_ONCE  # without the growth of a busy machine: NUM_AT_ONCE


def test_where_all_threads_wait_others_are_started_for_what_comes(make_pool: Callable[[int], Pool]) -> None:
    pool, go_on = make_pool(512), threading.Event()
    waiting = [pool.submit(go_on.wait, WITHIN_S) for _ in range(10 * NUM_AT_ONCE)]
    assert pool.submit(lambda: "done").result(WITHIN_S) == "done"
    assert not any(future.done() for future in waiting)
    go_on.set()
    assert all(future.result(WITHIN_S) for future in waiting)


def test_urgent_work_that_comes_all_the_time_hides_none_that_waits(make_pool: Callable[[int], Pool]) -> None:
    pool, go_on = make_pool(512), threading.Event()
    for _ in range(NUM_AT_ONCE):
        pool.submit(go_on.wait, WITHIN_S)
    waiting = pool.submit(lambda: "done")
    latest_s = time.monotonic() + WITHIN_S
    while not waiting.done() and time.monotonic() < latest_s:
        pool.submit_urgent(time.sleep, 0.0)
        time.sleep(0.02)
    go_on.set()
    assert waiting.done()


def test_no_more_threads_than_are_allowed(make_pool: Callable[[int], Pool]) -> None:
    pool, go_on = make_pool(3), threading.Event()
    works = [pool.submit(go_on.wait, WITHIN_S) for _ in range(20)]
    time.sleep(0.2)  # four times its patience
    assert pool.num_threads == 3
    go_on.set()
    assert all(future.result(WITHIN_S) for future in works)


def test_what_is_urgent_goes_before_all_that_waits(make_pool: Callable[[int], Pool]) -> None:
    pool, go_on, order = make_pool(1), threading.Event(), list[str]()
    first = pool.submit(go_on.wait, WITHIN_S)
    while not first.running():
        time.sleep(0.001)
    works = [pool.submit(order.append, name) for name in "ab"]
    works += [pool.submit_urgent(order.append, name) for name in ("urgent", "too")]
    go_on.set()
    for future in works:
        future.result(WITHIN_S)
    assert order == ["urgent", "too", "a", "b"]


def test_an_error_is_its_futures_and_ends_no_thread(make_pool: Callable[[int], Pool]) -> None:
    pool = make_pool(1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(WITHIN_S)
    assert pool.submit(lambda: 2).result(WITHIN_S) == 2
    assert pool.num_threads == 1


def test_work_is_done_later_where_no_thread_can_be_started_now(
    make_pool: Callable[[int], Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, start, refused = make_pool(4), threading.Thread.start, list[str]()

    def refuse_twice(thread: threading.Thread) -> None:
        if thread.name == "pool" and len(refused) < 2:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_twice)
    assert pool.submit(lambda: "done").result(WITHIN_S) == "done"
    assert len(refused) == 2


def test_what_was_taken_is_done_when_it_is_shut_down(make_pool: Callable[[int], Pool]) -> None:
    pool = make_pool(2)
    works = [pool.submit(time.sleep, 0.001) for _ in range(50)]
    pool.shutdown()
    for future in works:
        future.result(WITHIN_S)
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(time.sleep, 0.0)
    latest_s = time.monotonic() + WITHIN_S
    while pool.num_threads and time.monotonic() < latest_s:
        time.sleep(0.005)
    assert pool.num_threads == 0


def test_threads_that_a_burst_left_idle_go(
    make_pool: Callable[[int], Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "IDLE_S", 0.05)
    pool, go_on = make_pool(512), threading.Event()
    waiting = [pool.submit(go_on.wait, WITHIN_S) for _ in range(4 * NUM_AT_ONCE)]
    latest_s = time.monotonic() + WITHIN_S
    while not all(future.running() for future in waiting) and time.monotonic() < latest_s:
        time.sleep(0.005)
    assert pool.num_threads >= 4 * NUM_AT_ONCE  # more where a thread was long in starting
    go_on.set()
    while pool.num_threads > NUM_AT_ONCE and time.monotonic() < latest_s:
        assert pool.submit(lambda: "done").result(WITHIN_S) == "done"  # none that leaves takes work with it
        time.sleep(0.01)
    assert pool.num_threads == NUM_AT_ONCE


def test_nobody_waits_for_a_thread_that_starts(
    make_pool: Callable[[int], Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, start, starts, go_on = make_pool(2), threading.Thread.start, threading.Event(), threading.Event()
    assert pool.submit(lambda: "done").result(WITHIN_S) == "done"

    def start_late(thread: threading.Thread) -> None:
        if thread.name == "pool":
            starts.set()
            go_on.wait(WITHIN_S)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    held = threading.Event()
    pool.submit(held.wait, WITHIN_S)
    starter = threading.Thread(target=pool.submit, args=(time.sleep, 0.0))
    starter.start()
    assert starts.wait(WITHIN_S)
    held.set()  # the thread that there is takes what comes meanwhile
    assert pool.submit_urgent(lambda: "done").result(WITHIN_S / 4) == "done"
    go_on.set()
    starter.join(WITHIN_S)


def test_a_work_that_failed_is_forgotten_with_its_future(make_pool: Callable[[int], Pool]) -> None:
    class Request:
        """What a work holds."""

        def fail(self) -> None:
            raise ValueError("no")

    pool, request = make_pool(1), Request()
    known = weakref.ref(request)
    gc.collect()
    gc.disable()
    try:
        future = pool.submit(request.fail)
        assert isinstance(future.exception(WITHIN_S), ValueError)
        assert pool.submit(lambda: "done").result(WITHIN_S) == "done"  # its thread has let go of it
        del future, request
        assert known() is None
    finally:
        gc.enable()
