// What a decoder does to one row of activations: norms, rotation, activation.
#pragma once

#include <cmath>

#include "abi.h"
#include "group_writer.h"

namespace trivet {

// y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019), in the forms that `out` wants.
inline void norm_row(const float* x, const float* weight, int size, int padded_size, float eps, const Activations& out,
              int row) {
  Floats squares = broadcast(0);
  for (int i = 0; i < padded_size; i += LANES) squares = fma(load(x + i), load(x + i), squares);
  const Floats factor = broadcast(1.0f / std::sqrt(sum(squares) / (float)size + eps));
  GroupWriter writer(out);
  for (int i = 0; i < padded_size; i += GROUP)
    writer.add(row, i, load(x + i) * factor * load(weight + i),
               load(x + i + LANES) * factor * load(weight + i + LANES));
}

inline void norm_head(float* x, const float* weight, int size, float eps) {
  Floats squares = broadcast(0);
  for (int i = 0; i < size; i += LANES) squares = fma(load(x + i), load(x + i), squares);
  const Floats factor = broadcast(1.0f / std::sqrt(sum(squares) / (float)size + eps));
  for (int i = 0; i < size; i += LANES) store(x + i, load(x + i) * factor * load(weight + i));
}

// Cosines of a position's pairs, then their sines; the angle is float32 as in the torch runner.
inline void fill_rope(const TrivetRope& rope, int position, float* table) {
  const int half = rope.dim / 2;
  for (int i = 0; i < half; i++) {
    const float angle = (float)position * rope.frequencies[i];
    table[i] = rope.factor * std::cos(angle);
    table[half + i] = rope.factor * std::sin(angle);
  }
}

// Pairs (i, i + dim / 2) turned by their angles (Su et al. 2021, eq. 34).
inline void rotate(float* x, const float* table, int dim) {
  const int half = dim / 2;
  const float* sines = table + half;
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * table[i] - b * sines[i];
    x[i + half] = b * table[i] + a * sines[i];
  }
}

// What `TrivetLayer.activation` names.
enum Activation : int { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3 };

// x / (1 + e^-y), to 1e-6.
TRIVET_INLINE Floats times_sigmoid(const Floats& x, const Floats& y) {
  const Floats e = power_of_two<5>(minimum(broadcast(126.0f), y * broadcast(-1.44269504f)));
  return x * reciprocal(broadcast(1.0f) + e);
}

template <int kind>
TRIVET_INLINE Floats active(const Floats& x) {
  if constexpr (kind == SILU) return times_sigmoid(x, x);
  if constexpr (kind == RELU) return select(less(x, broadcast(0.0f)), broadcast(0.0f), x);
  if constexpr (kind == GELU_TANH) {  // x / 2 (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3)
    const Floats u = broadcast(0.7978845608f) * fma(x * x * x, broadcast(0.044715f), x);
    return times_sigmoid(x, u + u);
  }
  float lanes[LANES];
  store(lanes, x);
  for (float& lane : lanes) lane = 0.5f * lane * (1.0f + std::erf(lane * 0.70710678f));
  return load(lanes);
}

// work(function), compiled for each.
template <class Do>
TRIVET_INLINE void with_activation(int kind, Do&& work) {
  switch (kind) {
    case SILU: return work([](const Floats& x) { return active<SILU>(x); });
    case GELU: return work([](const Floats& x) { return active<GELU>(x); });
    case GELU_TANH: return work([](const Floats& x) { return active<GELU_TANH>(x); });
    default: work([](const Floats& x) { return active<RELU>(x); });
  }
}

}  // namespace trivet
