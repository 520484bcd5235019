#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace transduce {
namespace {

constexpr size_t kHeader = 64, kEntry = 64, kName = 40, kHuge = size_t{2} << 20;
constexpr uint32_t kVersion = 1, kMostTensors = 1 << 16, kMostPlaces = 1 << 24;

template <class Number>
Number number_at(const uint8_t* data) {
  Number value;
  memcpy(&value, data, sizeof value);
  return value;
}

uint64_t whole_panels(uint64_t places) { return (places + kPanel - 1) / kPanel * kPanel; }

// At most 2^24 rows by 2^24 columns of 4 bytes: no overflow.
uint64_t bytes_of(const Tensor& tensor) {
  uint64_t rows = tensor.rows, columns = tensor.columns;
  if (tensor.kind == Kind::kBytePanels) return whole_panels(rows) * whole_panels(columns);
  if (tensor.kind == Kind::kFloatPanels) return whole_panels(rows) * whole_panels(columns) * 4;
  return rows * columns * 4;
}

void check_finite(const std::string& name, const float* values, uint64_t count) {
  constexpr uint32_t kExponent = 0x7f800000;
  bool sound = true;
  for (uint64_t i = 0; i < count; i++) {
    uint32_t bits = number_at<uint32_t>(reinterpret_cast<const uint8_t*>(values + i));
    sound &= (bits & kExponent) != kExponent;
  }
  if (!sound) throw Failure("has a tensor '" + name + "' with values that are no numbers (NaN or infinite)");
}

}  // namespace

// The file is read into memory, in large pages, not mapped, which is possible only in pages of 4 KiB: mapped, the base
// model took 1.60 times as long at batch 1 and 1.05 times at batch 32 (docs/results/decoding-cpu.md). The memory is as
// large as the file really is, whatever its header says, and later writes to the file have no effect. The hash, which
// Python checked before at the same path, detects damage; it proves no origin, and no check here relies on it.
WeightFile::WeightFile(const char* path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) throw Failure(std::string("cannot be opened: ") + strerror(errno));
  struct stat facts;
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size < static_cast<off_t>(kHeader)) {
    close(file);
    throw Failure("is no weight file, or cut short within its header");
  }
  size_ = static_cast<size_t>(facts.st_size);
  room_ = (size_ + 2 * kHuge - 1) / kHuge * kHuge;
  void* memory = mmap(nullptr, room_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    close(file);
    throw Failure("does not fit into memory");
  }
#ifdef MADV_HUGEPAGE
  madvise(memory, room_, MADV_HUGEPAGE);
#endif
  data_ = static_cast<uint8_t*>(memory);
  for (size_t done = 0; done < size_;) {
    ssize_t count = read(file, data_ + done, size_ - done);
    if (count <= 0) {
      close(file);
      munmap(data_, room_);
      throw Failure("cannot be read to its end");
    }
    done += static_cast<size_t>(count);
  }
  close(file);
  try {
    read_table();
  } catch (...) {
    munmap(data_, room_);
    throw;
  }
}

WeightFile::~WeightFile() { munmap(data_, room_); }

void WeightFile::read_table() {
  if (memcmp(data_, "TRDNATIV", 8) != 0) throw Failure("is no weight file of the native engine");
  uint32_t version = number_at<uint32_t>(data_ + 8), count = number_at<uint32_t>(data_ + 12);
  if (version != kVersion)
    throw Failure("has format " + std::to_string(version) + ", and this program reads " + std::to_string(kVersion));
  if (number_at<uint64_t>(data_ + 16) != size_)
    throw Failure("is " + std::to_string(size_) + " bytes long, and its header says otherwise: cut short, or damaged");
  if (count > kMostTensors || kHeader + count * kEntry > size_) throw Failure("is damaged: its table leaves the file");
  for (uint32_t i = 0; i < count; i++) {
    const uint8_t* entry = data_ + kHeader + i * kEntry;
    std::string name(reinterpret_cast<const char*>(entry), strnlen(reinterpret_cast<const char*>(entry), kName));
    Tensor tensor = {static_cast<Kind>(number_at<uint32_t>(entry + 40)), number_at<uint32_t>(entry + 44),
                     number_at<uint32_t>(entry + 48), nullptr};
    uint64_t offset = number_at<uint64_t>(entry + 56);
    bool sound = static_cast<uint32_t>(tensor.kind) <= 3 && tensor.rows >= 1 && tensor.rows <= kMostPlaces &&
                 tensor.columns >= 1 && tensor.columns <= kMostPlaces && offset % 64 == 0 && offset <= size_ &&
                 bytes_of(tensor) <= size_ - offset;
    if (!sound) throw Failure("is damaged: tensor '" + name + "' has impossible sizes, or leaves the file");
    tensor.data = data_ + offset;
    if (!tensors_.emplace(name, tensor).second) throw Failure("is damaged: tensor '" + name + "' occurs twice");
  }
}

const Tensor& WeightFile::tensor(const std::string& name, Kind kind, uint64_t rows, uint64_t columns) const {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Failure("lacks the tensor '" + name + "'");
  const Tensor& tensor = found->second;
  if (tensor.kind != kind || tensor.rows != rows || tensor.columns != columns)
    throw Failure("has a tensor '" + name + "' of " + std::to_string(tensor.rows) + " x " +
                  std::to_string(tensor.columns) + " of kind " + std::to_string(static_cast<uint32_t>(tensor.kind)) +
                  ", and its model needs " + std::to_string(rows) + " x " + std::to_string(columns) + " of kind " +
                  std::to_string(static_cast<uint32_t>(kind)));
  return tensor;
}

const float* WeightFile::floats(const std::string& name, uint64_t rows, uint64_t columns) const {
  const float* found = reinterpret_cast<const float*>(tensor(name, Kind::kFloats, rows, columns).data);
  check_finite(name, found, rows * columns);
  return found;
}

const int32_t* WeightFile::integers(const std::string& name, uint64_t columns) const {
  return reinterpret_cast<const int32_t*>(tensor(name, Kind::kIntegers, 1, columns).data);
}

Matrix WeightFile::matrix(const std::string& name, int outputs, int inputs, float filling) const {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) throw Failure("lacks the tensor '" + name + "'");
  Kind kind = found->second.kind == Kind::kBytePanels ? Kind::kBytePanels : Kind::kFloatPanels;
  const uint8_t* data = tensor(name, kind, outputs, inputs).data;
  Matrix matrix;
  matrix.outputs = padded(outputs);
  matrix.inputs = padded(inputs);
  matrix.bias = reinterpret_cast<const float*>(tensor(name + ".bias", Kind::kFloats, 1, matrix.outputs).data);
  check_finite(name + ".bias", matrix.bias, outputs);
  for (int i = outputs; i < matrix.outputs; i++)
    if (matrix.bias[i] != filling)
      throw Failure("has a tensor '" + name + ".bias' whose padding is not " + (filling ? "-infinity" : "0"));
  if (kind == Kind::kBytePanels) {
    matrix.bytes = data;
    matrix.scales = floats(name + ".scales", 1, matrix.outputs);
  } else {
    matrix.floats = reinterpret_cast<const float*>(data);
    check_finite(name, matrix.floats, static_cast<uint64_t>(matrix.outputs) * matrix.inputs);
  }
  return matrix;
}

}  // namespace transduce
