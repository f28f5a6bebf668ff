// The header of a safetensors file: which tensor lies where. Files come from strangers, so every
// field of a header is checked before it is used: see Note [What a header may say] in the source.
// In a file that passes, tensors do not overlap, leave no hole, have distinct names, and cover
// exactly the file's data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace artesian {

/// An element type of the format, as named there.
struct SafetensorsType {
  const char* name;
  std::uint32_t bits;
};

struct SafetensorsTensor {
  std::string name;
  const SafetensorsType* type = nullptr;  // points into a table that is never freed
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;
};

inline constexpr std::uint64_t safetensors_prefix_size = 8;  // the header's length, little endian
inline constexpr std::uint64_t safetensors_header_size_max = 100'000'000;
inline constexpr std::uint32_t safetensors_depth_max = 127;

/// The type with this name in the format, or null.
const SafetensorsType* find_safetensors_type(std::string_view name) noexcept;

/// Parses and checks a header; returns the tensors in order of offsets. `data_size`: bytes that
/// follow the header. Errors: Corrupt, without the file's name.
Result<std::vector<SafetensorsTensor>> parse_safetensors_header(std::string_view header,
                                                                std::uint64_t data_size);

/// The format's type for this dtype.
const SafetensorsType* safetensors_type(DType dtype) noexcept;

/// Returns the beginning of a file: the header's length, the header, and spaces up to the data,
/// which starts at a multiple of `alignment`. Tensors must be in order of offsets and without
/// holes.
std::string write_safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                                     std::uint64_t alignment);

/// A name from a file, made safe to print: quoted, escaped and cut.
std::string shown_name(std::string_view name);

}  // namespace artesian
