// Activations in their integer form: 32 at a time, the word of the largest in 15 bits and the others in 8.
//
// Reference and test: tests/backends/trivet_cpu/test_native_kernels.py.
#include <algorithm>

#include "group_writer.h"

namespace trivet {
namespace {

constexpr int WORD = 4;  // columns that one dot product adds up
constexpr int HIGH_BITS = 7;
constexpr float LARGEST = 127.0f;
constexpr float LARGEST_OF_WORD = 127.0f * 128 + 63;

typedef int32_t FourInts __attribute__((vector_size(16)));
typedef int8_t FourBytes __attribute__((vector_size(4)));

struct Peaks {
  int32_t all, rest;  // bits of the largest size in the group, and without `word`
  int word;           // where the largest stands
};

// Sizes are compared as integers, so that a NaN counts as the largest and reaches the scale.
#if defined(__AVX512F__)
TRIVET_INLINE __m512i over_words(__m512i x) {
  x = _mm512_max_epi32(x, _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0xb1));
  return _mm512_max_epi32(x, _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0x4e));
}
TRIVET_INLINE __m256i over_eight(__m256i x) {
  x = _mm256_max_epi32(x, _mm256_permute2x128_si256(x, x, 1));
  x = _mm256_max_epi32(x, _mm256_shuffle_epi32(x, 0x4e));
  return _mm256_max_epi32(x, _mm256_shuffle_epi32(x, 0xb1));
}
TRIVET_INLINE Peaks peaks_of(const Ints& low, const Ints& high) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i words = _mm512_castsi512_si256(
      _mm512_permutex2var_epi32(over_words((__m512i)low.p[0]), order, over_words((__m512i)high.p[0])));
  const __m256i all = over_eight(words);
  const unsigned where = _mm256_cmpeq_epi32_mask(words, all);
  const unsigned first = where & (0u - where);
  const __m256i rest = over_eight(_mm256_maskz_mov_epi32((__mmask8)~first, words));
  return {_mm256_cvtsi256_si32(all), _mm256_cvtsi256_si32(rest), __builtin_ctz(first)};
}
#else
TRIVET_INLINE Peaks peaks_of(const Ints& low, const Ints& high) {
  int32_t sizes[GROUP];
  memcpy(sizes, &low, sizeof low);
  memcpy(sizes + LANES, &high, sizeof high);
  Peaks peaks{-1, 0, 0};
  for (int word = 0; word < GROUP / WORD; word++) {
    const int32_t* four = sizes + word * WORD;
    const int32_t peak = std::max(std::max(four[0], four[1]), std::max(four[2], four[3]));
    if (peak > peaks.all) {
      peaks.rest = std::max(peaks.rest, peaks.all);
      peaks.all = peak;
      peaks.word = word;
    } else {
      peaks.rest = std::max(peaks.rest, peak);
    }
  }
  return peaks;
}
#endif

// Bits of a float below its exponent and the three that count STEPS.
constexpr int STEP_AT = 20;
constexpr int32_t BELOW_STEPS = (1 << STEP_AT) - 1;
static_assert(QuantisedGroup::STEPS == 1 << (23 - STEP_AT));

// Of sixteen groups, a lane each.
struct Scales {
  Ints bits;
  Floats scale, inverse;  // the inverse is 0 for a scale that is none
};

TRIVET_INLINE Scales scales_of(const Ints& all, const Ints& rest) {
  const Floats least = as_floats(all) / broadcast(LARGEST_OF_WORD);
  const Floats wanted = maximum(as_floats(rest) / broadcast(LARGEST), least);  // `least` where that is a NaN
  const Ints bits = (as_ints(wanted) + broadcast_int(BELOW_STEPS)) & broadcast_int(~BELOW_STEPS);
  const Floats scale = as_floats(bits);
  const Ints is_large = less(broadcast(0x1p-107f), scale);
  return {bits, scale, select(is_large, broadcast(1.0f) / scale, broadcast(0.0f))};
}

// The word of the largest as seven bits and what is above them.
TRIVET_INLINE void split_word(QuantisedGroup& out, const int32_t* numbers, int at) {
  FourInts word;
  memcpy(&word, numbers + at * WORD, sizeof word);
  const FourInts upper = (word + (1 << (HIGH_BITS - 1))) >> HIGH_BITS;
  const FourBytes upper_bytes = __builtin_convertvector(upper, FourBytes);
  const FourBytes lower_bytes = __builtin_convertvector(word - (upper << HIGH_BITS), FourBytes);
  memcpy(out.numbers + at * WORD, &lower_bytes, WORD);
  memcpy(out.high, &upper_bytes, WORD);
}

}  // namespace

void GroupWriter::quantise() {
  alignas(64) int32_t all[LANES] = {}, rest[LANES] = {}, words[LANES] = {}, totals[LANES] = {};
  alignas(64) int32_t numbers[LANES][GROUP];
  alignas(64) int8_t bytes[LANES][GROUP];
  const Ints sizes = broadcast_int(0x7fffffff);
  for (int i = 0; i < count_; i++) {
    const Peaks peaks = peaks_of(load_ints(numbers_[i]) & sizes, load_ints(numbers_[i] + LANES) & sizes);
    all[i] = peaks.all;
    rest[i] = peaks.rest;
    words[i] = peaks.word;
  }
  const Scales scales = scales_of(load_ints(all), load_ints(rest));
  alignas(64) float inverses[LANES];
  store(inverses, scales.inverse);
  for (int i = 0; i < count_; i++) {
    const Floats inverse = broadcast(inverses[i]);
    const Ints low = rounded(load(numbers_[i]) * inverse), high = rounded(load(numbers_[i] + LANES) * inverse);
    store_ints(numbers[i], low);
    store_ints(numbers[i] + LANES, high);
    store_bytes(bytes[i], low);
    store_bytes(bytes[i] + LANES, high);
    totals[i] = sum(low + high);
  }
  // 1.5 * 2^(23 + e). Where all numbers are 0, any e will do.
  const Floats total = to_floats(load_ints(totals));
  const Ints exponent = maximum(shifted_right(scales.bits, 23), broadcast_int(20)) + broadcast_int(23);
  const Ints middle = shifted_left(exponent, 23) | broadcast_int(1 << 22);
  const Floats octave = as_floats(shifted_left(shifted_right(scales.bits, 23), 23));
  const Floats zero = broadcast(0.0f) - as_floats(middle) - broadcast(8.0f) * octave * total;
  // Beyond 1.6e32 (127 * 2^100) an activation is NaN to Q4, like a NaN: its sequence ends with an error.
  const Floats safe_zero = select(less(scales.scale, broadcast(0x1p100f)), zero, broadcast(NAN));
  const Ints step = shifted_right(scales.bits, STEP_AT) & broadcast_int(QuantisedGroup::STEPS - 1);
  alignas(64) float zeros[LANES], scale[LANES];
  alignas(64) int32_t offsets[LANES], starts[LANES], factors[LANES];
  alignas(64) BFloat sums[LANES];
  store(zeros, safe_zero);
  store(scale, scales.scale);
  store_ints(offsets, shifted_left(broadcast_int(0) - load_ints(totals), HIGH_BITS));
  store_ints(starts, shifted_right(middle, HIGH_BITS));
  store_ints(factors, step);
  store_bfloats(sums, scales.scale * total);
  // Only now, and in one go: another core may hold the lines, and what is read again above would wait for them.
  for (int i = 0; i < count_; i++) {
    QuantisedGroup& out = *groups_[i];
    memcpy(out.numbers, bytes[i], GROUP);
    split_word(out, numbers[i], words[i]);
    out.scale = scale[i];
    out.offset = offsets[i];
    out.start = starts[i];
    out.zero = zeros[i];
    out.at = (uint16_t)(words[i] * 64);
    out.factor = (uint16_t)(factors[i] * LANES);
    *sums_[i] = sums[i];
  }
  count_ = 0;
}

}  // namespace trivet
