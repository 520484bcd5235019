// The weight file: a header, a table of tensors, and their bytes. In Python: transduce/engines/native/weight_format.py.
//
//   header  64 bytes: "TRDNATIV", version (u32), tensors (u32), size of the file (u64), SHA-256 (32), 8 unused
//   table   64 bytes per tensor: name (40), kind (u32), rows (u32), columns (u32), 0 (u32), offset (u64)
//   bytes   each tensor at a multiple of 64; several may share their bytes
//
// Files are untrusted: every number is checked against the file's real size before it is used.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <map>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace transduce {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Kind : uint32_t { kFloats = 0, kIntegers = 1, kBytePanels = 2, kFloatPanels = 3 };

struct Tensor {
  Kind kind;
  uint32_t rows, columns;
  const uint8_t* data;
};

class WeightFile {
 public:
  explicit WeightFile(const char* path);
  ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  const Tensor& tensor(const std::string& name, Kind kind, uint64_t rows, uint64_t columns) const;
  const float* floats(const std::string& name, uint64_t rows, uint64_t columns) const;  // all of them finite
  const int32_t* integers(const std::string& name, uint64_t columns) const;
  // `filling` is the bias of padding outputs: -infinity where they must never be chosen.
  Matrix matrix(const std::string& name, int outputs, int inputs, float filling = 0) const;

 private:
  void read_table();

  uint8_t* data_ = nullptr;
  size_t size_ = 0, room_ = 0;
  std::map<std::string, Tensor> tensors_;
};

// Widths as the kernels need them.
constexpr int padded(int width) { return (width + kPanel - 1) / kPanel * kPanel; }

}  // namespace transduce
