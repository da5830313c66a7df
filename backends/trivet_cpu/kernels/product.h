// A product of a packed weight with rows of activations, and where its results go.
#pragma once

#include "tiles.h"
#include "weights.h"

namespace trivet {

// Rows of a step from which on tiles multiply quantised weights faster than vectors do. Vectors take 83 cycles (Q4)
// and 73 (Q8) for 8 rows x 16 rows x 32 columns of weights, and 153 and 137 for 16; tiles take 95 and 90 for any
// number up to 16 (Emerald Rapids).
constexpr int MIN_TILED_ROWS = 9;
// Rows of activations that one call covers at most with tiles: their sums stand in the scratch.
constexpr int MAX_TILED_ROWS = 256;
// Groups of weights that are unpacked at once: 64 KiB.
constexpr int MAX_DEPTH = 32;

inline bool is_tiled(int num_rows) { return HAS_TILES && num_rows >= MIN_TILED_ROWS; }

// As the products of a step of so many rows read them. Where quantised weights have both forms, bfloat16 is for
// products with tiles.
inline Activations of_step(Activations rows, int num_rows, bool has_adapters = false) {
  if (rows.is_f32_for_adapters && !has_adapters) rows.f32 = nullptr;
  if (rows.bf16 && is_tiled(num_rows)) rows.groups = nullptr;
  return rows;
}

// Scratch of one thread for products with tiles.
struct alignas(64) TileScratch {
  BFloat weights[MAX_DEPTH][2][GROUP * TILE_ROWS];
  float sums[MAX_TILED_ROWS][UNIT_ROWS];
};

struct Product {
  const Weight* weight;
  const Activations* in;
  float* out;       // [rows, stride]; its corner is activation row `row_base` and column `column_base`
  int stride;
  int row_base;
  int column_base;
  bool adds;        // out += scale * product, else out = scale * product
  float scale;
  TileScratch* tiles;
  const uint8_t* next = nullptr;  // weights that are read after this unit; null: those that follow it
};

// Rows [unit * 32, unit * 32 + 32) of the weight times activation rows [first, last); `first` is a multiple of
// 16. Test: test_native_kernels.py.
void multiply(const Product& product, int unit, int first, int last);
// The same with tiles; only where HAS_TILES, by a thread that has them in use.
void multiply_tiled(const Product& product, int unit, int first, int last);

// What a tile of a weight adds to, or puts into, one row of the output.
TRIVET_INLINE void finish(const Product& p, int tile, int row, Floats value) {
  const Weight& w = *p.weight;
  const int column = tile * TILE_ROWS, width = w.rows - column;
  if (width <= 0) return;
  if (w.bias) value = value + load(w.bias + column);
  if (p.scale != 1.0f) value = value * broadcast(p.scale);
  float* out = p.out + (size_t)(row - p.row_base) * p.stride + (column - p.column_base);
  if (width >= LANES) {
    store(out, p.adds ? value + load(out) : value);
    return;
  }
  float lanes[LANES];
  store(lanes, value);
  for (int i = 0; i < width; i++) out[i] = p.adds ? out[i] + lanes[i] : lanes[i];
}

}  // namespace trivet
