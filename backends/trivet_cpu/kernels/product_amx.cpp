// Matrix products in AMX tiles of bfloat16, summed in float32 over the whole depth.
//
// Reference and test: as product.cpp. Quantised weights are unpacked to bfloat16, once for all rows of a call. Per
// 16 rows x 32 columns of weights, a tile, that takes 55 cycles (Q4) or 50 (Q8), and each 16 rows of activations
// 16 cycles more, of which the vector units lose one of two ports (Emerald Rapids at 2.8 GHz, K = 576; cycles a
// tile: 32 rows 108, with vectors alone 307; 256 rows 430 of which the products are 256).
#include <algorithm>

#include "product.h"

namespace trivet {

#if defined(__AMX_BF16__)
namespace {

// 32 numbers in half precision. Instructions by name: GCC 11 does not know their intrinsics.
typedef __m512i Halves;
TRIVET_INLINE Halves product_of(const Halves& a, const Halves& b) {
  Halves r;
  asm("vmulph %2, %1, %0" : "=v"(r) : "v"(a), "v"(b));
  return r;
}
TRIVET_INLINE Halves difference_of(const Halves& a, const Halves& b) {
  Halves r;
  asm("vsubph %2, %1, %0" : "=v"(r) : "v"(a), "v"(b));
  return r;
}
// a * b + c
TRIVET_INLINE Halves sum_of(Halves a, const Halves& b, const Halves& c) {
  asm("vfmadd213ph %2, %1, %0" : "+v"(a) : "v"(b), "v"(c));
  return a;
}

// Numbers of at most 1 to bfloat16, to nearest: three bits of the mantissa fewer, and an exponent that is 112 more
// and so begins with 0111. What is below 2^-14, zero too, becomes 2^-15 to 2^-14 with its sign.
TRIVET_INLINE __m512i to_bfloats(const Halves& x) {
  const __m512i rounded = _mm512_mulhrs_epi16(x, _mm512_set1_epi16(1 << 12));
  const __m512i kept = _mm512_set1_epi16((int16_t)0x87ff), exponent = _mm512_set1_epi16(0x3800);
  return _mm512_ternarylogic_epi32(rounded, kept, exponent, 0xea);  // rounded & kept | exponent
}

// Words [first, first + 16), each twice: both columns of a pair have the scale of their row.
TRIVET_INLINE __m512i twice(const __m512i& words, int first) {
  const __m512i lanes = _mm512_add_epi32((__m512i)lane_numbers().p[0], _mm512_set1_epi32(first));
  return _mm512_permutexvar_epi16(_mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 16)), words);
}

// A group of Q4 as a tile, [16 pairs of columns][16 rows][2], times `factors`.
TRIVET_INLINE void unpack_q4(BFloat* out, const uint8_t* data, const Halves& factors) {
  const __m512i halves = _mm512_loadu_si512(data + number_bytes(Q4));  // scales and minima
  const Halves scale = product_of(twice(halves, 0), factors), minimum = product_of(twice(halves, 16), factors);
  // Puts both columns of a pair into the same nibble of two words. The table is asked with five bits and has each
  // number twice, so that the fifth does not matter.
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  const __m512i numbers = _mm512_broadcast_i64x4(
      _mm256_setr_epi16(0x0000, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700,  // 0 to 15
                        0x4800, 0x4880, 0x4900, 0x4980, 0x4a00, 0x4a80, 0x4b00, 0x4b80));
#pragma GCC unroll 4
  for (int s = 0; s < 4; s++) {
    const __m512i nibbles = _mm512_shuffle_epi8(_mm512_loadu_si512(data + s * 64), order);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const int pair = i % 2 * (GROUP / 4) + 2 * s + i / 2;  // high nibbles are columns 16 to 31
      const Halves number = _mm512_permutexvar_epi16(_mm512_srli_epi16(nibbles, 4 * i), numbers);
      _mm512_store_si512(out + pair * 2 * LANES, to_bfloats(sum_of(number, scale, minimum)));
    }
  }
}

// The same of Q8.
TRIVET_INLINE void unpack_q8(BFloat* out, const uint8_t* data, const Halves& factors) {
  const __m256i halves = _mm256_loadu_si256((const __m256i*)(data + number_bytes(Q8)));
  const Halves scale = product_of(twice(_mm512_castsi256_si512(halves), 0), factors);
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m512i above = _mm512_set1_epi8(0x64);           // above a byte makes 1024 + byte of it
  const Halves zero = _mm512_set1_epi16(0x6400 | 0x80);  // 1024 + 128
#pragma GCC unroll 8
  for (int s = 0; s < 8; s++) {
    const __m512i bytes = _mm512_shuffle_epi8(_mm512_loadu_si512(data + s * 64), order);
    const Halves low = difference_of(_mm512_unpacklo_epi8(bytes, above), zero);
    const Halves high = difference_of(_mm512_unpackhi_epi8(bytes, above), zero);
    _mm512_store_si512(out + 2 * s * 2 * LANES, to_bfloats(product_of(low, scale)));
    _mm512_store_si512(out + (2 * s + 1) * 2 * LANES, to_bfloats(product_of(high, scale)));
  }
}

// For each of 16 rows of weights the power of two that brings its largest size to 1/2 .. 1, so that the numbers
// suit `to_bfloats`: what that makes of 0 is then 2^-14 of the largest. Its inverse is for the sums; NaN where a
// scale is no finite number. The largest factor is 2^15: a row of weights that are all below 2^-16 keeps its
// numbers to 2^-30 of 1, not of its largest.
struct RowFactors {
  Halves factors;  // each twice
  Floats inverse;
};

template <int kind>
RowFactors factors_of(const uint8_t* data, int groups) {
  const Ints sizes = broadcast_int(0x7fffffff);
  Ints peak = broadcast_int(0);  // as integers, so that a NaN is the largest
  for (int g = 0; g < groups; g++, data += group_bytes(kind)) {
    const uint16_t* halves = (const uint16_t*)(data + number_bytes(kind));
    const Floats scale = load_halves(halves);
    const Floats first = kind == Q4 ? load_halves(halves + LANES) : scale * broadcast(-128.0f);
    const Floats last = kind == Q4 ? fma(scale, broadcast(15.0f), first) : first;
    peak = maximum(peak, maximum(as_ints(first) & sizes, as_ints(last) & sizes));
  }
  const Ints exponent = maximum(shifted_right(peak, 23), broadcast_int(127 - 16));  // 2^15 is the largest factor
  const Floats factor = as_floats(shifted_left(broadcast_int(253) - exponent, 23));
  const Floats inverse = as_floats(shifted_left(exponent + broadcast_int(1), 23));
  const __m256i halves = _mm512_cvtps_ph((__m512)factor.p[0], _MM_FROUND_TO_NEAREST_INT);
  const Ints is_finite = less(peak, broadcast_int(0x7f800000));
  return {twice(_mm512_castsi256_si512(halves), 0), select(is_finite, inverse, broadcast(NAN))};
}

constexpr int RING = 4;  // groups of unpacked weights, where no other rows need them

// One call of `multiply_tiled`.
template <int kind>
class Block {
 public:
  Block(const Product& p, int unit, int first, int last)
      : p_(p), unit_(unit), first_(first), last_(last), groups_(p.weight->columns / GROUP) {
    const uint8_t* start = unit_data(*p.weight, unit);
    const uint8_t* end = unit_data(*p.weight, unit + 1);
    ahead_ = (p.next ? p.next : end) - start;
    for (int i = 0; i < 2; i++) {
      data_[i] = start + (end - start) / 2 * i;
      if constexpr (kind != BF16) factors_[i] = factors_of<kind>(data_[i], groups_);
    }
  }

  void run() {
    const int pieces = (groups_ + MAX_DEPTH - 1) / MAX_DEPTH;
    for (int piece = 0; piece < pieces; piece++) {
      const int start = groups_ * piece / pieces, stop = groups_ * (piece + 1) / pieces;
      for (int row = first_; row < last_; row += 2 * TILE_LINES) {
        const bool unpacks = kind != BF16 && row == first_;
        if (last_ - row > TILE_LINES)
          unpacks ? add<true, true>(row, start, stop) : add<false, true>(row, start, stop);
        else
          unpacks ? add<true, false>(row, start, stop) : add<false, false>(row, start, stop);
        if (piece + 1 == pieces) finish_rows(row, std::min(row + 2 * TILE_LINES, last_));
      }
    }
  }

 private:
  static constexpr int BYTES = kind == BF16 ? GROUP * TILE_ROWS * 2 : group_bytes(kind);

  float* sums(int row) const { return p_.tiles->sums[row - first_]; }

  // Groups [start, stop) of 16 or, if `are_two`, 32 rows of activations times the 32 rows of weights, added to
  // their sums: tiles 0 to 3.
  template <bool unpacks, bool are_two>
  void add(int row, int start, int stop) {
    constexpr int STRIDE = UNIT_ROWS * 4;
    float* sums0 = sums(row);
    float* sums1 = sums0 + TILE_LINES * UNIT_ROWS;
    const BFloat* x0 = p_.in->line(row, 0);
    const BFloat* x1 = are_two ? p_.in->line(row + TILE_LINES, 0) : nullptr;
    if (start == 0) {
      clear_tile<0>(), clear_tile<1>();
      if (are_two) clear_tile<2>(), clear_tile<3>();
    } else {
      load_tile<0>(sums0, STRIDE), load_tile<1>(sums0 + LANES, STRIDE);
      if (are_two) load_tile<2>(sums1, STRIDE), load_tile<3>(sums1 + LANES, STRIDE);
    }
    for (int g = start; g < stop; g++) {
      const size_t at = (size_t)g * GROUP * TILE_LINES;
      const void* weights[2];
      for (int i = 0; i < 2; i++) weights[i] = tile_of<unpacks>(i, g, g - start);
      stream_tile<4>(x0 + at, TILE_LINE_BYTES);
      load_tile<6>(weights[0], TILE_LINE_BYTES);
      load_tile<7>(weights[1], TILE_LINE_BYTES);
      multiply_tiles<0, 4, 6>();
      multiply_tiles<1, 4, 7>();
      if (!are_two) continue;
      stream_tile<5>(x1 + at, TILE_LINE_BYTES);
      multiply_tiles<2, 5, 6>();
      multiply_tiles<3, 5, 7>();
    }
    store_tile<0>(sums0, STRIDE), store_tile<1>(sums0 + LANES, STRIDE);
    if (are_two) store_tile<2>(sums1, STRIDE), store_tile<3>(sums1 + LANES, STRIDE);
  }

  // Group `g` of either half of the unit, in bfloat16.
  template <bool unpacks>
  const void* tile_of(int half, int g, int slot) {
    const uint8_t* data = data_[half] + (size_t)g * BYTES;
    if constexpr (kind == BF16) return data;
    if (last_ - first_ <= 2 * TILE_LINES) slot %= RING;
    BFloat* unpacked = p_.tiles->weights[slot][half];
    if constexpr (unpacks) {
      kind == Q4 ? unpack_q4(unpacked, data, factors_[half].factors)
                 : unpack_q8(unpacked, data, factors_[half].factors);
#pragma GCC unroll 9
      for (int line = 0; line < BYTES; line += 64) __builtin_prefetch(data + ahead_ + line, 0, 2);
    }
    return unpacked;
  }

  void finish_rows(int first, int last) const {
    const Weight& w = *p_.weight;
    const int column = unit_ * UNIT_ROWS;
    const bool is_plain = column + UNIT_ROWS <= w.rows && !w.bias && p_.scale == 1.0f;
    for (int row = first; row < last; row++) {
      float* out = p_.out + (size_t)(row - p_.row_base) * p_.stride + (column - p_.column_base);
      for (int i = 0; i < 2; i++, out += LANES) {
        Floats sum = load(sums(row) + i * LANES);
        if (kind != BF16) sum = sum * factors_[i].inverse;
        if (is_plain)
          store(out, p_.adds ? sum + load(out) : sum);
        else
          finish(p_, unit_ * 2 + i, row, sum);
      }
    }
  }

  const Product& p_;
  const int unit_, first_, last_, groups_;
  const uint8_t* data_[2];
  ptrdiff_t ahead_;  // from a group to where the weights stand that are read after this unit
  RowFactors factors_[2];
};

}  // namespace

void multiply_tiled(const Product& product, int unit, int first, int last) {
  for (; first < last; first += MAX_TILED_ROWS) {
    const int stop = std::min(last, first + MAX_TILED_ROWS);
    switch (product.weight->kind) {
      case BF16: Block<BF16>(product, unit, first, stop).run(); break;
      case Q8: Block<Q8>(product, unit, first, stop).run(); break;
      default: Block<Q4>(product, unit, first, stop).run();
    }
  }
}

#endif

}  // namespace trivet
