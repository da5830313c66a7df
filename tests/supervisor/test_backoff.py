from __future__ import annotations

from trivet_supervisor.backoff import Backoff


def test_delays_double_up_to_a_minute() -> None:
    backoff = Backoff()
    assert [backoff.delay_s(n) for n in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert backoff.delay_s(8) == backoff.delay_s(10_000) == 60.0


def test_a_launch_that_never_worked_is_given_up_sooner_than_one_that_did() -> None:
    backoff = Backoff()
    assert [backoff.gives_up(n, has_served=False) for n in (2, 3)] == [False, True]
    assert [backoff.gives_up(n, has_served=True) for n in (9, 10)] == [False, True]
