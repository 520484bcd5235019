// What the engine asks of a processor, as a table of functions chosen when the library is loaded.
//
// Every row is computed by itself, with the same operations whatever its neighbours are: a sentence alone and in a batch
// gives the same bits. Files that implement this include no standard library: code made for AVX512 in a shared inline
// function of the library would be run on machines without it.
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

constexpr int kPanel = 64;  // outputs in a panel of weights, and what widths are padded to

// y = W x + b, with outputs and inputs padded to whole panels by zeros.
struct Matrix {
  int outputs = 0, inputs = 0;
  const uint8_t* bytes = nullptr;  // [panel][inputs / 4][64][4], each weight plus 128; null for float weights
  const float* floats = nullptr;   // [panel][inputs][64]
  const float* scales = nullptr;   // of int8, one an output
  const float* bias = nullptr;     // one an output
};

// Four values of a row, to be added to those from `place` on.
struct Rest {
  int32_t place;
  int8_t values[4];
};

// Rows of activations in int8: value * scale is the number; offset is 128 times the sum of the row's values. Kernels that
// cannot add the products of two large values leave a part of them in `rest`, of which there are `rests` a row.
struct Quantized {
  int8_t* values;
  float* scales;
  int32_t* offsets;
  Rest* rest;  // [rows][inputs / 4]
  int32_t* rests;
};

// A number of rows that the compiler knows.
template <int kValue>
struct Size {
  static constexpr int value = kValue;
};

enum class After { kNothing, kRelu, kAdd };  // what is done with a product: stored, rectified, or added to what is there
enum class Activation { kRelu, kGelu, kSilu, kSwiglu, kGeglu };
enum class Norm { kLayer, kRms, kAffine };

// The upper half of a float's bits. What is remembered is kept in it where weights are int8: reading it is most of what
// attention does, and its rounding is less than that of the weights.
typedef uint16_t Half;

// Queries or keys of some heads, side by side, each padded by zeros to `width`, a multiple of 16.
struct Heads {
  float* values;
  int count, width, real_width;
  const float* norm;       // [width]: a root mean square of 1, times these; null: none
  const float* angles;     // [real_width], cosine and sine of each pair, by which it is turned; null: none
  bool cosine;             // then put on the unit sphere,
  const float* sharpness;  // and each head times its own of these; null: 1
};

// Some queries over the keys and values of one sentence. Widths of heads are multiples of 16.
struct Look {
  const float* query;          // [queries][query_stride], heads side by side
  size_t query_stride;
  int queries;
  bool halves;                 // what is remembered are Halves, else floats
  const void* const* rows;     // [count]: what is remembered of each place: its key in the first group at key_offset,
  size_t key_offset, value_offset, group_stride;  // its value at value_offset, those of other groups group_stride further
  const void* transposed;      // keys again, [groups][width][count rounded up to 16]; null: read them from the rows
  int count, heads, groups, width;
  const float* bias;           // [heads][bias_stride], for key t of query q at [t - q]; null: none
  size_t bias_stride;
  bool rectified;              // weights are max(0, score) / count instead of softmax
  float* scores;               // room for count rounded up to 16
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

// Null where this machine or this build cannot run them.
const Kernels* avx512_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx2_kernels();
const Kernels* portable_kernels();

}  // namespace transduce
