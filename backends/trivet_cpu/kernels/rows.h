// What a decoder does to one row of activations: norms, rotation, activation.
#pragma once

#include <cmath>

#include "abi.h"

namespace trivet {

// y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019), in the forms that `out` wants.
inline void norm_row(const float* x, const float* weight, int size, int padded_size, float eps, const Activations& out,
              int row) {
  Floats squares = broadcast(0);
  for (int i = 0; i < padded_size; i += LANES) squares = fma(load(x + i), load(x + i), squares);
  const Floats factor = broadcast(1.0f / std::sqrt(sum(squares) / (float)size + eps));
  for (int i = 0; i < padded_size; i += GROUP)
    write_group(out, row, i, load(x + i) * factor * load(weight + i),
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

inline Floats active(const Floats& x, int kind) {
  const Floats one = broadcast(1.0f);
  if (kind == 0) return x / (one + exponential(broadcast(0.0f) - x));
  if (kind == 3) return select(less(x, broadcast(0.0f)), broadcast(0.0f), x);
  if (kind == 2) {  // x / 2 (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
    const Floats u = broadcast(0.7978845608f) * fma(x * x * x, broadcast(0.044715f), x);
    return x / (one + exponential(broadcast(-2.0f) * u));
  }
  float lanes[LANES];
  store(lanes, x);
  for (float& lane : lanes) lane = 0.5f * lane * (1.0f + std::erf(lane * 0.70710678f));
  return load(lanes);
}

}  // namespace trivet
