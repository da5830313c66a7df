"""When the requests of a load are due."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.bench.arrivals import Arrivals

COUNT = 20_000


def _gaps(burstiness: float) -> np.ndarray:
    offsets = Arrivals(rate=4.0, burstiness=burstiness).offsets_s(COUNT, np.random.default_rng(7))
    return np.diff(offsets)


def test_poisson_gaps_are_exponential() -> None:
    gaps = _gaps(1.0)
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() == pytest.approx(0.25, rel=0.03)
    # The Kolmogorov-Smirnov distance to the exponential law; 1.63 / sqrt(n) is its 99 % bound.
    points = np.sort(gaps)
    law = 1 - np.exp(-4.0 * points)
    steps = np.arange(1, len(points) + 1) / len(points)
    assert np.abs(steps - law).max() < 1.63 / np.sqrt(len(points))


def test_poisson_counts_vary_as_much_as_they_are() -> None:
    offsets = np.cumsum(_gaps(1.0))
    counts = np.bincount(offsets.astype(int))[:-1]  # arrivals of each whole second
    assert counts.mean() == pytest.approx(4.0, rel=0.05)
    assert counts.var() == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_burstiness_changes_the_spread_and_not_the_rate(burstiness: float) -> None:
    gaps = _gaps(burstiness)
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    arrivals = Arrivals(rate=9.0)
    one = arrivals.offsets_s(50, np.random.default_rng(1))
    assert one == arrivals.offsets_s(50, np.random.default_rng(1))
    assert one != arrivals.offsets_s(50, np.random.default_rng(2))
    assert one[0] == 0.0
    assert one == sorted(one)


def test_in_the_closed_loop_all_are_due_at_once() -> None:
    assert Arrivals(concurrency=2).offsets_s(3, np.random.default_rng(1)) == [0.0, 0.0, 0.0]
