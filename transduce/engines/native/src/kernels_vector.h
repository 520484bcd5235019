// The kernels that differ only in the width of vectors. Each kernels_*.cpp defines Vector, kWidth and a dozen
// operations in its own namespace, and includes this file there.

// Quantize a row to integers from -127 to 127 with one scale. NaN, or values infinite relative to the scale, become 0.
inline void quantize_any(const float* row, int width, int8_t* values, float* scale, int32_t* offset) {
  float highest = 1e-10f;
  for (int i = 0; i < width; i++) {
    float size = row[i] < 0 ? -row[i] : row[i];
    if (size > highest) highest = size;
  }
  float factor = 127 / highest;
  int32_t total = 0;
  for (int i = 0; i < width; i++) {
    float value = __builtin_nearbyintf(row[i] * factor);
    values[i] = static_cast<int8_t>(value >= -127 && value <= 127 ? static_cast<int>(value) : 0);
    total += values[i];
  }
  *scale = highest / 127;
  *offset = 128 * total;
}

// e^x to about one unit in the last place (Cephes' polynomial); below -87 the smallest normal number.
inline Vector exponential(Vector x) {
  x = least(greatest(x, splat(-87.3365f)), splat(88.3762f));
  Vector n = nearest(x * splat(1.44269504f));
  Vector r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Vector p = fma(splat(1.9875691500e-4f), r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  return times_power_of_two(fma(p * r, r, r + splat(1.0f)), n);
}

// Abramowitz and Stegun 7.1.26: within 1.5e-7.
inline Vector error_function(Vector x) {
  Vector size = greatest(x, splat(0.0f) - x);
  Vector t = splat(1.0f) / fma(size, splat(0.3275911f), splat(1.0f));
  Vector p = fma(splat(1.061405429f), t, splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  Vector y = splat(1.0f) - p * t * exponential(splat(0.0f) - size * size);
  return copy_sign(y, x);
}

inline Vector activated(Activation activation, Vector x) {
  if (activation == Activation::kRelu) return greatest(x, splat(0.0f));
  if (activation == Activation::kGelu || activation == Activation::kGeglu)
    return splat(0.5f) * x * (splat(1.0f) + error_function(x * splat(0.70710678f)));
  return x / (splat(1.0f) + exponential(splat(0.0f) - x));
}

void activate(Activation activation, float* x, const float* gate, int count) {
  for (int i = 0; i < count; i += kWidth) {
    Vector y = activated(activation, load(x + i));
    store(x + i, gate ? y * load(gate + i) : y);
  }
}

void normalize(Norm norm, const float* x, int width, int padded, const float* gain, const float* shift, float* out) {
  float mean = 0, factor = 1;
  int whole = width / kWidth * kWidth;
  if (norm == Norm::kLayer) {
    Vector total = splat(0.0f);
    for (int i = 0; i < padded; i += kWidth) total = total + load(x + i);  // padding is zero
    mean = sum(total) / static_cast<float>(width);
  }
  if (norm != Norm::kAffine) {
    Vector squares = splat(0.0f), middle = splat(mean);
    for (int i = 0; i < whole; i += kWidth) {
      Vector d = load(x + i) - middle;
      squares = fma(d, d, squares);
    }
    float total = sum(squares);
    for (int i = whole; i < width; i++) total += (x[i] - mean) * (x[i] - mean);
    factor = 1 / __builtin_sqrtf(total / static_cast<float>(width) + (norm == Norm::kLayer ? 1e-5f : 1e-6f));
  }
  Vector middle = splat(mean), scale = splat(factor);
  for (int i = 0; i < padded; i += kWidth)
    store(out + i, fma((load(x + i) - middle) * scale, load(gain + i), load(shift + i)));
}

float largest(const float* x, int count) {
  Vector most = load(x);
  for (int i = kWidth; i < count; i += kWidth) most = greatest(most, load(x + i));
  return top(most);
}

float sum_of_exponentials(const float* x, int count, float highest) {
  Vector total = splat(0.0f), other = splat(0.0f), middle = splat(highest);
  for (int i = 0; i < count; i += 2 * kWidth) {
    total = total + exponential(load(x + i) - middle);
    other = other + exponential(load(x + i + kWidth) - middle);
  }
  return sum(total + other);
}

int places_above(const float* x, int count, float limit, int* places) {
  int found = 0;
  Vector border = splat(limit);
  for (int i = 0; i < count; i += kWidth)
    for (uint32_t mask = greater(load(x + i), border); mask; mask &= mask - 1) places[found++] = i + __builtin_ctz(mask);
  return found;
}

// -- attention --------------------------------------------------------------------------------------------------------

inline float sum_of_squares(const float* x, int width) {
  Vector total = splat(0.0f);
  for (int i = 0; i < width; i += kWidth) total = fma(load(x + i), load(x + i), total);
  return sum(total);
}

// Prepare heads for the score: RMS norm, rotation by position, and unit length for a cosine. Padding stays zero.
void prepare(const Heads& heads) {
  int whole = heads.angles ? heads.real_width / kWidth * kWidth : 0;
  for (int h = 0; h < heads.count; h++) {
    float* head = heads.values + static_cast<size_t>(h) * heads.width;
    if (heads.norm) {
      float mean = sum_of_squares(head, heads.width) / static_cast<float>(heads.real_width);
      Vector factor = splat(1 / __builtin_sqrtf(mean + 1e-6f));
      for (int i = 0; i < heads.width; i += kWidth) store(head + i, load(head + i) * (factor * load(heads.norm + i)));
    }
    for (int i = 0; i < whole; i += kWidth) store(head + i, turned(load(head + i), load(heads.angles + i)));
    for (int i = whole; heads.angles && i < heads.real_width; i += 2) {
      float even = head[i], odd = head[i + 1], cosine = heads.angles[i], sine = heads.angles[i + 1];
      head[i] = even * cosine - odd * sine;
      head[i + 1] = even * sine + odd * cosine;
    }
    if (heads.cosine) {
      float size = __builtin_sqrtf(sum_of_squares(head, heads.width));
      Vector factor = splat((heads.sharpness ? heads.sharpness[h] : 1.0f) / (size > 1e-12f ? size : 1e-12f));
      for (int i = 0; i < heads.width; i += kWidth) store(head + i, load(head + i) * factor);
    }
  }
}

// From transposed keys, without sums across a vector; four partial sums hide the latency.
template <class Number>
inline void scores_of_columns(const float* query, const Number* keys, int width, int count, float* scores) {
  int stride = (count + 15) / 16 * 16;
  for (int t = 0; t < stride; t += kWidth) {
    Vector a = splat(0.0f), b = a, c = a, d = a;
    for (int i = 0; i < width; i += 4) {
      const Number* key = keys + static_cast<size_t>(i) * stride + t;
      a = fma(splat(query[i]), load(key), a);
      b = fma(splat(query[i + 1]), load(key + stride), b);
      c = fma(splat(query[i + 2]), load(key + 2 * stride), c);
      d = fma(splat(query[i + 3]), load(key + 3 * stride), d);
    }
    store(scores + t, (a + b) + (c + d));
  }
}

template <class Number>
inline const Number* remembered(const Look& look, int place, size_t offset) {
  return static_cast<const Number*>(look.rows[place]) + offset;
}

template <class Number>
inline void scores_of_rows(const float* query, const Look& look, size_t offset, float* scores) {
  for (int t = 0; t < look.count; t++) {
    const Number* key = remembered<Number>(look, t, offset);
    Vector total = load(query) * load(key);
    for (int i = kWidth; i < look.width; i += kWidth) total = fma(load(query + i), load(key + i), total);
    scores[t] = sum(total);
  }
}

inline void to_weights(const Look& look, float* scores) {
  int padded = (look.count + 15) / 16 * 16;
  if (look.rectified) {
    for (int t = 0; t < look.count; t++) scores[t] = (scores[t] > 0 ? scores[t] : 0) / static_cast<float>(look.count);
    return;
  }
  for (int t = look.count; t < padded; t++) scores[t] = -1e30f;
  Vector most = load(scores);
  for (int t = kWidth; t < padded; t += kWidth) most = greatest(most, load(scores + t));
  Vector highest = splat(top(most)), total = splat(0.0f);
  for (int t = 0; t < padded; t += kWidth) {
    Vector e = exponential(load(scores + t) - highest);
    store(scores + t, e);
    total = total + e;
  }
  Vector factor = splat(1 / sum(total));
  for (int t = 0; t < padded; t += kWidth) store(scores + t, load(scores + t) * factor);
}

template <class Number, int kVectors>
inline void mix(const Look& look, size_t offset, const float* weights, float* out) {
  Vector total[kVectors];
  for (int v = 0; v < kVectors; v++) total[v] = splat(0.0f);
  for (int t = 0; t < look.count; t++) {
    const Number* value = remembered<Number>(look, t, offset);
    Vector weight = splat(weights[t]);
    for (int v = 0; v < kVectors; v++) total[v] = fma(weight, load(value + v * kWidth), total[v]);
  }
  for (int v = 0; v < kVectors; v++) store(out + v * kWidth, total[v]);
}

template <class Number>
inline void attend_to(const Look& look) {
  int stride = (look.count + 15) / 16 * 16;
  for (int head = 0; head < look.heads; head++) {
    size_t number = head / (look.heads / look.groups), group = number * look.group_stride;
    for (int q = 0; q < look.queries; q++) {
      const float* query = look.query + q * look.query_stride + static_cast<size_t>(head) * look.width;
      if (look.transposed) {
        scores_of_columns(query, static_cast<const Number*>(look.transposed) + number * look.width * stride, look.width,
                          look.count, look.scores);
      } else {
        scores_of_rows<Number>(query, look, look.key_offset + group, look.scores);
      }
      if (look.bias) {
        const float* bias = look.bias + head * look.bias_stride - q;
        for (int t = 0; t < look.count; t++) look.scores[t] += bias[t];
      }
      to_weights(look, look.scores);
      if (look.weights)
        for (int t = 0; t < look.count; t++) look.weights[static_cast<size_t>(q) * look.count + t] += look.scores[t];
      float* out = look.out + q * look.out_stride + static_cast<size_t>(head) * look.width;
      int i = 0;
      size_t value = look.value_offset + group;
      for (; i + 4 * kWidth <= look.width; i += 4 * kWidth) mix<Number, 4>(look, value + i, look.scores, out + i);
      for (; i < look.width; i += kWidth) mix<Number, 1>(look, value + i, look.scores, out + i);
    }
  }
}

void attend(const Look& look) { look.halves ? attend_to<Half>(look) : attend_to<float>(look); }
