"""Random numbers out of seed and position."""

from __future__ import annotations

import numpy as np

from trivet.engine.uniform import uniforms


def test_values_are_in_the_half_open_interval_and_fit_float32() -> None:
    values = uniforms(np.arange(1000, dtype=np.uint64), np.arange(1000))
    assert values.dtype == np.float32
    assert values.shape == (1000, 2)
    assert (values >= 0).all()
    assert (values < 1).all()
    assert (values * 2**24 == np.round(values * 2**24)).all()


def test_a_row_depends_on_its_own_seed_and_position_only() -> None:
    seeds, positions = np.array([5, 6, 2**64 - 1], np.uint64), np.array([0, 77, 131_071])
    together = uniforms(seeds, positions)
    for index in range(3):
        alone = uniforms(seeds[index : index + 1], positions[index : index + 1])
        assert (alone == together[index]).all()


def test_values_do_not_change_between_releases() -> None:
    """A seed that a user wrote down gives the same text tomorrow."""
    values = uniforms(np.array([0, 42], np.uint64), np.array([0, 1000]))
    assert (values * 2**24).astype(int).tolist() == [[14819496, 7239838], [15832972, 4111266]]


def test_neighbouring_seeds_and_positions_are_spread_evenly_and_unrelated() -> None:
    seeds, positions = np.meshgrid(np.arange(256, dtype=np.uint64), np.arange(256), indexing="ij")
    values = uniforms(seeds.ravel(), positions.ravel()).astype(np.float64)
    counts, _ = np.histogram(values, bins=64, range=(0, 1))
    expected = values.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # chi-squared, 63 degrees: p < 1e-5
    grid = values.reshape(256, 256, 2) - 0.5
    for other in (grid[:, :, ::-1], np.roll(grid, 1, axis=0), np.roll(grid, 1, axis=1)):
        assert abs((grid * other).mean() * 12) < 5 / 256  # five standard deviations
