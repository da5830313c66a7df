"""Rotary frequencies of every scaling type, in NumPy, so that torch and native runners share one truth.

Computed in float32 in the order in which transformers does it (modeling_rope_utils): at position 30,000 one
unit in the last place of a frequency is a phase of 0.002, which would count as disagreement.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivet.models.spec import Rope


def inverse_frequencies(rope: Rope, max_model_len: int) -> tuple[NDArray[np.float32], float]:
    """Frequencies [dim / 2] in float32, and the factor that multiplies cos and sin.

    Position p rotates pair i by p * frequencies[i]. `max_model_len` fixes once what transformers changes with
    the length of the sequence (dynamic, longrope), so that cached keys stay valid.

    Raises: ValueError for an unknown `rope.scaling`.
    """
    if rope.scaling == "none":
        frequencies = _plain(rope.theta, rope.dim)
    elif rope.scaling == "linear":  # position interpolation, Chen et al. 2023
        frequencies = _plain(rope.theta, rope.dim) / np.float32(rope.factor)
    elif rope.scaling == "dynamic":
        frequencies = _plain(_dynamic_theta(rope, max_model_len), rope.dim)
    elif rope.scaling == "llama3":
        frequencies = _llama3(rope)
    elif rope.scaling == "yarn":
        frequencies = _yarn(rope)
    elif rope.scaling == "longrope":  # Ding et al. 2024
        factors = rope.long_factors if max_model_len > rope.original_max_len else rope.short_factors
        frequencies = np.float32(1) / (np.array(factors, np.float32) * _wavelengths(rope.theta, rope.dim))
    else:
        raise ValueError(f"rope scaling {rope.scaling!r} is unknown")
    return frequencies, rope.attention_factor


def _wavelengths(theta: float, dim: int) -> NDArray[np.float32]:
    """Theta ** (2 i / dim), the inverse of the plain frequencies."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    wavelengths: NDArray[np.float32] = np.float32(theta) ** exponents
    return wavelengths


def _plain(theta: float, dim: int) -> NDArray[np.float32]:
    return np.float32(1) / _wavelengths(theta, dim)


def _dynamic_theta(rope: Rope, max_model_len: int) -> float:
    """NTK-aware base that keeps the longest wavelength inside the window."""
    if rope.dim <= 2:
        return rope.theta
    length = max(max_model_len, rope.original_max_len)
    stretch = rope.factor * length / rope.original_max_len - (rope.factor - 1)
    return float(rope.theta * stretch ** (rope.dim / (rope.dim - 2)))


def _llama3(rope: Rope) -> NDArray[np.float32]:
    """Long waves are divided by the factor, short ones kept, those between are blended."""
    low_freq_factor, high_freq_factor = rope.params
    plain = _plain(rope.theta, rope.dim)
    wavelengths = np.float32(2 * math.pi) / plain
    scaled = plain / np.float32(rope.factor)
    blend = (np.float32(rope.original_max_len) / wavelengths - np.float32(low_freq_factor)) / np.float32(
        high_freq_factor - low_freq_factor
    )
    blended = (1 - blend) * plain / np.float32(rope.factor) + blend * plain
    is_long = wavelengths > rope.original_max_len / low_freq_factor
    is_short = wavelengths < rope.original_max_len / high_freq_factor
    frequencies: NDArray[np.float32] = np.where(is_long, scaled, np.where(is_short, plain, blended))
    return frequencies


def _yarn(rope: Rope) -> NDArray[np.float32]:
    """Peng et al. 2023, section 3.2: interpolate slow dimensions, keep fast ones, ramp between."""
    beta_fast, beta_slow = rope.params
    low, high = (_yarn_dimension(rope, rotations) for rotations in (beta_fast, beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(rope.dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = 1 - np.clip(ramp, 0, 1)
    wavelengths = _wavelengths(rope.theta, rope.dim)
    interpolated = np.float32(1) / (np.float32(rope.factor) * wavelengths)
    frequencies: NDArray[np.float32] = interpolated * (1 - kept) + np.float32(1) / wavelengths * kept
    return frequencies


def _yarn_dimension(rope: Rope, rotations: float) -> float:
    """The (fractional) dimension that turns `rotations` times over the original context."""
    return rope.dim * math.log(rope.original_max_len / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))
