// AVX512 with VNNI: vpdpbusd adds four products of unsigned and signed bytes into each of sixteen 32-bit sums. Weights
// are the unsigned ones (plus 128, which the row's offset takes off again), so that sums are exact.
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,avx2")
#include <immintrin.h>

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
inline float sum(Vector a) { return _mm512_reduce_add_ps(a); }
inline float top(Vector a) { return _mm512_reduce_max_ps(a); }
inline uint32_t greater(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

#include "kernels_vector.h"

void quantize(const float* x, int rows, int width, Quantized out) {
  for (int r = 0; r < rows; r++) {
    const float* row = x + static_cast<size_t>(r) * width;
    int8_t* values = out.values + static_cast<size_t>(r) * width;
    Vector most = splat(1e-10f);
    for (int i = 0; i < width; i += 16) most = greatest(most, _mm512_abs_ps(load(row + i)));
    float highest = top(most);
    Vector factor = splat(127 / highest);
    __m512i total = _mm512_setzero_si512();
    for (int i = 0; i < width; i += 16) {
      __m512i v = _mm512_cvtps_epi32(load(row + i) * factor);
      total = _mm512_add_epi32(total, v);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i), _mm512_cvtsepi32_epi8(v));
    }
    out.scales[r] = highest / 127;
    out.offsets[r] = 128 * _mm512_reduce_add_epi32(total);
  }
}

inline void finish(Vector value, float* out, After after) {
  if (after == After::kRelu) value = greatest(value, splat(0.0f));
  if (after == After::kAdd) value = value + load(out);
  store(out, value);
}

template <int kRows>
inline void tile(const uint8_t* weights, int inputs, const float* scales, const float* bias, const int8_t* x,
                 const float* x_scales, const int32_t* x_offsets, float* out, size_t stride, After after) {
  __m512i total[kRows][4];
  for (int r = 0; r < kRows; r++)
    for (int c = 0; c < 4; c++) total[r][c] = _mm512_setzero_si512();
  for (int k = 0; k < inputs; k += 4) {
    const uint8_t* w = weights + static_cast<size_t>(k) * kPanel;
    __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
    __m512i w2 = _mm512_load_si512(w + 128), w3 = _mm512_load_si512(w + 192);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) {
      int four;
      __builtin_memcpy(&four, x + static_cast<size_t>(r) * inputs + k, 4);
      __m512i v = _mm512_set1_epi32(four);
      total[r][0] = _mm512_dpbusd_epi32(total[r][0], w0, v);
      total[r][1] = _mm512_dpbusd_epi32(total[r][1], w1, v);
      total[r][2] = _mm512_dpbusd_epi32(total[r][2], w2, v);
      total[r][3] = _mm512_dpbusd_epi32(total[r][3], w3, v);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; r++)
    for (int c = 0; c < 4; c++) {
      Vector value = _mm512_cvtepi32_ps(_mm512_sub_epi32(total[r][c], _mm512_set1_epi32(x_offsets[r])));
      value = fma(value, splat(x_scales[r]) * load(scales + c * 16), load(bias + c * 16));
      finish(value, out + r * stride + c * 16, after);
    }
}

void multiply_int8(const Matrix& matrix, int first, int last, Quantized x, int rows, float* out, size_t stride,
                   After after) {
  for (int p = first; p < last; p++) {
    const uint8_t* weights = matrix.bytes + static_cast<size_t>(p) * kPanel * matrix.inputs;
    const float *scales = matrix.scales + p * kPanel, *bias = matrix.bias + p * kPanel;
    int r = 0;
    auto run = [&](auto size) {
      constexpr int kRows = decltype(size)::value;
      tile<kRows>(weights, matrix.inputs, scales, bias, x.values + static_cast<size_t>(r) * matrix.inputs, x.scales + r,
                  x.offsets + r, out + r * stride + p * kPanel, stride, after);
      r += kRows;
    };
    while (rows - r >= 6) run(Size<6>());
    if (rows - r >= 4) run(Size<4>());
    if (rows - r >= 3) run(Size<3>());
    if (rows - r >= 2) run(Size<2>());
    if (rows - r >= 1) run(Size<1>());
  }
}

template <int kRows>
inline void tile(const float* weights, int inputs, const float* bias, const float* x, float* out, size_t stride,
                 After after) {
  Vector total[kRows][4];
  for (int r = 0; r < kRows; r++)
    for (int c = 0; c < 4; c++) total[r][c] = load(bias + c * 16);
  for (int k = 0; k < inputs; k++) {
    const float* w = weights + static_cast<size_t>(k) * kPanel;
    Vector w0 = load(w), w1 = load(w + 16), w2 = load(w + 32), w3 = load(w + 48);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; r++) {
      Vector v = splat(x[static_cast<size_t>(r) * inputs + k]);
      total[r][0] = fma(v, w0, total[r][0]);
      total[r][1] = fma(v, w1, total[r][1]);
      total[r][2] = fma(v, w2, total[r][2]);
      total[r][3] = fma(v, w3, total[r][3]);
    }
  }
  for (int r = 0; r < kRows; r++)
    for (int c = 0; c < 4; c++) finish(total[r][c], out + r * stride + c * 16, after);
}

void multiply_float(const Matrix& matrix, int first, int last, const float* x, int rows, float* out, size_t stride,
                    After after) {
  for (int p = first; p < last; p++) {
    const float* weights = matrix.floats + static_cast<size_t>(p) * kPanel * matrix.inputs;
    int r = 0;
    auto run = [&](auto size) {
      constexpr int kRows = decltype(size)::value;
      tile<kRows>(weights, matrix.inputs, matrix.bias + p * kPanel, x + static_cast<size_t>(r) * matrix.inputs,
                  out + r * stride + p * kPanel, stride, after);
      r += kRows;
    };
    while (rows - r >= 6) run(Size<6>());
    while (rows - r >= 2) run(Size<2>());
    if (rows - r >= 1) run(Size<1>());
  }
}

}  // namespace

const Kernels* avx512_kernels() {
  static const Kernels kernels = {"avx512", quantize, multiply_int8, multiply_float, normalize,
                                  activate, attend,   largest,       sum_of_exponentials, places_above};
  bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512vnni");
  return runs ? &kernels : nullptr;
}

}  // namespace transduce
#else
namespace transduce {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace transduce
#endif
