// A weight matrix as the kernels read it, and the activations that it is multiplied with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace trivet {

// How a packed matrix holds its numbers; the values are those of `native_plan.Kind`.
enum Kind : int32_t { F32 = 0, BF16 = 1, Q8 = 2, Q4 = 3 };

constexpr int GROUP = 32;       // columns that share a scale
constexpr int UNIT_ROWS = 32;   // rows of one unit of work: two tiles
constexpr int TILE_ROWS = LANES;  // rows that stand side by side in the lanes of a vector

// [rows, columns], both padded with zeros to multiples of 32. Tile after tile of 16 rows:
//   F32   [columns][16]                         64 bytes a column
//   BF16  [columns / 2][16][2]                  32 bytes a column
//   Q8    per group of 32 columns: [8][16][4] bytes, number + 128; [16] scales in half precision
//   Q4    per group: [4][16][4] bytes, low nibbles are columns 0..15 and high nibbles 16..31; [16] scales and
//         [16] minima in half precision: number = scale * nibble + minimum
// What a product reads of a tile is one stream. Bytes a column and row: 4, 2, 1.0625, 0.625.
struct Weight {
  int32_t kind;
  int32_t rows;     // not padded
  int32_t columns;  // padded
  int32_t pad;
  const uint8_t* data;
  const float* bias;  // [padded rows] or null
};

// Bytes of a group of a tile: its numbers, and all of it.
constexpr int number_bytes(int kind) { return kind == Q8 ? 512 : 256; }
constexpr int group_bytes(int kind) { return kind == Q8 ? 544 : 320; }

// Where the weights of a unit begin; a group has 16 rows and 32 columns in each kind.
inline const uint8_t* unit_data(const Weight& w, int unit) {
  const int bytes = w.kind == F32 ? 2048 : w.kind == BF16 ? 1024 : group_bytes(w.kind);
  return w.data + (size_t)unit * 2 * (w.columns / GROUP) * bytes;
}

// The integer form of 32 activations: x = scale * (number + 128 * high), in which only the four columns of one
// word have a `high`. Activations have a few numbers far larger than the rest: one scale over all 32 would cost
// the others most of their bits. With the four columns around the largest in 15 bits, and the rest in 8, the
// error of a product is a third as large, for one dot product in nine more (SmolLM2-135M: README, "Numbers").
struct alignas(64) QuantisedGroup {
  int8_t numbers[GROUP];  // |number| <= 127; in the word of `high` -64 .. 63
  int8_t high[4];
  float scale;      // 2^e * (1 + step / STEPS)
  int32_t offset;   // -128 * total: takes back the 128 of Q8
  int32_t start;    // for Q4 the bits of 1.5 * 2^(23 + e), / 128: what is added to them is added to a float,
  float zero;       // times 2^e; this takes them back, and 8 * total, too: nibbles count from -8 on
  uint16_t at;      // where the weights of the word stand in a group of bytes
  uint16_t factor;  // step * LANES
  BFloat sums[2];   // scale * total of this group and the next; in each even group

  // Scales are rounded up to eight of an octave: a group of weights is multiplied with eight factors once,
  // not with the scale of each row. The rest of a scale is the exponent of `start`, at no cost.
  static constexpr int STEPS = 8;
};

// Rows of activations in each form that a consumer wants; null where none wants it. In two of the forms 16 rows
// stand together, as products read them, with a cache line for 32 columns of a row: two threads that write two
// rows share no line.
struct Activations {
  int32_t columns;  // padded
  int32_t is_f32_for_adapters;  // `f32` is read by adapters alone
  float* f32;       // [T, columns]
  BFloat* bf16;     // [T / 16, columns / 32, 16, 32]
  QuantisedGroup* groups;  // [T / 16, columns / 32, 16]

  BFloat* line(size_t row, int column) const { return bf16 + number_of(row, column) * GROUP; }
  QuantisedGroup* group(size_t row, int column) const { return groups + number_of(row, column); }
  size_t number_of(size_t row, int column) const {
    return (row / ROWS * (columns / GROUP) + column / GROUP) * ROWS + row % ROWS;
  }
  static constexpr int ROWS = 16;
};

// Row `row` of the packed matrix as floats [columns, not padded]; the embedding.
void unpack_row(const Weight& weight, int row, int num_columns, float* out);

}  // namespace trivet
