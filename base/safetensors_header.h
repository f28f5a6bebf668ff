// The header of a safetensors file: which tensor lies where. Files come from strangers, so nothing
// in a header is believed before it is checked: see Note [What a header may say] in the source. A
// file that passes has no overlap, no hole, no name twice, and exactly the bytes that it speaks of.
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
  const SafetensorsType* type = nullptr;  // into a table that lives for ever
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;
};

inline constexpr std::uint64_t safetensors_prefix_size = 8;  // the header's length, little endian
inline constexpr std::uint64_t safetensors_header_size_max = 100'000'000;
inline constexpr std::uint32_t safetensors_depth_max = 127;

/// The known type of this name, or null.
const SafetensorsType* find_safetensors_type(std::string_view name) noexcept;

/// Reads and checks a header, in order of offsets. `data_size`: bytes that follow the header.
/// Errors: Corrupt, without the file's name.
Result<std::vector<SafetensorsTensor>> parse_safetensors_header(std::string_view header,
                                                                std::uint64_t data_size);

/// The type of elements of this dtype.
const SafetensorsType* safetensors_type(DType dtype) noexcept;

/// The length of a header and the header, as they begin a file: followed by spaces, so that the
/// data begins at a multiple of `alignment`. Tensors are in order of offsets and without holes.
std::string write_safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                                     std::uint64_t alignment);

/// A name from a file as it may be shown: quoted, escaped, cut.
std::string shown_name(std::string_view name);

}  // namespace artesian
