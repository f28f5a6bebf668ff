// One safetensors file, read in pieces as fp32. Only the header is kept in memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/safetensors_header.h"
#include "models/file_io.h"

namespace artesian::models {

class SafetensorsFile {
 public:
  /// Opens and checks the whole header. Errors: Io; Corrupt, naming the file.
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const noexcept { return file_.path(); }
  /// In order of offsets.
  const std::vector<SafetensorsTensor>& tensors() const noexcept { return tensors_; }
  /// The tensor with this name, or null.
  const SafetensorsTensor* find(std::string_view name) const noexcept;

  /// True if read() can convert this type: F32, F16, BF16, F64.
  static bool readable(const SafetensorsTensor& tensor) noexcept;

  /// target[i] = element (first + i), in row-major order. F64 is rounded to nearest. The range must
  /// lie inside the tensor, which must be readable and belong to this file. Errors: Io, Corrupt,
  /// naming file and tensor.  Thread: any.
  Result<void> read(const SafetensorsTensor& tensor, std::uint64_t first,
                    std::span<float> target) const noexcept;

 private:
  SafetensorsFile(InputFile file, std::vector<SafetensorsTensor> tensors, std::uint64_t data_offset)
      : file_(std::move(file)), tensors_(std::move(tensors)), data_offset_(data_offset) {}

  InputFile file_;
  std::vector<SafetensorsTensor> tensors_;
  std::uint64_t data_offset_ = 0;
};

}  // namespace artesian::models
