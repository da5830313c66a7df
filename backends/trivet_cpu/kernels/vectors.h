// Sixteen float lanes on every instruction set: one zmm, two ymm, or four 128-bit registers.
//
// GCC's vector types carry the arithmetic, so the same text compiles for AVX-512, AVX2, NEON and SSE2;
// intrinsics stand only where C has no word for an instruction (dot products, bfloat16, half precision).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trivet {

constexpr int LANES = 16;
#if defined(__AVX512F__)
constexpr int PART = 16;
#elif defined(__AVX2__)
constexpr int PART = 8;
#else
constexpr int PART = 4;
#endif
constexpr int PARTS = LANES / PART;

typedef float PartF __attribute__((vector_size(PART * 4)));
typedef int32_t PartI __attribute__((vector_size(PART * 4)));

struct Floats {
  PartF p[PARTS];
};
struct Ints {
  PartI p[PARTS];
};

#define TRIVET_EACH_PART _Pragma("GCC unroll 4") for (int i = 0; i < PARTS; i++)
#define TRIVET_INLINE static inline __attribute__((always_inline))

#define TRIVET_OPERATOR(Type, op)                        \
  TRIVET_INLINE Type operator op(const Type& a, const Type& b) { \
    Type r;                                              \
    TRIVET_EACH_PART r.p[i] = a.p[i] op b.p[i];          \
    return r;                                            \
  }
TRIVET_OPERATOR(Floats, +)
TRIVET_OPERATOR(Floats, -)
TRIVET_OPERATOR(Floats, *)
TRIVET_OPERATOR(Floats, /)
TRIVET_OPERATOR(Ints, +)
TRIVET_OPERATOR(Ints, -)
TRIVET_OPERATOR(Ints, &)
TRIVET_OPERATOR(Ints, |)
#undef TRIVET_OPERATOR

TRIVET_INLINE Floats broadcast(float x) {
  Floats r;
  TRIVET_EACH_PART r.p[i] = x - PartF{};  // not "+": -0.0 + 0.0 is 0.0, which would have to be computed
  return r;
}
TRIVET_INLINE Ints broadcast_int(int32_t x) {
  Ints r;
  TRIVET_EACH_PART r.p[i] = PartI{} + x;
  return r;
}
TRIVET_INLINE Floats load(const float* x) {
  Floats r;
  memcpy(&r, x, sizeof r);
  return r;
}
TRIVET_INLINE void store(float* x, const Floats& v) { memcpy(x, &v, sizeof v); }
TRIVET_INLINE Ints load_ints(const void* x) {
  Ints r;
  memcpy(&r, x, sizeof r);
  return r;
}
TRIVET_INLINE void store_ints(int32_t* x, const Ints& v) { memcpy(x, &v, sizeof v); }
// a * b + c in one rounding where the CPU has that (GCC contracts it).
TRIVET_INLINE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
  Floats r;
  TRIVET_EACH_PART r.p[i] = a.p[i] * b.p[i] + c.p[i];
  return r;
}
// Comparisons give all ones or zero in each lane; a comparison with NaN is false.
TRIVET_INLINE Ints less(const Floats& a, const Floats& b) {
  Ints r;
  TRIVET_EACH_PART r.p[i] = a.p[i] < b.p[i];
  return r;
}
TRIVET_INLINE Ints less(const Ints& a, const Ints& b) {
  Ints r;
  TRIVET_EACH_PART r.p[i] = a.p[i] < b.p[i];
  return r;
}
TRIVET_INLINE Ints shifted_left(const Ints& a, int32_t bits) {
  Ints r;
  TRIVET_EACH_PART r.p[i] = a.p[i] << bits;
  return r;
}
TRIVET_INLINE Ints shifted_right(const Ints& a, int32_t bits) {
#if defined(__AVX512F__)
  // GCC would take the instruction that wants the count moved to a vector register.
  return Ints{(PartI)_mm512_srav_epi32((__m512i)a.p[0], _mm512_set1_epi32(bits))};
#else
  Ints r;
  TRIVET_EACH_PART r.p[i] = a.p[i] >> bits;
  return r;
#endif
}
TRIVET_INLINE Floats select(const Ints& mask, const Floats& yes, const Floats& no) {
  Floats r;
  TRIVET_EACH_PART r.p[i] = mask.p[i] ? yes.p[i] : no.p[i];
  return r;
}
TRIVET_INLINE Ints select(const Ints& mask, const Ints& yes, const Ints& no) {
  Ints r;
  TRIVET_EACH_PART r.p[i] = mask.p[i] ? yes.p[i] : no.p[i];
  return r;
}
// Where a lane of either is NaN the lane of `b` is taken.
TRIVET_INLINE Floats maximum(const Floats& a, const Floats& b) {
  Floats r;
  TRIVET_EACH_PART r.p[i] = a.p[i] > b.p[i] ? a.p[i] : b.p[i];
  return r;
}
TRIVET_INLINE Floats minimum(const Floats& a, const Floats& b) {
  Floats r;
  TRIVET_EACH_PART r.p[i] = a.p[i] < b.p[i] ? a.p[i] : b.p[i];
  return r;
}
TRIVET_INLINE Ints maximum(const Ints& a, const Ints& b) {
  Ints r;
  TRIVET_EACH_PART r.p[i] = a.p[i] > b.p[i] ? a.p[i] : b.p[i];
  return r;
}
TRIVET_INLINE Floats to_floats(const Ints& a) {
  Floats r;
  TRIVET_EACH_PART r.p[i] = __builtin_convertvector(a.p[i], PartF);
  return r;
}
TRIVET_INLINE Floats as_floats(const Ints& a) {
  Floats r;
  memcpy(&r, &a, sizeof r);
  return r;
}
TRIVET_INLINE Ints as_ints(const Floats& a) {
  Ints r;
  memcpy(&r, &a, sizeof r);
  return r;
}
TRIVET_INLINE Ints lane_numbers() {
  alignas(64) static const int32_t numbers[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load_ints(numbers);
}

#if defined(__AVX512F__)
TRIVET_INLINE float sum(const Floats& a) { return _mm512_reduce_add_ps((__m512)a.p[0]); }
TRIVET_INLINE float largest(const Floats& a) { return _mm512_reduce_max_ps((__m512)a.p[0]); }
TRIVET_INLINE int32_t largest(const Ints& a) { return _mm512_reduce_max_epi32((__m512i)a.p[0]); }
TRIVET_INLINE int32_t sum(const Ints& a) { return _mm512_reduce_add_epi32((__m512i)a.p[0]); }
// To the nearest integer, ties to even.
TRIVET_INLINE Ints rounded(const Floats& a) {
  return Ints{(PartI)_mm512_cvtps_epi32((__m512)a.p[0])};
}
#else
template <class Vector, class Scalar, class Join>
TRIVET_INLINE Scalar reduced(const Vector& a, Join join) {
  Scalar lanes[LANES];
  memcpy(lanes, &a, sizeof lanes);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] = join(lanes[i], lanes[i + width]);
  return lanes[0];
}
TRIVET_INLINE float sum(const Floats& a) {
  return reduced<Floats, float>(a, [](float x, float y) { return x + y; });
}
TRIVET_INLINE float largest(const Floats& a) {
  return reduced<Floats, float>(a, [](float x, float y) { return x > y ? x : y; });
}
TRIVET_INLINE int32_t largest(const Ints& a) {
  return reduced<Ints, int32_t>(a, [](int32_t x, int32_t y) { return x > y ? x : y; });
}
TRIVET_INLINE int32_t sum(const Ints& a) {
  return reduced<Ints, int32_t>(a, [](int32_t x, int32_t y) { return x + y; });
}
TRIVET_INLINE Ints rounded(const Floats& a) {
  // Adding 1.5 * 2^23 leaves no bits behind the point; exact for |a| < 2^22.
  const Floats magic = broadcast(12582912.0f);
  return as_ints(a + magic) - as_ints(magic);
}
#endif

// The lowest byte of each lane.
TRIVET_INLINE void store_bytes(int8_t* out, const Ints& v) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8((__m512i)v.p[0]));
#else
  int32_t lanes[LANES];
  memcpy(lanes, &v, sizeof lanes);
  for (int i = 0; i < LANES; i++) out[i] = (int8_t)lanes[i];
#endif
}

// ---- bfloat16: the upper half of a float ----

typedef uint16_t BFloat;

TRIVET_INLINE float to_float(BFloat x) {
  uint32_t bits = (uint32_t)x << 16;
  float r;
  memcpy(&r, &bits, 4);
  return r;
}
// To nearest, ties to even; a NaN stays one.
TRIVET_INLINE BFloat to_bfloat(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if (x != x) return (BFloat)((bits >> 16) | 0x40);
  return (BFloat)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
TRIVET_INLINE void store_bfloats(BFloat* out, const Floats& v) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)out, (__m256i)_mm512_cvtneps_pbh((__m512)v.p[0]));
#else
  float lanes[LANES];
  store(lanes, v);
  for (int i = 0; i < LANES; i++) out[i] = to_bfloat(lanes[i]);
#endif
}
TRIVET_INLINE Floats load_bfloats(const BFloat* x) {
#if defined(__AVX512F__)
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x));
  return Floats{(PartF)_mm512_slli_epi32(wide, 16)};
#else
  float lanes[LANES];
  for (int i = 0; i < LANES; i++) lanes[i] = to_float(x[i]);
  return load(lanes);
#endif
}
// The even and the odd elements of 32 bfloats, as pairs stand in packed weights and keys.
TRIVET_INLINE Floats even_of_pairs(const Ints& pairs) {
  Ints r;
  TRIVET_EACH_PART r.p[i] = pairs.p[i] << 16;
  return as_floats(r);
}
TRIVET_INLINE Floats odd_of_pairs(const Ints& pairs) {
  return as_floats(pairs & broadcast_int((int32_t)0xffff0000));
}
// Two vectors as 16 pairs of bfloats, to nearest, ties away from zero.
TRIVET_INLINE Ints pairs_of(const Floats& even, const Floats& odd) {
  const Ints half = broadcast_int(0x8000), low = as_ints(even) + half, high = as_ints(odd) + half;
  return (shifted_right(low, 16) & broadcast_int(0xffff)) | (high & broadcast_int((int32_t)0xffff0000));
}
// sum + (even, odd) . (even, odd) of 16 pairs with one broadcast pair: 64 FLOPs.
TRIVET_INLINE Floats dot_pairs(const Floats& sum, const Ints& pairs, int32_t pair) {
#if defined(__AVX512BF16__)
  return Floats{(PartF)_mm512_dpbf16_ps((__m512)sum.p[0], (__m512bh)pairs.p[0],
                                        (__m512bh)_mm512_set1_epi32(pair))};
#else
  const float even = to_float((BFloat)pair), odd = to_float((BFloat)((uint32_t)pair >> 16));
  return fma(odd_of_pairs(pairs), broadcast(odd), fma(even_of_pairs(pairs), broadcast(even), sum));
#endif
}

// ---- half precision: the scales of GGUF ----

TRIVET_INLINE float half_to_float(uint16_t half) {
  // The exponent is 112 too small; a multiplication puts that right, for subnormal numbers too.
  const uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
  float r;
  memcpy(&r, &bits, 4);
  r *= 0x1p112f;
  if ((half & 0x7c00) == 0x7c00) r = (half & 0x3ff) ? NAN : INFINITY;
  return half & 0x8000 ? -r : r;
}
TRIVET_INLINE Floats load_halves(const uint16_t* x) {
#if defined(__AVX512F__)
  return Floats{(PartF)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)x))};
#elif defined(__F16C__)
  Floats r;
  TRIVET_EACH_PART r.p[i] = (PartF)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)x + i));
  return r;
#else
  float lanes[LANES];
  for (int i = 0; i < LANES; i++) lanes[i] = half_to_float(x[i]);
  return load(lanes);
#endif
}
// To nearest, ties to even; beyond the range it saturates at 65504, so that 0 * scale stays 0.
static inline uint16_t float_to_half(float x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (size != size) return 0x7e00;
  if (size >= 65504.0f) return sign | 0x7bff;
  int exponent = -14;
  if (size >= 0x1p-14f) exponent = std::ilogb(size);
  const long units = std::lrint(std::ldexp(size, 10 - exponent));  // in steps of 2^(exponent - 10)
  return sign | (uint16_t)(units + ((exponent + 14) << 10));
}

// ---- functions ----

// e^x to 2 ulp; 0 below -87.3, e^88 above 88, NaN for NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2; Taylor's series to r^7 leaves (ln 2 / 2)^8 / 8! = 5e-9.
TRIVET_INLINE Floats exponential(const Floats& x) {
  const Floats top = broadcast(88.0f), bottom = broadcast(-87.3f);
  const Floats clipped = select(less(top, x), top, select(less(x, bottom), bottom, x));
  const Floats magic = broadcast(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded to an integer
  const Floats shifted = fma(clipped, broadcast(1.44269504f), magic);
  const Floats n = shifted - magic;
  // ln 2 in two pieces; n times the first, of 15 bits, is exact.
  Floats r = fma(n, broadcast(-0x1.62e4p-1f), clipped);
  r = fma(n, broadcast(-1.42860682e-6f), r);
  Floats p = broadcast(1.0f / 5040);
  p = fma(p, r, broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  Ints scale = as_ints(shifted) - as_ints(magic) + broadcast_int(127);
  TRIVET_EACH_PART scale.p[i] = scale.p[i] << 23;  // 2^n as a float; a NaN in p survives the product
  return select(less(x, bottom), broadcast(0.0f), p * as_floats(scale));
}

// The best polynomials of 2^r for |r| <= 1/2 that have 2^0 = 1, highest power first.
template <int degree>
struct PowerOfTwo;
template <>
struct PowerOfTwo<4> {  // to 3e-6
  static constexpr float terms[] = {0.0095828558f, 0.0559064299f, 0.2402409911f, 0.6931241751f, 1.0f};
};
template <>
struct PowerOfTwo<5> {  // to 9e-8
  static constexpr float terms[] = {0.0013264727f, 0.0096715126f, 0.0555073374f,
                                    0.2402224209f, 0.6931469776f, 1.0f};
};

// 2^x as exactly as its polynomial: of degree 4 for what is rounded to bfloat16 afterwards. Exactly 1 for 0, 0
// below -127, NaN for NaN. x = n + r with |r| <= 1/2.
template <int degree>
TRIVET_INLINE Floats power_of_two(const Floats& x) {
#if defined(__AVX512F__)
  const Floats r{(PartF)_mm512_reduce_ps((__m512)x.p[0], 0)};  // x less the nearest integer: exact
  const Floats n = x - r;
#else
  const Floats bottom = broadcast(-127.0f), magic = broadcast(12582912.0f);
  const Floats clipped = select(less(x, bottom), bottom, x);
  const Floats shifted = clipped + magic;
  const Floats r = clipped - (shifted - magic);
#endif
  constexpr auto& terms = PowerOfTwo<degree>::terms;
  Floats p = broadcast(terms[0]);
#pragma GCC unroll 5
  for (int i = 1; i <= degree; i++) p = fma(p, r, broadcast(terms[i]));
#if defined(__AVX512F__)
  return Floats{(PartF)_mm512_scalef_ps((__m512)p.p[0], (__m512)n.p[0])};
#else
  Ints scale = as_ints(shifted) - as_ints(magic) + broadcast_int(127);
  TRIVET_EACH_PART scale.p[i] = scale.p[i] << 23;  // 0 for -127
  return p * as_floats(scale);
#endif
}

// 1 / x to 2 ulp; x neither subnormal nor beyond 2^126.
TRIVET_INLINE Floats reciprocal(const Floats& x) {
#if defined(__AVX512F__)
  const Floats guess{(PartF)_mm512_rcp14_ps((__m512)x.p[0])};  // 14 bits, and as many more by a step of Newton's
  return fma(guess, broadcast(1.0f) - x * guess, guess);
#else
  return broadcast(1.0f) / x;
#endif
}

// GCC would load a vector anew for each of its uses, since that saves a register.
TRIVET_INLINE Ints in_register(const Ints& a) {
#if defined(__AVX512F__)
  PartI part = a.p[0];
  asm("" : "+v"(part));
  return Ints{part};
#else
  return a;
#endif
}

// Into the second-level cache: it has room for more misses at once than the first (Zen 4, decoding 32 sequences
// of 2,048 tokens: 33 GB/s instead of 24).
TRIVET_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 2); }

}  // namespace trivet
