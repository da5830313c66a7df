// Matrix products of a packed weight with a few or many rows of activations.
//
// Reference: numpy's `activations @ weight.T`. Test: tests/backends/trivet_cpu/test_native_kernels.py.
// One row of activations reads each byte of the weight once and is bound by memory; from about 16 rows on
// the dot products bind: 2 * rows * columns * num_rows FLOPs.
#include "product.h"

namespace trivet {
namespace {

struct FourBytes {
  int8_t x[4];
};

// acc + the dot products of 16 rows x 4 columns of bytes with four signed bytes at `x`, broadcast.
// `is_offset`: the bytes are numbers + 128, and the caller adds `offset`.
template <bool is_offset>
TRIVET_INLINE Ints dot_bytes(const Ints& acc, const Ints& bytes, const int8_t* x) {
#if defined(__AVX512VNNI__)
  // GCC 12 broadcasts in an instruction of its own: 5 % of a product of many rows.
  __m512i r = (__m512i)acc.p[0];
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(r) : "v"((__m512i)bytes.p[0]), "m"(*(const FourBytes*)x));
  return Ints{(PartI)r};
#elif defined(__AVX2__)
  Ints r = acc;
  int32_t four;
  memcpy(&four, x, 4);
  const __m256i fours = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
  TRIVET_EACH_PART {
    __m256i w = (__m256i)bytes.p[i], y = fours;
    if (is_offset) {
      // Sums of two products must stay within 16 bits: 255 * 127 * 2 would not. |w| <= 128 does.
      w = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
      y = _mm256_sign_epi8(fours, w);
      w = _mm256_abs_epi8(w);
    }
    r.p[i] += (PartI)_mm256_madd_epi16(_mm256_maddubs_epi16(w, y), ones);
  }
  return r;
#else
  int32_t sums[LANES];
  uint8_t w[LANES * 4];
  memcpy(sums, &acc, sizeof sums);
  memcpy(w, &bytes, sizeof w);
  for (int row = 0; row < LANES; row++)
    for (int i = 0; i < 4; i++) sums[row] += w[row * 4 + i] * x[i];
  return load_ints(sums);
#endif
}

template <bool is_offset>
TRIVET_INLINE Ints with_offset(const Ints& dots, int32_t offset) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
  constexpr bool is_needed = false;  // `dot_bytes` subtracts the 128 itself
#else
  constexpr bool is_needed = is_offset;
#endif
  return is_needed ? dots + broadcast_int(offset) : dots;
}

// A loop, kept from the accumulators: unrolled over 16 of them it takes more registers than there are.
template <int N>
TRIVET_INLINE void finish_rows(const Product& p, int tile, int first, const Floats (&acc)[N]) {
  alignas(64) float rows[N][LANES];
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) store(rows[i], acc[i]);
#pragma GCC unroll 1
  for (int i = 0; i < N; i++) finish(p, tile, first + i, load(rows[i]));
}

// Q8 and Q4: the eight vectors of weights of a group, four columns of 16 rows in each.
template <int kind>
TRIVET_INLINE void load_group(Ints (&bytes)[8], const uint8_t* data) {
  if (kind == Q8) {
#pragma GCC unroll 8
    for (int s = 0; s < 8; s++) bytes[s] = load_ints(data + s * 64);
    return;
  }
  const Ints low = broadcast_int(0x0f0f0f0f);
#pragma GCC unroll 4
  for (int s = 0; s < 4; s++) {
    const Ints both = load_ints(data + s * 64);
    bytes[s] = both & low;
    bytes[s + 4] = shifted_right(both, 4) & low;
  }
}

// The scales of a group of Q4 times each of the factors; exact.
TRIVET_INLINE void write_factors(float (&out)[QuantisedGroup::STEPS][LANES], const Floats& scale) {
  // Hidden from GCC, which would make multiplications of the additions.
  const Floats step = as_floats(in_register(as_ints(scale * broadcast(1.0f / QuantisedGroup::STEPS))));
  Floats factor = scale;
#pragma GCC unroll 8
  for (int i = 0; i < QuantisedGroup::STEPS; i++, factor = factor + step) store(out[i], factor);
}

// The hardware's own prefetcher stops at each 4 KiB page, and starts late in each short stream.
constexpr int AHEAD = 4096;  // bytes
template <int size>
TRIVET_INLINE void prefetch(const uint8_t* data) {
#pragma GCC unroll 9
  for (int i = 0; i < size; i += 64) __builtin_prefetch(data + i);
}

// Q4: the minima of one group or of two times the sums, which stand with the first.
template <int N>
TRIVET_INLINE void add_minima(Floats (&acc)[N], const Floats (&minima)[2], bool are_two,
                              const QuantisedGroup* x) {
  const Ints pairs = pairs_of(minima[0], are_two ? minima[1] : broadcast(0));
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) {
    int32_t sums;
    memcpy(&sums, x[i].sums, 4);
    acc[i] = dot_pairs(acc[i], pairs, sums);
  }
}

// Q8 and Q4: one tile times N rows. Per group and row: 9 dot products and 2 multiplications, of Q4 1.5 (which
// go to the same two ports of a Zen 4 as the dot products; shifts, additions and conversions do not).
template <int kind, int N>
void bytes_tile(const Product& p, int tile, int first) {
  constexpr int TOGETHER = N < 4 ? N : 4;  // rows whose dot products alternate: one alone waits for each of them
  const Weight& w = *p.weight;
  const int groups = w.columns / GROUP;
  const uint8_t* data = w.data + (size_t)tile * groups * group_bytes(kind);
  const uint8_t* end = w.data + (size_t)(tile / 2 + 1) * 2 * groups * group_bytes(kind);  // of the unit
  const ptrdiff_t past_end = p.next ? p.next - end + AHEAD : AHEAD;
  const QuantisedGroup* x = p.in->group(first, 0);
  alignas(64) uint8_t unpacked[8][64];
  alignas(64) float factors[QuantisedGroup::STEPS][LANES];
  Floats acc[N], minima[2];
#pragma GCC unroll 16
  for (int i = 0; i < N; i++) acc[i] = broadcast(0);
  for (int g = 0; g < groups; g++, data += group_bytes(kind), x += Activations::ROWS) {
    Ints bytes[8];
    load_group<kind>(bytes, data);
    prefetch<group_bytes(kind)>(data + AHEAD < end ? data + AHEAD : data + past_end);
    const uint16_t* halves = (const uint16_t*)(data + number_bytes(kind));
    const Floats scale = load_halves(halves);
    if (kind == Q4) {
#pragma GCC unroll 8
      for (int s = 0; s < 8; s++) memcpy(unpacked[s], &bytes[s], 64);
      if (N >= 4) write_factors(factors, scale);
    }
    const uint8_t* words = kind == Q4 ? unpacked[0] : data;
#pragma GCC unroll 4
    for (int start = 0; start < N; start += TOGETHER) {
      Ints dots[TOGETHER];
#pragma GCC unroll 4
      for (int i = 0; i < TOGETHER; i++) {
        const QuantisedGroup& row = x[start + i];
        dots[i] = broadcast_int(kind == Q8 ? 0 : row.start);
        dots[i] = shifted_left(dot_bytes<kind == Q8>(dots[i], load_ints(words + row.at), row.high), 7);
        if (kind == Q8) dots[i] = with_offset<true>(dots[i], row.offset);
      }
#pragma GCC unroll 8
      for (int s = 0; s < 8; s++) {
#pragma GCC unroll 4
        for (int i = 0; i < TOGETHER; i++)
          dots[i] = dot_bytes<kind == Q8>(dots[i], bytes[s], x[start + i].numbers + s * 4);
      }
#pragma GCC unroll 4
      for (int i = 0; i < TOGETHER; i++) {
        const QuantisedGroup& row = x[start + i];
        Floats& sum = acc[start + i];
        if (kind == Q8) {
          sum = fma(to_floats(dots[i]), scale * broadcast(row.scale), sum);
        } else {
          constexpr float STEP = 1.0f / (QuantisedGroup::STEPS * LANES);
          const Floats factor =
              N < 4 ? scale * broadcast(1 + STEP * (float)row.factor) : load(factors[0] + row.factor);
          sum = fma(as_floats(dots[i]) + broadcast(row.zero), factor, sum);
        }
      }
    }
    if (kind == Q4) {
      // number = scale * (nibble - 8) + minimum + 8 * scale: what is left of the minimum is small, so that
      // bfloat16 is exact enough, two groups in one multiplication.
      minima[g % 2] = fma(scale, broadcast(8.0f), load_halves(halves + LANES));
      if (g % 2 || g + 1 == groups) add_minima<N>(acc, minima, g % 2, x - g % 2 * Activations::ROWS);
    }
  }
  finish_rows<N>(p, tile, first, acc);
}

// BF16: both tiles of a unit times N rows.
template <int N>
void bf16_unit(const Product& p, int unit, int first) {
  const Weight& w = *p.weight;
  const int columns = w.columns;
  const BFloat* tiles[2] = {(const BFloat*)w.data + (size_t)unit * 2 * columns * LANES,
                            (const BFloat*)w.data + (size_t)(unit * 2 + 1) * columns * LANES};
  const BFloat* x[N];
  Floats acc[N][2];
#pragma GCC unroll 12
  for (int i = 0; i < N; i++) {
    x[i] = p.in->line(first + i, 0);
    acc[i][0] = acc[i][1] = broadcast(0);
  }
  for (int k = 0; k < columns; k += 2) {
    const int at = k / GROUP * (GROUP * Activations::ROWS) + k % GROUP;
    const Ints pairs[2] = {load_ints(tiles[0] + (size_t)k * LANES), load_ints(tiles[1] + (size_t)k * LANES)};
    if (N <= 2) {
      __builtin_prefetch(tiles[0] + (size_t)k * LANES + 1024);
      __builtin_prefetch(tiles[1] + (size_t)k * LANES + 1024);
    }
#pragma GCC unroll 12
    for (int i = 0; i < N; i++) {
      int32_t pair;
      memcpy(&pair, x[i] + at, 4);
      acc[i][0] = dot_pairs(acc[i][0], pairs[0], pair);
      acc[i][1] = dot_pairs(acc[i][1], pairs[1], pair);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < N; i++) {
    // Written out: a loop would index the accumulators, and GCC 12 then keeps them in memory throughout.
    finish(p, unit * 2, first + i, acc[i][0]);
    finish(p, unit * 2 + 1, first + i, acc[i][1]);
  }
}

template <int N>
void f32_unit(const Product& p, int unit, int first) {
  const Weight& w = *p.weight;
  const int columns = w.columns;
  const float* tiles[2] = {(const float*)w.data + (size_t)unit * 2 * columns * LANES,
                           (const float*)w.data + (size_t)(unit * 2 + 1) * columns * LANES};
  const float* x = p.in->f32 + (size_t)first * columns;
  Floats acc[N][2];
#pragma GCC unroll 12
  for (int i = 0; i < N; i++) acc[i][0] = acc[i][1] = broadcast(0);
  for (int k = 0; k < columns; k++) {
    const Floats a = load(tiles[0] + (size_t)k * LANES), b = load(tiles[1] + (size_t)k * LANES);
    if (N <= 2) {
      __builtin_prefetch(tiles[0] + (size_t)k * LANES + 512);
      __builtin_prefetch(tiles[1] + (size_t)k * LANES + 512);
    }
#pragma GCC unroll 12
    for (int i = 0; i < N; i++) {
      const Floats value = broadcast(x[(size_t)i * columns + k]);
      acc[i][0] = fma(a, value, acc[i][0]);
      acc[i][1] = fma(b, value, acc[i][1]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < N; i++) {
    // Written out: a loop would index the accumulators, and GCC 12 then keeps them in memory throughout.
    finish(p, unit * 2, first + i, acc[i][0]);
    finish(p, unit * 2 + 1, first + i, acc[i][1]);
  }
}

template <int kind, int N>
int rows_of(const Product& p, int unit, int first, int last) {
  for (; last - first >= N; first += N) {
    if constexpr (kind == F32) {
      f32_unit<N>(p, unit, first);
    } else if constexpr (kind == BF16) {
      bf16_unit<N>(p, unit, first);
    } else {
      bytes_tile<kind, N>(p, unit * 2, first);
      bytes_tile<kind, N>(p, unit * 2 + 1, first);
    }
  }
  return first;
}

// Rows in pieces of what the registers hold, then of the powers of two below.
template <int kind>
void all_rows(const Product& p, int unit, int first, int last) {
  constexpr bool is_wide = PART == 16;
  if (is_wide) first = rows_of<kind, kind == Q8 || kind == Q4 ? 16 : 12>(p, unit, first, last);
  if (is_wide) first = rows_of<kind, 8>(p, unit, first, last);
  first = rows_of<kind, 4>(p, unit, first, last);
  first = rows_of<kind, 2>(p, unit, first, last);
  rows_of<kind, 1>(p, unit, first, last);
}

}  // namespace

void multiply(const Product& product, int unit, int first, int last) {
#if defined(__AMX_BF16__)
  const int kind = product.weight->kind;
  if (kind == BF16 || (kind != F32 && !product.in->groups)) return multiply_tiled(product, unit, first, last);
#endif
  switch (product.weight->kind) {
    case F32: return all_rows<F32>(product, unit, first, last);
    case BF16: return all_rows<BF16>(product, unit, first, last);
    case Q8: return all_rows<Q8>(product, unit, first, last);
    default: return all_rows<Q4>(product, unit, first, last);
  }
}

}  // namespace trivet
