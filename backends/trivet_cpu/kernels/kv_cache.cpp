// Writing of keys and values. Reference: models/torch_attention.py. Test: test_native_attention.py.
#include "kv_cache.h"

#include <algorithm>

namespace trivet {
namespace {

// Where the tokens of a group stand: number d of a key, and of a value, `pair` lanes being one 32-bit word.
size_t key_at(int d, int lane) { return (size_t)(d / 2) * 2 * LANES + lane * 2 + d % 2; }
size_t value_at(int d, int lane, int head_dim) { return (size_t)(lane / 2) * head_dim * 2 + d * 2 + lane % 2; }

void write_floats(uint8_t* group, const Cache& cache, int lane, const float* key, const float* value) {
  float* keys = (float*)group + lane;
  for (int d = 0; d < cache.head_dim; d++) keys[(size_t)d * LANES] = key[d];
  memcpy((float*)(group + cache.part_bytes()) + (size_t)lane * cache.head_dim, value,
         cache.head_dim * sizeof(float));
}

void write_bfloats(uint8_t* group, const Cache& cache, int lane, const float* key, const float* value) {
  BFloat* keys = (BFloat*)group;
  BFloat* values = (BFloat*)(group + cache.part_bytes());
  alignas(64) BFloat rounded[LANES];
  for (int first = 0; first < cache.head_dim; first += LANES) {
    store_bfloats(rounded, load(key + first));
    for (int d = 0; d < LANES; d += 2) memcpy(keys + key_at(first + d, lane), rounded + d, 4);
    store_bfloats(rounded, load(value + first));
    for (int d = 0; d < LANES; d++) values[value_at(first + d, lane, cache.head_dim)] = rounded[d];
  }
}

// The largest size in bfloat16 / 127, rounded up: then no number exceeds 127.
BFloat scale_of(const float* x, int size) {
  Ints peaks = broadcast_int(0);
  // Compared as integers, so that a NaN counts as the largest.
  for (int i = 0; i < size; i += LANES)
    peaks = maximum(peaks, as_ints(load(x + i)) & broadcast_int(0x7fffffff));
  const int32_t peak_bits = largest(peaks);
  float peak;
  memcpy(&peak, &peak_bits, 4);
  if (peak != peak) return 0x7fc0;
  if (peak < 0x1p-100f) return 0;
  const float scale = peak / 127.0f;
  uint32_t bits;
  memcpy(&bits, &scale, 4);
  return (BFloat)((bits + 0xffff) >> 16);
}

template <class Put>
BFloat quantise(const float* x, int size, Put&& put) {
  const BFloat scale = scale_of(x, size);
  const float inverse = scale ? 1.0f / to_float(scale) : 0.0f;
  int32_t numbers[LANES];
  for (int first = 0; first < size; first += LANES) {
    const Ints rows = rounded(load(x + first) * broadcast(inverse));
    memcpy(numbers, &rows, sizeof numbers);
    for (int d = 0; d < LANES; d++) put(first + d, (int8_t)numbers[d]);
  }
  return scale;
}

void write_int8(uint8_t* group, const Cache& cache, int lane, const float* key, const float* value) {
  const int dim = cache.head_dim;
  int8_t* keys = (int8_t*)group;
  int8_t* values = (int8_t*)group + cache.part_bytes();
  BFloat* scales = (BFloat*)(group + 2 * cache.part_bytes());
  scales[lane] = quantise(key, dim, [&](int d, int8_t number) { keys[key_at(d, lane)] = number; });
  scales[LANES + lane] =
      quantise(value, dim, [&](int d, int8_t number) { values[value_at(d, lane, dim)] = number; });
}

}  // namespace

void write_kv(const Cache& cache, int head, int64_t slot, const float* key, const float* value) {
  const int inside = (int)(slot % cache.block_size), lane = inside % LANES;
  uint8_t* group = cache.group(slot / cache.block_size, head, inside);
  if (cache.kind == CACHE_F32) return write_floats(group, cache, lane, key, value);
  if (cache.kind == CACHE_BF16) return write_bfloats(group, cache, lane, key, value);
  write_int8(group, cache, lane, key, value);
}

void unpack_part(const int8_t* part, int head_dim, BFloat* out, const uint8_t* ahead) {
  for (int i = 0; i < LANES * head_dim; i += 2 * LANES) {
    prefetch(ahead + i);
#if defined(__AVX512BF16__)
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(part + i))));
    const __m512 high =
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(part + i + LANES))));
    _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
#else
    for (int k = i; k < i + 2 * LANES; k++) {
      const float number = part[k];
      uint32_t bits;
      memcpy(&bits, &number, 4);
      out[k] = (BFloat)(bits >> 16);  // eight bits are enough for -128 .. 127
    }
#endif
  }
}

}  // namespace trivet
