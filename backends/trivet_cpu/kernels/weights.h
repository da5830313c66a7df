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
//   Q8    [columns / 4][16][4], number + 128    16 bytes a column
//   Q4    per group of 32: 4 x [16][4] bytes; low nibbles are columns 0..15, high nibbles 16..31
// and for Q8 and Q4 a half-precision scale a row and group, [tile][group][16]; for Q4 as many minima:
// number = scale * nibble + minimum. Bytes a column and row: 4, 2, 1.0625, 0.625.
struct Weight {
  int32_t kind;
  int32_t rows;     // not padded
  int32_t columns;  // padded
  int32_t pad;
  const uint8_t* data;
  const uint16_t* scales;
  const uint16_t* minima;
  const float* bias;  // [padded rows] or null
};

// Rows of activations in each form that a consumer wants; null where none wants it.
// The integer form: x = scale * number, per group of 32 columns, |number| <= 127.
struct Activations {
  int32_t columns;  // padded
  float* f32;       // [T, columns]
  BFloat* bf16;     // [T, columns]
  int8_t* q8;       // [T, columns]
  float* scales;    // [T, groups]
  float* sums;      // [T, groups] scale * sum of the numbers: what a minimum is multiplied with
  int32_t* offsets;  // [T, groups] -128 * sum of the numbers: takes back the 128 of Q8
};

// Write 32 activations of row `row`, from `column` on, in every wanted form. NaN and Inf come through.
TRIVET_INLINE void write_group(const Activations& out, size_t row, int column, const Floats& low,
                               const Floats& high) {
  const size_t at = row * out.columns + column;
  if (out.f32) {
    store(out.f32 + at, low);
    store(out.f32 + at + LANES, high);
  }
  if (out.bf16) {
    store_bfloats(out.bf16 + at, low);
    store_bfloats(out.bf16 + at + LANES, high);
  }
  if (out.q8) {
    // Compared as integers, so that a NaN counts as the largest and reaches the scale.
    const Ints sizes = broadcast_int(0x7fffffff);
    const int32_t peak_bits = largest(maximum(as_ints(low) & sizes, as_ints(high) & sizes));
    float peak;
    memcpy(&peak, &peak_bits, 4);
    const float inverse = peak > 0x1p-100f ? 127.0f / peak : 0.0f;
    const Ints a = rounded(low * broadcast(inverse)), b = rounded(high * broadcast(inverse));
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)(out.q8 + at), _mm512_cvtepi32_epi8((__m512i)a.p[0]));
    _mm_storeu_si128((__m128i*)(out.q8 + at + LANES), _mm512_cvtepi32_epi8((__m512i)b.p[0]));
#else
    int32_t numbers[2 * LANES];
    memcpy(numbers, &a, sizeof a);
    memcpy(numbers + LANES, &b, sizeof b);
    for (int i = 0; i < 2 * LANES; i++) out.q8[at + i] = (int8_t)numbers[i];
#endif
    const int32_t total = sum(a + b);
    const size_t group = row * (out.columns / GROUP) + column / GROUP;
    const float scale = peak / 127.0f;
    out.scales[group] = scale;
    out.sums[group] = scale * (float)total;
    out.offsets[group] = -128 * total;
  }
}

struct Product {
  const Weight* weight;
  const Activations* in;
  float* out;       // [rows, stride]; its corner is activation row `row_base` and column `column_base`
  int stride;
  int row_base;
  int column_base;
  bool adds;        // out += scale * product, else out = scale * product
  float scale;
};

// Rows [unit * 32, unit * 32 + 32) of the weight times activation rows [first, last): test_native_kernels.py.
void multiply(const Product& product, int unit, int first, int last);

// Row `row` of the packed matrix as floats [columns, not padded]; the embedding.
void unpack_row(const Weight& weight, int row, int num_columns, float* out);

}  // namespace trivet
