// The kernels of a processor, as a table of functions chosen when the library is loaded.
//
// Every row is computed by itself, with the same operations whatever its neighbours: a sentence alone and in a batch
// gives bit-identical results. Files that implement this include no standard library: an inline function of the library
// compiled for AVX512 might be shared with code that runs on machines without it.
#pragma once
#include <stddef.h>
#include <stdint.h>

// Between these two, functions may use the named instruction sets, which the rest of the core may not.
#define KERNEL_PRAGMA(tokens) _Pragma(#tokens)
#if defined(__clang__)
#define BEGIN_KERNELS_FOR(sets) \
  KERNEL_PRAGMA(clang attribute push(__attribute__((target(sets))), apply_to = function))
#define END_KERNELS KERNEL_PRAGMA(clang attribute pop)
#else
#define BEGIN_KERNELS_FOR(sets) KERNEL_PRAGMA(GCC push_options) KERNEL_PRAGMA(GCC target(sets))
#define END_KERNELS KERNEL_PRAGMA(GCC pop_options)
#endif

namespace transduce {

constexpr int kPanel = 64;  // outputs in a panel of weights, and the unit of padded widths

// y = W x + b, with outputs and inputs padded to whole panels by zeros.
struct Matrix {
  int outputs = 0, inputs = 0;
  const uint8_t* bytes = nullptr;  // [panel][inputs / 4][64][4], each weight plus 128; null for float weights
  const float* floats = nullptr;   // [panel][inputs][64]
  const float* scales = nullptr;   // of int8 weights, one per output
  const float* bias = nullptr;     // one per output
};

// Four values of a row, to be added to those from `place` on.
struct Rest {
  int32_t place;
  int8_t values[4];
};

// Rows of activations in int8: the number is value * scale; offset is 128 times the sum of the row's values. Kernels
// that cannot add the products of two large values put a part of them in `rest`, with `rests` entries per row.
struct Quantized {
  int8_t* values;
  float* scales;
  int32_t* offsets;
  Rest* rest;  // [rows][inputs / 4]
  int32_t* rests;
};

// A number of rows known at compile time.
template <int kValue>
struct Size {
  static constexpr int value = kValue;
};

enum class After { kNothing, kRelu, kAdd };  // what is done with a product: store, rectify, or add to the output
enum class Activation { kRelu, kGelu, kSilu, kSwiglu, kGeglu };
enum class Norm { kLayer, kRms, kAffine };

// The upper half of a float's bits (bfloat16). Cached keys and values have this type where weights are int8: reading
// them dominates attention, and the rounding error is less than that of the weights.
typedef uint16_t Half;

// Queries or keys of some heads, contiguous, each padded by zeros to `width`, a multiple of 16.
struct Heads {
  float* values;
  int count, width, real_width;
  const float* norm;       // [width]: RMS norm with these gains; null: none
  const float* angles;     // [real_width], cosine and sine of each pair's rotation; null: none
  bool cosine;             // then normalised to unit length,
  const float* sharpness;  // and each head multiplied by its own of these; null: 1
};

// Some queries over the keys and values of one sentence. Widths of heads are multiples of 16.
struct Look {
  const float* query;          // [queries][query_stride], heads side by side
  size_t query_stride;
  int queries;
  bool halves;                 // cached keys and values are Halves, else floats
  const void* const* rows;     // [count]: cache entry of each position: its key in the first group at key_offset,
  size_t key_offset, value_offset, group_stride;  // its value at value_offset, other groups group_stride further
  const void* transposed;      // keys again, [groups][width][count rounded up to 16]; null: read them from the rows
  int count, heads, groups, width;
  const float* bias;           // [heads][bias_stride], for key t of query q at [t - q]; null: none
  size_t bias_stride;
  bool rectified;              // weights are max(0, score) / count instead of softmax
  float* scores;               // space for count rounded up to 16
  float* out;                  // [queries][out_stride]
  size_t out_stride;
  float* weights;              // null, or [queries][count], to which the weights of all heads are added
};

struct Kernels {
  const char* name;
  void (*quantize)(const float* x, int rows, int width, Quantized out);
  void (*multiply_int8)(const Matrix& matrix, int first, int last, Quantized x, int rows, float* out, size_t stride,
                        After after);
  void (*multiply_float)(const Matrix& matrix, int first, int last, const float* x, int rows, float* out, size_t stride,
                         After after);
  void (*normalize)(Norm norm, const float* x, int width, int padded, const float* gain, const float* shift, float* out);
  void (*activate)(Activation activation, float* x, const float* gate, int count);
  void (*prepare)(const Heads& heads);
  void (*attend)(const Look& look);
  float (*largest)(const float* x, int count);                              // count a multiple of 64
  float (*sum_of_exponentials)(const float* x, int count, float highest);   // of x - highest
  int (*places_above)(const float* x, int count, float limit, int* places);
};

// What this processor has and the operating system allows (processor.cpp); all of it with FMA.
struct Instructions {
  bool avx2 = false, avx_vnni = false, avx512_vnni = false;
};
const Instructions& instructions();

// Null if this machine or this build cannot run them.
const Kernels* avx512_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx2_kernels();
const Kernels* portable_kernels();

}  // namespace transduce
