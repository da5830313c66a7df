"""The model as the library reads it: its layers, and where each of the runner's buffers stands."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trivet.models.spec import ModelSpec
from trivet_cpu import native_plan
from trivet_cpu.native_adapters import NativeAdapters
from trivet_cpu.native_library import Activations, AdapterSpace, AttentionSpace, Layer, Model, RopeTable
from trivet_cpu.native_plan import NativeShape
from trivet_cpu.native_weights import Arena, NativeWeights


def described_model(
    spec: ModelSpec,
    native: NativeShape,
    weights: NativeWeights,
    layers: ctypes.Array[Layer],
    frequencies: Sequence[tuple[NDArray[np.float32], float]],
    buffers: Arena,
    buffer_sizes: Mapping[str, int],
    adapters: NativeAdapters | None = None,
) -> Model:
    """It holds addresses only: who keeps it keeps all of these.

    Args:
        frequencies: of each distinct rope, [rope_dim / 2], and the factor of its cosines and sines.
        buffers: nothing is taken of it yet; the pieces that are taken here have `buffer_sizes`.
    """
    addresses = {name: buffers.take(size) for name, size in buffer_sizes.items()}
    widths = native_plan.widths_of(spec)
    ropes = [
        RopeTable(of_pairs.ctypes.data, addresses[f"rope.{i}"], 2 * of_pairs.size, factor)
        for i, (of_pairs, factor) in enumerate(frequencies)
    ]
    return Model(
        layers=ctypes.cast(layers, ctypes.POINTER(Layer)),
        ropes=(RopeTable * len(ropes))(*ropes),
        num_layers=spec.num_layers,
        num_ropes=len(ropes),
        hidden_size=spec.hidden_size,
        padded_hidden_size=widths["normed"],
        qkv_stride=native_plan.qkv_stride(spec),
        embed=weights.matrix("embed"),
        head=weights.head(),
        norm=weights.vector("norm.weight"),
        eps=spec.norm.eps,
        embed_scale=spec.embed_scale,
        residual_scale=spec.residual_scale,
        logits_scale=spec.logits_scale,
        x=addresses["x"],
        qkv=addresses["qkv"],
        slots=addresses["slots"],
        scratch=addresses["scratch"],
        adapters=adapters.space(addresses, native.shape.max_num_batched_tokens)
        if adapters
        else AdapterSpace(),
        attention=AttentionSpace(
            partials=addresses["partials"],
            num_partials=buffer_sizes["partials"] // 4,
            unpacked=addresses["unpacked"],
            unpacked_stride=native_plan.unpacked_bytes(spec, native) // 2,
        ),
        **{name: activations(addresses, name, width) for name, width in widths.items()},
    )


def activations(addresses: Mapping[str, int], name: str, columns: int) -> Activations:
    """The forms of one kind of activations that have a buffer."""
    return Activations(
        columns=columns,
        is_f32_for_adapters=f"{name}.f32_for_adapters" in addresses,
        f32=addresses.get(f"{name}.f32") or addresses.get(f"{name}.f32_for_adapters"),
        bf16=addresses.get(f"{name}.bf16"),
        groups=addresses.get(f"{name}.q8"),
    )
