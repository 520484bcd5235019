// AVX2 with FMA. vpmaddubsw adds pairs of products in 16 bits. Weights are unsigned (plus 128, which the row's offset
// subtracts again), so that two products fit unless the positive or the negative values of a pair sum to more than 128.
// About one pair in fifty does: then half of it is added separately, and sums are exact.
// kernels_avxvnni.cpp includes this file again, for processors that have vpdpbusd for these vectors.
#include "kernels.h"

#ifndef AVX_VNNI
#define KERNELS avx2_kernels
#endif

// Compilers that support AVX-VNNI.
#if defined(__clang__)
#define KNOWS_AVX_VNNI (__clang_major__ >= 12)
#else
#define KNOWS_AVX_VNNI (__GNUC__ >= 11)
#endif

#if defined(__x86_64__) && defined(__GNUC__) && (!defined(AVX_VNNI) || KNOWS_AVX_VNNI)
#include <immintrin.h>

#ifdef AVX_VNNI
BEGIN_KERNELS_FOR("avx2,fma,avxvnni")
#else
BEGIN_KERNELS_FOR("avx2,fma")
#endif
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
inline Vector turned(Vector pairs, Vector angles) {
  return _mm256_fmaddsub_ps(pairs, _mm256_moveldup_ps(angles),
                            _mm256_permute_ps(pairs, 0xB1) * _mm256_movehdup_ps(angles));
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
inline Integers bits(Vector a) { return reinterpret_cast<Integers>(_mm256_castps_si256(a)); }
inline Integers greatest(Integers a, Integers b) {
  return reinterpret_cast<Integers>(_mm256_max_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
inline int32_t top(Integers a) {
  __m256i whole = reinterpret_cast<__m256i>(a);
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1)));
}
inline int32_t sum(Integers a) {
  int32_t total = 0;
  for (int i = 0; i < kWidth; i++) total += a[i];
  return total;
}
inline void store_bytes(int8_t* x, const Integers* a) {
  const __m256i* v = reinterpret_cast<const __m256i*>(a);
  __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));  // packed by halves of a vector
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), bytes);
}
typedef __m256i Bytes;
inline Bytes bytes_at(const uint8_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
#ifdef AVX_VNNI
inline Integers add_products(Integers total, Bytes w, Integers inputs) {
  return reinterpret_cast<Integers>(
      _mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(total), w, reinterpret_cast<__m256i>(inputs)));
}
constexpr bool kParted = false;
inline int part(int8_t*, int, Rest*) { return 0; }
#else
inline Integers add_products(Integers total, Bytes w, Integers inputs) {
  __m256i pairs = _mm256_maddubs_epi16(w, reinterpret_cast<__m256i>(inputs));
  return total + reinterpret_cast<Integers>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
constexpr bool kParted = true;

// Which 16-bit lanes hold pairs whose bytes, all non-negative, sum to more than 128.
inline __m256i above(__m256i bytes) {
  return _mm256_cmpgt_epi16(_mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1)), _mm256_set1_epi16(128));
}

// Halve the values of pairs that are too large, put the remainder into `rest`, and return their number.
inline int part(int8_t* values, int width, Rest* rest) {
  const __m256i zero = _mm256_setzero_si256();
  int count = 0;
  for (int i = 0; i < width; i += 32) {
    __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i));
    __m256i less = _mm256_sub_epi8(zero, v);
    __m256i over = _mm256_or_si256(above(_mm256_max_epi8(v, zero)), above(_mm256_max_epi8(less, zero)));
    for (uint32_t mask = static_cast<uint32_t>(_mm256_movemask_epi8(over)); mask;) {
      int group = __builtin_ctz(mask) / 4;
      mask &= ~(0xFu << group * 4);
      Rest& own = rest[count++];
      own.place = i + group * 4;
      for (int j = 0; j < 4; j++) {
        own.values[j] = static_cast<int8_t>(values[own.place + j] / 2);
        values[own.place + j] = static_cast<int8_t>(values[own.place + j] - own.values[j]);
      }
    }
  }
  return count;
}
#endif

#include "kernels_products.h"

}  // namespace
END_KERNELS

const Kernels* KERNELS() {
#ifdef AVX_VNNI
  const char* name = "avxvnni";
  bool here = instructions().avx_vnni;
#else
  const char* name = "avx2";
  bool here = instructions().avx2;
#endif
  static const Kernels kernels = {name,    quantize, multiply_int8, multiply_float,      normalize,   activate,
                                  prepare, attend,   largest,       sum_of_exponentials, places_above};
  return here ? &kernels : nullptr;
}

}  // namespace transduce
#else
namespace transduce {
const Kernels* KERNELS() { return nullptr; }
}  // namespace transduce
#endif
