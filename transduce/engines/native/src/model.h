// The model: its sizes, its matrices as views into the weight file, and the two ways to run it: a source is encoded
// once, then all live rows of all sentences are advanced together by one token.
#pragma once
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "weights.h"

namespace transduce {

// Memory that only grows, aligned for the widest vectors; its content is lost on growth. Large pieces are mapped pages,
// which return to the system when freed; malloc does not promise that where many threads allocate.
template <class T>
class Buffer {
 public:
  T* room(size_t count) {
    if (count > size_) {
      release();
      size_t bytes = bytes_of(count);
      void* found = bytes < kPaged ? aligned_alloc(64, bytes)
                                   : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (!found || found == MAP_FAILED) throw std::bad_alloc();
      data_ = static_cast<T*>(found);
      size_ = count;
    }
    return data_;
  }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  Buffer() = default;
  Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) {
    other.data_ = nullptr;
    other.size_ = 0;
  }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() { release(); }

 private:
  static constexpr size_t kPaged = 1 << 18;  // bytes
  static size_t bytes_of(size_t count) { return (count * sizeof(T) + 63) / 64 * 64; }
  void release() {
    size_t bytes = bytes_of(size_);
    bytes < kPaged ? free(data_) : static_cast<void>(munmap(data_, bytes));
    data_ = nullptr;
    size_ = 0;
  }

  T* data_ = nullptr;
  size_t size_ = 0;
};

// Free blocks by size, kept for later sentences; no more of them than a usual call needs.
class Blocks {
 public:
  Buffer<char> take(size_t bytes) {
    auto own = free_.find(bytes);
    Buffer<char> block;
    if (own != free_.end()) {
      block = std::move(own->second.back());
      drop_last(own);
    } else {  // those of other sizes are freed
      for (size_t target = kept_ - std::min(kept_, bytes); kept_ > target;) drop_last(free_.begin());
    }
    block.room(bytes);
    return block;
  }

  void give(Buffer<char> block) {
    size_t bytes = block.size();
    kept_ += bytes;
    free_[bytes].push_back(std::move(block));
    while (kept_ > kMostKept) {  // other sizes first: the size just used is likeliest to be needed again
      auto other = free_.begin();
      if (other->first == bytes && free_.size() > 1) ++other;
      drop_last(other);
    }
  }

 private:
  static constexpr size_t kMostKept = 24 << 20;  // bytes
  using Free = std::map<size_t, std::vector<Buffer<char>>>;
  void drop_last(Free::iterator own) {
    kept_ -= own->first;
    own->second.pop_back();
    if (own->second.empty()) free_.erase(own);
  }

  Free free_;
  size_t kept_ = 0;
};

struct NormWeights {
  const float *gain, *shift;
};

struct Attention {
  Matrix project, output;                                // queries, keys and values concatenated; for cross-attention the queries alone
  const float *query_norm = nullptr, *key_norm = nullptr;  // [width], RMS norm before the score
  const float* sharpness = nullptr;                      // [heads], of the cosine score
};

struct Layer {
  Attention self, cross;
  Matrix source;  // keys and values of cross-attention
  Matrix inner, outer;
  NormWeights around_self, around_cross, around_feed_forward;
};

struct Stack {
  int layers, heads, groups, width, real_width, feed_forward, longest;
  Activation activation;
  Norm norm;
  bool pre_norm, unnormed_past, query_key_norm, cosine, rectified;
  const float* positions = nullptr;  // [longest][padded d_model], added to the embeddings
  const float* rotary = nullptr;     // [longest][real_width], cosine and sine of each pair
  const float* bias = nullptr;       // [heads][2 * longest - 1], by how far a key is ahead, from 1 - longest
  NormWeights final;                 // of pre-norm stacks
  std::vector<Layer> blocks;
  int queries() const { return heads * width; }
  int keys() const { return groups * width; }
};

// A source as the decoder sees it: for each layer keys, transposed, and values, contiguous by group.
struct Source {
  int length = 0;
  Buffer<char> memory;
  size_t size = 0, transposed = 0;  // numbers per layer, and those of the keys
  std::vector<const void*> places;  // [length]: values in the first layer
};

// One token to read: where keys and values of all earlier tokens are, and where its own go.
struct Row {
  const Source* source;
  int token, position;
  void* const* past;    // [position + 1] of the tokens so far, the last its own: keys, and then values of each layer
  size_t group_stride;  // from a group's key or value to the next group's
  float* cross;         // null, or [source length], to which cross-attention weights are added, of `traced` layers
};

// The output of an advance for a row.
struct Logits {
  const float* values;  // a block of kStretch logits from `first` on
  int first, count;     // number of them in the vocabulary
};
constexpr int kStretch = 1024;
constexpr int kNoLayer = -2, kEveryLayer = -1;  // which cross-attention is traced

// Work space of one thread that drives the model; kept between calls, since fresh memory is slow.
struct Workspace {
  Buffer<float> x, normed, wide, unnormed, narrow, heads, scores, stretch, memory, keys;
  Buffer<int8_t> values;
  Buffer<float> scales;
  Buffer<int32_t> offsets, rests;
  Buffer<Rest> rest;
  std::vector<const void*> pointers;
  Blocks blocks;  // of keys and values
};

class Model {
 public:
  Model(const char* path, const Kernels* kernels);

  // Encode sources, each a run of tokens, into one Source each.
  void encode(const std::vector<std::pair<const int32_t*, int>>& sources, Team& team, Workspace& room,
              Source* out) const;

  // Advance rows by a token and pass each block of each row's logits to consume(row, logits, stretch, member).
  template <class Consume>
  void advance(const std::vector<Row>& rows, int traced, Team& team, Workspace& room, const Consume& consume) const {
    decode(rows, traced, team, room);
    int count = static_cast<int>(rows.size()), stretches = (output_.outputs + kStretch - 1) / kStretch;
    const float* x = room.x.room(0);
    Quantized quantized = quantize(output_, x, count, team, room);
    float* logits = room.stretch.room(static_cast<size_t>(team.size()) * count * kStretch);
    team.run(stretches, [&](int stretch, int member) {
      float* own = logits + static_cast<size_t>(member) * count * kStretch;
      int first = stretch * kStretch / kPanel, last = std::min(first + kStretch / kPanel, output_.outputs / kPanel);
      multiply_panels(output_, first, last, x, quantized, count, own - first * kPanel, kStretch, After::kNothing);
      for (int r = 0; r < count; r++)
        consume(r, Logits{own + static_cast<size_t>(r) * kStretch, first * kPanel, (last - first) * kPanel}, stretch, member);
    });
  }

  // Advance rows by a token without their logits: for the cross-attention of `traced` layers.
  void decode(const std::vector<Row>& rows, int traced, Team& team, Workspace& room) const;

  // The number of threads that pays off in a step of these rows: with more, synchronisation takes longer.
  int threads_for(int rows) const;

  const Kernels* kernels;
  int d_model, source_vocabulary, target_vocabulary;
  Stack encoder, decoder;
  bool halves;  // whether keys and values are cached as Halves
  size_t number_size() const { return halves ? sizeof(Half) : sizeof(float); }

 private:
  Stack read_stack(const std::string& name);
  Attention read_attention(const Stack& stack, const std::string& name, bool cross) const;
  NormWeights read_norm(const std::string& name) const;

  void embed(const Matrix& table, const Stack& stack, int token, int position, float* out) const;
  void encode_block(const Layer& layer, float* x, const std::vector<int>& starts, Team& team, Workspace& room) const;
  void remember(int layer, const float* x, const std::vector<int>& starts, Team& team, Workspace& room,
                Source* out) const;
  void look_back(int layer, const std::vector<Row>& rows, float* x, Team& team, Workspace& room) const;
  void look_at_source(int layer, const std::vector<Row>& rows, const std::vector<int>& runs, bool traced, float* x,
                      Team& team, Workspace& room) const;
  void feed_forward(const Stack& stack, const Layer& layer, float* x, int rows, Team& team, Workspace& room) const;
  void prepare_heads(const Stack& stack, const float* norm, const float* sharpness, const float* angles, float* heads,
                     int count) const;
  const float* before(const Stack& stack, const NormWeights& norm, const float* x, int rows, Team& team,
                      Workspace& room) const;
  void after(const Stack& stack, const NormWeights& norm, float* x, int rows, Team& team) const;
  void normalize(Norm norm, const NormWeights& weights, const float* x, int rows, float* out, Team& team) const;
  Quantized quantize(const Matrix& matrix, const float* x, int rows, Team& team, Workspace& room) const;
  void multiply_panels(const Matrix& matrix, int first, int last, const float* x, const Quantized& quantized, int rows,
                       float* out, size_t stride, After after) const;
  void multiply(const Matrix& matrix, const float* x, int rows, float* out, After after, Team& team,
                Workspace& room) const;

  WeightFile file_;
  float embedding_scale_;
  Matrix source_, target_, output_;
  const float* shares_ = nullptr;  // [decoder layers][encoder layers] of a mixture; null: all attend to the top
  std::vector<NormWeights> wiring_;
};

}  // namespace transduce
