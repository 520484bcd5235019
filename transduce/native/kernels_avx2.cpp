// AVX2 with FMA. vpmaddubsw adds pairs of products in 16 bits and would saturate with weights up to 255; of sizes up to
// 127 on both sides two products always fit, so the weight's sign is given to the activation and sums are exact.
// kernels_avxvnni.cpp includes this file once more, for processors that have vpdpbusd for these vectors.
#include "kernels.h"

#ifndef AVX_VNNI
#define KERNELS avx2_kernels
#endif

// GCC has AVX-VNNI since 11, and can ask the processor for it since 12.
#if defined(__x86_64__) && defined(__GNUC__) && (!defined(AVX_VNNI) || (!defined(__clang__) && __GNUC__ >= 12))
#ifdef AVX_VNNI
#pragma GCC target("avx2,fma,avxvnni")
#else
#pragma GCC target("avx2,fma")
#endif
#include <immintrin.h>

namespace transduce {
namespace {

typedef __m256 Vector;
constexpr int kWidth = 8;
inline Vector load(const float* x) { return _mm256_loadu_ps(x); }
inline Vector load(const Half* x) {
  __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline void store(float* x, Vector v) { _mm256_storeu_ps(x, v); }
inline Vector splat(float x) { return _mm256_set1_ps(x); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector greatest(Vector a, Vector b) { return _mm256_max_ps(a, b); }
inline Vector least(Vector a, Vector b) { return _mm256_min_ps(a, b); }
inline Vector nearest(Vector a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vector times_power_of_two(Vector a, Vector n) {
  __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return a * _mm256_castsi256_ps(exponent);
}
inline Vector copy_sign(Vector a, Vector sign) {
  return _mm256_or_ps(a, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
inline float sum(Vector a) {
  __m128 half = _mm256_castps256_ps128(a) + _mm256_extractf128_ps(a, 1);
  half = half + _mm_movehl_ps(half, half);
  return _mm_cvtss_f32(half + _mm_movehdup_ps(half));
}
inline float top(Vector a) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
inline uint32_t greater(Vector a, Vector b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
}

#include "kernels_vector.h"

constexpr int kVectors = 2, kRows = 4;
typedef int32_t Integers __attribute__((vector_size(32)));
inline Integers integers(int x) { return reinterpret_cast<Integers>(_mm256_set1_epi32(x)); }
inline Integers rounded(Vector a) { return reinterpret_cast<Integers>(_mm256_cvtps_epi32(a)); }
inline Vector floats(Integers a) { return _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(a)); }
inline int32_t sum(Integers a) {
  int32_t total = 0;
  for (int i = 0; i < kWidth; i++) total += a[i];
  return total;
}
inline void store_bytes(int8_t* x, Integers a) {
  __m256i v = reinterpret_cast<__m256i>(a);
  __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(x), _mm_packs_epi16(words, words));
}
#ifdef AVX_VNNI
typedef __m256i Weights;
inline Weights weights_at(const uint8_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
inline Integers add_products(Integers total, Weights w, Integers inputs) {
  return reinterpret_cast<Integers>(
      _mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(total), w, reinterpret_cast<__m256i>(inputs)));
}
inline Integers without_offset(Integers total, int32_t offset) { return total - integers(offset); }
#else
struct Weights {
  __m256i signs, sizes;
};
inline Weights weights_at(const uint8_t* x) {
  __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  __m256i signs = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  return {signs, _mm256_abs_epi8(signs)};
}
inline Integers add_products(Integers total, const Weights& w, Integers inputs) {
  __m256i pairs = _mm256_maddubs_epi16(w.sizes, _mm256_sign_epi8(reinterpret_cast<__m256i>(inputs), w.signs));
  return total + reinterpret_cast<Integers>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Integers without_offset(Integers total, int32_t) { return total; }  // signed products have none
#endif

#include "kernels_products.h"

}  // namespace

const Kernels* KERNELS() {
#ifdef AVX_VNNI
  const char* name = "avxvnni";
  bool here = __builtin_cpu_supports("avxvnni");
#else
  const char* name = "avx2";
  bool here = true;
#endif
  static const Kernels kernels = {name,     quantize, multiply_int8, multiply_float, normalize,
                                  activate, attend,   largest,       sum_of_exponentials, places_above};
  return here && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels : nullptr;
}

}  // namespace transduce
#else
namespace transduce {
const Kernels* KERNELS() { return nullptr; }
}  // namespace transduce
#endif
