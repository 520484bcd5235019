// AVX2 with FMA. vpmaddubsw adds pairs of products in 16 bits and would saturate with weights up to 255; of sizes up to
// 127 on both sides two products always fit, so the weight's sign is given to the activation and sums are exact.
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2,fma")
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

void quantize(const float* x, int rows, int width, Quantized out) {
  const __m256 sign = splat(-0.0f);
  for (int r = 0; r < rows; r++) {
    const float* row = x + static_cast<size_t>(r) * width;
    int8_t* values = out.values + static_cast<size_t>(r) * width;
    Vector most = splat(1e-10f);
    for (int i = 0; i < width; i += 8) most = greatest(most, _mm256_andnot_ps(sign, load(row + i)));
    float highest = top(most);
    Vector factor = splat(127 / highest);
    int32_t total = 0;
    for (int i = 0; i < width; i += 8) {
      __m256i v = _mm256_cvtps_epi32(load(row + i) * factor);
      __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(values + i), _mm_packs_epi16(words, words));
      for (int j = 0; j < 8; j++) total += values[i + j];
    }
    out.scales[r] = highest / 127;
    out.offsets[r] = 128 * total;
  }
}

inline void finish(Vector value, float* out, After after) {
  if (after == After::kRelu) value = greatest(value, splat(0.0f));
  if (after == After::kAdd) value = value + load(out);
  store(out, value);
}

// Sixteen of the panel's outputs for some rows.
template <int kRows>
inline void tile(const uint8_t* weights, int inputs, const float* scales, const float* bias, const int8_t* x,
                 const float* x_scales, float* out, size_t stride, After after) {
  __m256i total[kRows][2];
  for (int r = 0; r < kRows; r++) total[r][0] = total[r][1] = _mm256_setzero_si256();
  const __m256i flip = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
  for (int k = 0; k < inputs; k += 4) {
    const __m256i* w = reinterpret_cast<const __m256i*>(weights + static_cast<size_t>(k) * kPanel);
    __m256i w0 = _mm256_xor_si256(_mm256_loadu_si256(w), flip), w1 = _mm256_xor_si256(_mm256_loadu_si256(w + 1), flip);
    __m256i size0 = _mm256_abs_epi8(w0), size1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; r++) {
      int four;
      __builtin_memcpy(&four, x + static_cast<size_t>(r) * inputs + k, 4);
      __m256i v = _mm256_set1_epi32(four);
      __m256i pairs0 = _mm256_maddubs_epi16(size0, _mm256_sign_epi8(v, w0));
      __m256i pairs1 = _mm256_maddubs_epi16(size1, _mm256_sign_epi8(v, w1));
      total[r][0] = _mm256_add_epi32(total[r][0], _mm256_madd_epi16(pairs0, ones));
      total[r][1] = _mm256_add_epi32(total[r][1], _mm256_madd_epi16(pairs1, ones));
    }
  }
  for (int r = 0; r < kRows; r++)
    for (int c = 0; c < 2; c++) {
      Vector value = _mm256_cvtepi32_ps(total[r][c]);
      value = fma(value, splat(x_scales[r]) * load(scales + c * 8), load(bias + c * 8));
      finish(value, out + r * stride + c * 8, after);
    }
}

void multiply_int8(const Matrix& matrix, int first, int last, Quantized x, int rows, float* out, size_t stride,
                   After after) {
  for (int p = first; p < last; p++)
    for (int r = 0; r < rows;) {
      auto run = [&](auto size) {
        constexpr int kRows = decltype(size)::value;
        for (int c = 0; c < kPanel; c += 16)
          tile<kRows>(matrix.bytes + static_cast<size_t>(p) * kPanel * matrix.inputs + c * 4, matrix.inputs,
                      matrix.scales + p * kPanel + c, matrix.bias + p * kPanel + c,
                      x.values + static_cast<size_t>(r) * matrix.inputs, x.scales + r,
                      out + r * stride + p * kPanel + c, stride, after);
        r += kRows;
      };
      rows - r >= 4 ? run(Size<4>()) : rows - r >= 2 ? run(Size<2>()) : run(Size<1>());
    }
}

template <int kRows>
inline void tile(const float* weights, int inputs, const float* bias, const float* x, float* out, size_t stride,
                 After after) {
  Vector total[kRows][2];
  for (int r = 0; r < kRows; r++)
    for (int c = 0; c < 2; c++) total[r][c] = load(bias + c * 8);
  for (int k = 0; k < inputs; k++) {
    Vector w0 = load(weights + static_cast<size_t>(k) * kPanel), w1 = load(weights + static_cast<size_t>(k) * kPanel + 8);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; r++) {
      Vector v = splat(x[static_cast<size_t>(r) * inputs + k]);
      total[r][0] = fma(v, w0, total[r][0]);
      total[r][1] = fma(v, w1, total[r][1]);
    }
  }
  for (int r = 0; r < kRows; r++)
    for (int c = 0; c < 2; c++) finish(total[r][c], out + r * stride + c * 8, after);
}

void multiply_float(const Matrix& matrix, int first, int last, const float* x, int rows, float* out, size_t stride,
                    After after) {
  for (int p = first; p < last; p++)
    for (int r = 0; r < rows;) {
      auto run = [&](auto size) {
        constexpr int kRows = decltype(size)::value;
        for (int c = 0; c < kPanel; c += 16)
          tile<kRows>(matrix.floats + static_cast<size_t>(p) * kPanel * matrix.inputs + c, matrix.inputs,
                      matrix.bias + p * kPanel + c, x + static_cast<size_t>(r) * matrix.inputs,
                      out + r * stride + p * kPanel + c, stride, after);
        r += kRows;
      };
      rows - r >= 4 ? run(Size<4>()) : run(Size<1>());
    }
}

}  // namespace

const Kernels* avx2_kernels() {
  static const Kernels kernels = {"avx2",   quantize, multiply_int8, multiply_float, normalize,
                                  activate, attend,   largest,       sum_of_exponentials, places_above};
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &kernels : nullptr;
}

}  // namespace transduce
#else
namespace transduce {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace transduce
#endif
