// Activations in their integer form: 32 at a time, the word of the largest in 15 bits and the others in 8.
//
// Reference and test: tests/backends/trivet_cpu/test_native_kernels.py.
#include <algorithm>
#include <cstddef>

#include "group_writer.h"

namespace trivet {
namespace {

constexpr int WORD = 4;  // columns that one dot product adds up
constexpr int WORDS = GROUP / WORD;
constexpr int HIGH_BITS = 7;
constexpr float LARGEST = 127.0f;
constexpr float LARGEST_OF_WORD = 127.0f * 128 + 63;

typedef float FourFloats __attribute__((vector_size(16)));
typedef int32_t Words[LANES][WORDS];  // a number for each word of sixteen groups
typedef int32_t Fields[LANES][4];

#if defined(__AVX512F__)
TRIVET_INLINE __m512i over_words(__m512i x) {
  x = _mm512_max_epi32(x, _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0xb1));
  return _mm512_max_epi32(x, _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0x4e));
}

// The largest of each word. Sizes are compared as integers, so that a NaN counts as the largest.
TRIVET_INLINE void store_peaks(int32_t (&out)[WORDS], const Ints& low, const Ints& high) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i peaks =
      _mm512_permutex2var_epi32(over_words((__m512i)low.p[0]), order, over_words((__m512i)high.p[0]));
  _mm256_store_si256((__m256i*)out, _mm512_castsi512_si256(peaks));
}

// Eight sums whose sum is that of all 32.
TRIVET_INLINE void store_sums(int32_t (&out)[WORDS], const Ints& low, const Ints& high) {
  const __m512i both = (__m512i)(low + high).p[0];
  const __m256i sums = _mm256_add_epi32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
  _mm256_store_si256((__m256i*)out, sums);
}

// The bytes of a group; what does not fit into one is wrong.
TRIVET_INLINE void store_numbers(int8_t (&out)[GROUP], const Ints& low, const Ints& high) {
  const __m512i by_fours = _mm512_packs_epi32((__m512i)low.p[0], (__m512i)high.p[0]);  // low, high, low, ...
  const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm512_cvtepi16_epi8(by_fours), order);
  _mm256_store_si256((__m256i*)out, bytes);
}

// In each quarter four rows of four become columns.
TRIVET_INLINE void transpose(__m512i (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi64(a, c);
  x[1] = _mm512_unpackhi_epi64(a, c);
  x[2] = _mm512_unpacklo_epi64(b, d);
  x[3] = _mm512_unpackhi_epi64(b, d);
}

// Four words of each group, with a lane a group.
TRIVET_INLINE void load_words(Ints (&out)[4], const Words& words, int first) {
  __m512i x[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const auto quarter = [&](int group) { return _mm_load_si128((const __m128i*)&words[group][first]); };
    x[i] = _mm512_castsi128_si512(quarter(i));
    x[i] = _mm512_inserti32x4(x[i], quarter(4 + i), 1);
    x[i] = _mm512_inserti32x4(x[i], quarter(8 + i), 2);
    x[i] = _mm512_inserti32x4(x[i], quarter(12 + i), 3);
  }
  transpose(x);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) out[i].p[0] = (PartI)x[i];
}

// The way back.
TRIVET_INLINE void store_fields(Fields& out, const Ints (&fields)[4]) {
  __m512i x[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) x[i] = (__m512i)fields[i].p[0];
  transpose(x);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    _mm_store_si128((__m128i*)out[i], _mm512_castsi512_si128(x[i]));
    _mm_store_si128((__m128i*)out[4 + i], _mm512_extracti32x4_epi32(x[i], 1));
    _mm_store_si128((__m128i*)out[8 + i], _mm512_extracti32x4_epi32(x[i], 2));
    _mm_store_si128((__m128i*)out[12 + i], _mm512_extracti32x4_epi32(x[i], 3));
  }
}
#else
template <class Join>
TRIVET_INLINE void store_words(int32_t (&out)[WORDS], const Ints& low, const Ints& high, Join join) {
  int32_t numbers[GROUP];
  store_ints(numbers, low);
  store_ints(numbers + LANES, high);
  for (int word = 0; word < WORDS; word++) {
    const int32_t* four = numbers + word * WORD;
    out[word] = join(join(four[0], four[1]), join(four[2], four[3]));
  }
}
TRIVET_INLINE void store_peaks(int32_t (&out)[WORDS], const Ints& low, const Ints& high) {
  store_words(out, low, high, [](int32_t a, int32_t b) { return std::max(a, b); });
}
TRIVET_INLINE void store_sums(int32_t (&out)[WORDS], const Ints& low, const Ints& high) {
  store_words(out, low, high, [](int32_t a, int32_t b) { return a + b; });
}
TRIVET_INLINE void store_numbers(int8_t (&out)[GROUP], const Ints& low, const Ints& high) {
  store_bytes(out, low);
  store_bytes(out + LANES, high);
}
TRIVET_INLINE void load_words(Ints (&out)[4], const Words& words, int first) {
  for (int i = 0; i < 4; i++) {
    int32_t lanes[LANES];
    for (int group = 0; group < LANES; group++) lanes[group] = words[group][first + i];
    out[i] = load_ints(lanes);
  }
}
TRIVET_INLINE void store_fields(Fields& out, const Ints (&fields)[4]) {
  for (int i = 0; i < 4; i++) {
    int32_t lanes[LANES];
    store_ints(lanes, fields[i]);
    for (int group = 0; group < LANES; group++) out[group][i] = lanes[group];
  }
}
#endif

// With a lane a group.
struct Peaks {
  Ints all, rest;  // bits of the largest size in the group, and without `word`
  Ints word;       // where the largest stands
};

TRIVET_INLINE Peaks peaks_of(const Words& words) {
  Peaks peaks{broadcast_int(-1), broadcast_int(0), broadcast_int(0)};
#pragma GCC unroll 2
  for (int first = 0; first < WORDS; first += 4) {
    Ints four[4];
    load_words(four, words, first);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      const Ints is_larger = less(peaks.all, four[i]);
      peaks.rest = maximum(peaks.rest, select(is_larger, peaks.all, four[i]));
      peaks.all = maximum(peaks.all, four[i]);
      peaks.word = select(is_larger, broadcast_int(first + i), peaks.word);
    }
  }
  return peaks;
}

TRIVET_INLINE Ints totals_of(const Words& words) {
  Ints low[4], high[4];
  load_words(low, words, 0);
  load_words(high, words, 4);
  return ((low[0] + low[1]) + (low[2] + low[3])) + ((high[0] + high[1]) + (high[2] + high[3]));
}

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

// The words of the largest, as seven bits and what is above them.
struct SplitWords {
  alignas(64) int8_t low[LANES][WORD], high[LANES][WORD];
};

TRIVET_INLINE void split_words(SplitWords& out, const Fields& scaled) {
#pragma GCC unroll 4
  for (int group = 0; group < LANES; group += LANES / WORD) {
    const Ints numbers = rounded(as_floats(load_ints(scaled[group])));
    const Ints high = shifted_right(numbers + broadcast_int(1 << (HIGH_BITS - 1)), HIGH_BITS);
    store_bytes(out.high[group], high);
    store_bytes(out.low[group], numbers - shifted_left(high, HIGH_BITS));
  }
}

}  // namespace

void GroupWriter::quantise() {
  alignas(64) Words words;
  alignas(64) int8_t numbers[LANES][GROUP];
  alignas(64) Fields scaled;  // the words of the largest: bits of floats
  alignas(64) int32_t at[LANES];
  alignas(64) float inverses[LANES];
  for (int i = count_; i < LANES; i++) {
    memset(words[i], 0, sizeof words[i]);
    memset(scaled[i], 0, sizeof scaled[i]);
  }
  const Ints sizes = broadcast_int(0x7fffffff);
  for (int i = 0; i < count_; i++)
    store_peaks(words[i], load_ints(numbers_[i]) & sizes, load_ints(numbers_[i] + LANES) & sizes);
  const Peaks peaks = peaks_of(words);
  const Scales scales = scales_of(peaks.all, peaks.rest);
  store_ints(at, peaks.word);
  store(inverses, scales.inverse);
  for (int i = 0; i < count_; i++) {
    const Floats inverse = broadcast(inverses[i]);
    const Ints low = rounded(load(numbers_[i]) * inverse), high = rounded(load(numbers_[i] + LANES) * inverse);
    store_numbers(numbers[i], low, high);
    store_sums(words[i], low, high);
    FourFloats word;
    memcpy(&word, numbers_[i] + at[i] * WORD, sizeof word);
    word *= inverses[i];
    memcpy(scaled[i], &word, sizeof word);
  }
  SplitWords split;
  split_words(split, scaled);
  const Ints totals = totals_of(words);
  // 1.5 * 2^(23 + e). Where all numbers are 0, any e will do.
  const Floats total = to_floats(totals);
  const Ints exponent = maximum(shifted_right(scales.bits, 23), broadcast_int(20)) + broadcast_int(23);
  const Ints middle = shifted_left(exponent, 23) | broadcast_int(1 << 22);
  const Floats octave = as_floats(shifted_left(shifted_right(scales.bits, 23), 23));
  const Floats zero = broadcast(0.0f) - as_floats(middle) - broadcast(8.0f) * octave * total;
  // Beyond 1.6e32 (127 * 2^100) an activation is NaN to Q4, like a NaN: its sequence ends with an error.
  const Floats safe_zero = select(less(scales.scale, broadcast(0x1p100f)), zero, broadcast(NAN));
  const Ints step = shifted_right(scales.bits, STEP_AT) & broadcast_int(QuantisedGroup::STEPS - 1);
  const Ints offset = shifted_left(broadcast_int(0) - totals, HIGH_BITS);
  const Ints at_and_factor = shifted_left(peaks.word, 6) | shifted_left(step, 16 + 4);  // 64 * word, LANES * step
  alignas(64) Fields first, second;
  store_fields(first, {load_ints(split.high), as_ints(scales.scale), offset, shifted_right(middle, HIGH_BITS)});
  store_fields(second, {as_ints(safe_zero), at_and_factor, totals, totals});
  alignas(64) BFloat sums[LANES];
  store_bfloats(sums, scales.scale * total);
  // Only now, and in one go: another core may hold the lines, and what is read again above would wait for them.
  for (int i = 0; i < count_; i++) {
    QuantisedGroup& out = *groups_[i];
    memcpy(out.numbers, numbers[i], GROUP);
    memcpy(out.numbers + at[i] * WORD, split.low[i], WORD);
    memcpy((uint8_t*)&out + offsetof(QuantisedGroup, high), first[i], 16);
    memcpy((uint8_t*)&out + offsetof(QuantisedGroup, zero), second[i], 8);
    *sums_[i] = sums[i];
  }
  count_ = 0;
}

}  // namespace trivet
