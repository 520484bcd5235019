// Any processor: vectors of four floats in the compiler's own notation, compiled to SSE2, NEON or scalar code.
#include "kernels.h"

namespace transduce {
namespace {

typedef float Vector __attribute__((vector_size(16)));
typedef int32_t Integers __attribute__((vector_size(16)));
constexpr int kWidth = 4;
inline Vector load(const float* x) {
  Vector v;
  __builtin_memcpy(&v, x, sizeof v);
  return v;
}
inline Vector load(const Half* x) {
  Integers bits;
  for (int i = 0; i < 4; i++) bits[i] = static_cast<int32_t>(static_cast<uint32_t>(x[i]) << 16);
  Vector v;
  __builtin_memcpy(&v, &bits, sizeof v);
  return v;
}
inline void store(float* x, Vector v) { __builtin_memcpy(x, &v, sizeof v); }
inline Vector splat(float x) { return Vector{x, x, x, x}; }
inline Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
inline Vector greatest(Vector a, Vector b) { return a > b ? a : b; }
inline Vector least(Vector a, Vector b) { return a < b ? a : b; }
inline Vector nearest(Vector a) {
  for (int i = 0; i < 4; i++) a[i] = __builtin_nearbyintf(a[i]);
  return a;
}
inline Vector times_power_of_two(Vector a, Vector n) {
  Integers exponent;
  for (int i = 0; i < 4; i++) exponent[i] = (static_cast<int32_t>(n[i]) + 127) << 23;
  Vector power;
  __builtin_memcpy(&power, &exponent, sizeof power);
  return a * power;
}
inline Vector copy_sign(Vector a, Vector sign) {
  for (int i = 0; i < 4; i++) a[i] = __builtin_copysignf(a[i], sign[i]);
  return a;
}
inline Vector turned(Vector pairs, Vector angles) {
  return Vector{pairs[0] * angles[0] - pairs[1] * angles[1], pairs[1] * angles[0] + pairs[0] * angles[1],
                pairs[2] * angles[2] - pairs[3] * angles[3], pairs[3] * angles[2] + pairs[2] * angles[3]};
}
inline float sum(Vector a) { return (a[0] + a[1]) + (a[2] + a[3]); }
inline float top(Vector a) {
  float x = a[0] > a[1] ? a[0] : a[1], y = a[2] > a[3] ? a[2] : a[3];
  return x > y ? x : y;
}
inline uint32_t greater(Vector a, Vector b) {
  uint32_t mask = 0;
  for (int i = 0; i < 4; i++) mask |= static_cast<uint32_t>(a[i] > b[i]) << i;
  return mask;
}

#include "kernels_vector.h"

void quantize(const float* x, int rows, int width, Quantized out) {
  for (int r = 0; r < rows; r++) {
    const float* row = x + static_cast<size_t>(r) * width;
    int8_t* values = out.values + static_cast<size_t>(r) * width;
    quantize_any(row, width, values, out.scales + r, out.offsets + r);
  }
}

inline void finish(float value, float* out, After after) {
  if (after == After::kRelu && value < 0) value = 0;
  *out = after == After::kAdd ? value + *out : value;
}

void multiply_int8(const Matrix& matrix, int first, int last, Quantized x, int rows, float* out, size_t stride,
                   After after) {
  for (int p = first; p < last; p++)
    for (int r = 0; r < rows; r++) {
      const int8_t* row = x.values + static_cast<size_t>(r) * matrix.inputs;
      int32_t total[kPanel] = {0};
      for (int k = 0; k < matrix.inputs; k += 4) {
        const uint8_t* w = matrix.bytes + (static_cast<size_t>(p) * matrix.inputs + k) * kPanel;
        for (int c = 0; c < kPanel; c++)
          for (int j = 0; j < 4; j++) total[c] += static_cast<int32_t>(w[c * 4 + j]) * row[k + j];
      }
      for (int c = 0; c < kPanel; c++) {
        float value = static_cast<float>(total[c] - x.offsets[r]);
        value = value * (x.scales[r] * matrix.scales[p * kPanel + c]) + matrix.bias[p * kPanel + c];
        finish(value, out + r * stride + p * kPanel + c, after);
      }
    }
}

void multiply_float(const Matrix& matrix, int first, int last, const float* x, int rows, float* out, size_t stride,
                    After after) {
  for (int p = first; p < last; p++)
    for (int r = 0; r < rows; r++) {
      float total[kPanel];
      __builtin_memcpy(total, matrix.bias + p * kPanel, sizeof total);
      for (int k = 0; k < matrix.inputs; k++) {
        const float* w = matrix.floats + (static_cast<size_t>(p) * matrix.inputs + k) * kPanel;
        float value = x[static_cast<size_t>(r) * matrix.inputs + k];
        for (int c = 0; c < kPanel; c++) total[c] += value * w[c];
      }
      for (int c = 0; c < kPanel; c++) finish(total[c], out + r * stride + p * kPanel + c, after);
    }
}

}  // namespace

const Kernels* portable_kernels() {
  static const Kernels kernels = {"portable", quantize, multiply_int8, multiply_float,      normalize,   activate,
                                  prepare,    attend,   largest,       sum_of_exponentials, places_above};
  return &kernels;
}

}  // namespace transduce
