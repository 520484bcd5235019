// Matrix products for processors with wide vectors of bytes: tiles of some rows by some vectors of outputs, as large as
// the registers allow. Each such kernels_*.cpp defines, besides the requirements of kernels_vector.h, kVectors and
// kRows of a tile, Integers (as many 32-bit numbers as a Vector has) with their operations, and whether products of
// bytes are kParted: added by pairs in 16 bits, for which part() prepares rows. It includes this file after that one.

inline void finish(Vector value, float* out, After after) {
  if (after == After::kRelu) value = greatest(value, splat(0.0f));
  if (after == After::kAdd) value = value + load(out);
  store(out, value);
}

void quantize(const float* x, int rows, int width, Quantized out) {
  for (int r = 0; r < rows; r++) {
    const float* row = x + static_cast<size_t>(r) * width;
    int8_t* values = out.values + static_cast<size_t>(r) * width;
    // Magnitudes are compared as bits: in that order infinity and NaN come last, and none is missed.
    Integers most = bits(splat(1e-10f));
    for (int i = 0; i < width; i += kWidth) most = greatest(most, bits(load(row + i)) & 0x7fffffff);
    const int32_t top_bits = top(most);
    if (top_bits >= 0x7f800000) {
      quantize_any(row, width, values, out.scales + r, out.offsets + r);
      if (kParted) out.rests[r] = part(values, width, out.rest + static_cast<size_t>(r) * (width / 4));
      continue;
    }
    float highest;
    __builtin_memcpy(&highest, &top_bits, sizeof highest);
    Vector factor = splat(127 / highest);
    Integers total = integers(0);
    for (int i = 0; i < width; i += 4 * kWidth) {
      Integers v[4];
      for (int j = 0; j < 4; j++) {
        v[j] = rounded(load(row + i + j * kWidth) * factor);
        total = total + v[j];
      }
      store_bytes(values + i, v);
    }
    out.scales[r] = highest / 127;
    out.offsets[r] = 128 * sum(total);
    if (kParted) out.rests[r] = part(values, width, out.rest + static_cast<size_t>(r) * (width / 4));
  }
}

// Call body(number of rows, known at compile time; first row) until all rows are done.
template <class Body>
inline void by_rows(int rows, const Body& body) {
  int r = 0;
  for (; rows - r >= kRows; r += kRows) body(Size<kRows>(), r);
  for (; rows - r >= 4; r += 4) body(Size<4>(), r);
  if (rows - r == 3) body(Size<3>(), r);
  if (rows - r == 2) body(Size<2>(), r);
  if (rows - r == 1) body(Size<1>(), r);
}

inline const uint8_t* weights_at(const Matrix& matrix, int column) {
  return matrix.bytes + static_cast<size_t>(column / kPanel) * kPanel * matrix.inputs + column % kPanel * 4;
}

// Prefetch the weights of the next columns while many rows are multiplied with these. If a tile's columns are part of a
// panel, its cache lines are strided, which the hardware does not predict. Each tile of rows prefetches its share, so
// that none waits for memory; with few rows prefetching takes longer than waiting.
constexpr bool kStrided = kVectors * kWidth < kPanel;
inline void fetch(const uint8_t* weights, size_t fours, size_t row, size_t rows) {
  size_t last = fours * (row + kRows) / rows;
  for (size_t four = fours * row / rows; four < (last < fours ? last : fours); four++)
    __builtin_prefetch(weights + four * kPanel * 4);
}

void multiply_int8(const Matrix& matrix, int first, int last, Quantized x, int rows, float* out, size_t stride,
                   After after) {
  const int inputs = matrix.inputs;
  for (int column = first * kPanel; column < last * kPanel; column += kVectors * kWidth) {
    const uint8_t* weights = weights_at(matrix, column);
    const int next = column + kVectors * kWidth;
    const bool fetching = kStrided && rows > 2 * kRows && next < last * kPanel;
    by_rows(rows, [&](auto size, int begin) __attribute__((always_inline)) {
      constexpr int kCount = decltype(size)::value;
      if (fetching) fetch(weights_at(matrix, next), inputs / 4, begin, rows);
      const int8_t* values = x.values + static_cast<size_t>(begin) * inputs;
      Integers total[kCount][kVectors];
      for (int r = 0; r < kCount; r++)
        for (int v = 0; v < kVectors; v++) total[r][v] = integers(0);
      for (int k = 0; k < inputs; k += 4) {
        Bytes own[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) own[v] = bytes_at(weights + static_cast<size_t>(k) * kPanel + v * kWidth * 4);
#pragma GCC unroll 6
        for (int r = 0; r < kCount; r++) {
          int four;
          __builtin_memcpy(&four, values + static_cast<size_t>(r) * inputs + k, 4);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++) total[r][v] = add_products(total[r][v], own[v], integers(four));
        }
      }
#pragma GCC unroll 6
      for (int r = 0; kParted && r < kCount; r++) {
        const Rest* rest = x.rest + static_cast<size_t>(begin + r) * (inputs / 4);
        for (const Rest* end = rest + x.rests[begin + r]; rest < end; rest++) {
          int four;
          __builtin_memcpy(&four, rest->values, 4);
          const uint8_t* own = weights + static_cast<size_t>(rest->place) * kPanel;
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++)
            total[r][v] = add_products(total[r][v], bytes_at(own + v * kWidth * 4), integers(four));
        }
      }
#pragma GCC unroll 6
      for (int r = 0; r < kCount; r++)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) {
          int place = column + v * kWidth;
          Vector value = floats(total[r][v] - integers(x.offsets[begin + r]));
          value = fma(value, splat(x.scales[begin + r]) * load(matrix.scales + place), load(matrix.bias + place));
          finish(value, out + (begin + r) * stride + place, after);
        }
    });
  }
}

void multiply_float(const Matrix& matrix, int first, int last, const float* x, int rows, float* out, size_t stride,
                    After after) {
  const int inputs = matrix.inputs;
  for (int column = first * kPanel; column < last * kPanel; column += kVectors * kWidth) {
    const float* weights = matrix.floats + static_cast<size_t>(column / kPanel) * kPanel * inputs + column % kPanel;
    by_rows(rows, [&](auto size, int begin) __attribute__((always_inline)) {
      constexpr int kCount = decltype(size)::value;
      Vector total[kCount][kVectors];
      for (int r = 0; r < kCount; r++)
        for (int v = 0; v < kVectors; v++) total[r][v] = load(matrix.bias + column + v * kWidth);
      for (int k = 0; k < inputs; k++) {
        Vector own[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) own[v] = load(weights + static_cast<size_t>(k) * kPanel + v * kWidth);
#pragma GCC unroll 6
        for (int r = 0; r < kCount; r++) {
          Vector input = splat(x[static_cast<size_t>(begin + r) * inputs + k]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++) total[r][v] = fma(input, own[v], total[r][v]);
        }
      }
      for (int r = 0; r < kCount; r++)
        for (int v = 0; v < kVectors; v++) finish(total[r][v], out + (begin + r) * stride + column + v * kWidth, after);
    });
  }
}
