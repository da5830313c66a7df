// Activations in their integer form: 32 at a time, the word of the largest in 15 bits and the others in 8.
//
// Reference and test: tests/backends/trivet_cpu/test_native_kernels.py.
#include <algorithm>

#include "weights.h"

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

float from_bits(int32_t bits) {
  float r;
  memcpy(&r, &bits, 4);
  return r;
}

int32_t to_bits(float x) {
  int32_t r;
  memcpy(&r, &x, 4);
  return r;
}

// Bits of a float below its exponent and the three that count STEPS.
constexpr int STEP_AT = 20;
constexpr int32_t BELOW_STEPS = (1 << STEP_AT) - 1;
static_assert(QuantisedGroup::STEPS == 1 << (23 - STEP_AT));

}  // namespace

void quantise(QuantisedGroup& out, BFloat& sum_out, const Floats& low, const Floats& high) {
  const Ints sizes = broadcast_int(0x7fffffff);
  const Peaks peaks = peaks_of(as_ints(low) & sizes, as_ints(high) & sizes);
  const float least = from_bits(peaks.all) / LARGEST_OF_WORD;
  float scale = from_bits(peaks.rest) / LARGEST;
  if (!(scale >= least)) scale = least;  // also where `least` is a NaN
  const int32_t bits = (to_bits(scale) + BELOW_STEPS) & ~BELOW_STEPS;
  scale = from_bits(bits);
  const Floats inverse = broadcast(scale > 0x1p-107f ? 1.0f / scale : 0.0f);
  const Ints numbers[2] = {rounded(low * inverse), rounded(high * inverse)};
  FourInts word;
  memcpy(&word, (const char*)numbers + peaks.word * sizeof word, sizeof word);
  const FourInts upper = (word + (1 << (HIGH_BITS - 1))) >> HIGH_BITS;
  const FourBytes upper_bytes = __builtin_convertvector(upper, FourBytes);
  const FourBytes lower_bytes = __builtin_convertvector(word - (upper << HIGH_BITS), FourBytes);
  store_bytes(out.numbers, numbers[0]);
  store_bytes(out.numbers + LANES, numbers[1]);
  memcpy(out.numbers + peaks.word * WORD, &lower_bytes, WORD);
  memcpy(out.high, &upper_bytes, WORD);
  const int32_t total = sum(numbers[0] + numbers[1]);
  // 1.5 * 2^(23 + e). Numbers of 1e30 and NaN alike become NaN; where all are 0, any e will do.
  const int32_t middle = (std::max(bits >> 23, 20) + 23) << 23 | 1 << 22;
  const bool is_bad = !(scale < 0x1p100f);
  out.scale = scale;
  sum_out = to_bfloat(scale * (float)total);
  out.offset = (int32_t)(-128u * (uint32_t)total);
  out.start = middle >> HIGH_BITS;
  out.zero = is_bad ? NAN : -from_bits(middle) - 8.0f * from_bits(bits >> 23 << 23) * (float)total;
  out.at = peaks.word * 64;
  out.factor = (bits >> STEP_AT) % QuantisedGroup::STEPS * LANES;
}

}  // namespace trivet
