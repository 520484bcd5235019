// AVX512 with VNNI: vpdpbusd adds four products of unsigned and signed bytes into each of sixteen 32-bit sums. Weights
// are the unsigned ones (plus 128, which the row's offset subtracts again), so that sums are exact.
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

BEGIN_KERNELS_FOR("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,avx2")
namespace transduce {
namespace {

typedef __m512 Vector;
constexpr int kWidth = 16;
inline Vector load(const float* x) { return _mm512_loadu_ps(x); }
inline Vector load(const Half* x) {
  __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline void store(float* x, Vector v) { _mm512_storeu_ps(x, v); }
inline Vector splat(float x) { return _mm512_set1_ps(x); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector greatest(Vector a, Vector b) { return _mm512_max_ps(a, b); }
inline Vector least(Vector a, Vector b) { return _mm512_min_ps(a, b); }
inline Vector nearest(Vector a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vector times_power_of_two(Vector a, Vector n) { return _mm512_scalef_ps(a, n); }
inline Vector copy_sign(Vector a, Vector sign) {
  return _mm512_or_ps(a, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
inline Vector turned(Vector pairs, Vector angles) {
  return _mm512_fmaddsub_ps(pairs, _mm512_moveldup_ps(angles),
                            _mm512_permute_ps(pairs, 0xB1) * _mm512_movehdup_ps(angles));
}
inline float sum(Vector a) { return _mm512_reduce_add_ps(a); }
inline float top(Vector a) { return _mm512_reduce_max_ps(a); }
inline uint32_t greater(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

#include "kernels_vector.h"

constexpr int kVectors = 4, kRows = 6;
typedef int32_t Integers __attribute__((vector_size(64)));
typedef __m512i Bytes;
inline Integers integers(int x) { return reinterpret_cast<Integers>(_mm512_set1_epi32(x)); }
inline Integers rounded(Vector a) { return reinterpret_cast<Integers>(_mm512_cvtps_epi32(a)); }
inline Vector floats(Integers a) { return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(a)); }
inline Integers bits(Vector a) { return reinterpret_cast<Integers>(_mm512_castps_si512(a)); }
inline Integers greatest(Integers a, Integers b) {
  return reinterpret_cast<Integers>(_mm512_max_epi32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
inline int32_t top(Integers a) { return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(a)); }
inline int32_t sum(Integers a) { return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(a)); }
inline void store_bytes(int8_t* x, const Integers* a) {
  for (int i = 0; i < 4; i++)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(x) + i, _mm512_cvtsepi32_epi8(reinterpret_cast<__m512i>(a[i])));
}
inline Bytes bytes_at(const uint8_t* x) { return _mm512_load_si512(x); }
inline Integers add_products(Integers total, Bytes w, Integers inputs) {
  return reinterpret_cast<Integers>(
      _mm512_dpbusd_epi32(reinterpret_cast<__m512i>(total), w, reinterpret_cast<__m512i>(inputs)));
}
constexpr bool kParted = false;
inline int part(int8_t*, int, Rest*) { return 0; }

#include "kernels_products.h"

}  // namespace
END_KERNELS

const Kernels* avx512_kernels() {
  static const Kernels kernels = {"avx512", quantize, multiply_int8, multiply_float,      normalize,   activate,
                                  prepare,  attend,   largest,       sum_of_exponentials, places_above};
  return instructions().avx512_vnni ? &kernels : nullptr;
}

}  // namespace transduce
#else
namespace transduce {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace transduce
#endif
