#include "models/safetensors.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/dtype.h"

namespace artesian::models {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little endian");

constexpr std::uint64_t piece_size = 64 << 10;  // bytes on the stack while converting

Error with_file(Error error, const std::string& path) {
  error.file = path;
  return error;
}

template <typename Element>
Element element_at(const std::byte* bytes, std::size_t index) noexcept {
  Element element;
  std::memcpy(&element, bytes + index * sizeof(Element), sizeof(Element));
  return element;
}

/// Converts target.size() elements of this type to fp32.
void convert(std::string_view type, const std::byte* bytes, std::span<float> target) noexcept {
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (type == "F16") {
      target[i] = fp16_to_float(element_at<std::uint16_t>(bytes, i));
    } else if (type == "BF16") {
      target[i] = bf16_to_float(element_at<std::uint16_t>(bytes, i));
    } else {
      target[i] = static_cast<float>(element_at<double>(bytes, i));
    }
  }
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  ARTESIAN_TRY(file, InputFile::open(path));
  const auto corrupt = [&](std::string message) {
    return with_file(make_error(ErrorCode::Corrupt, "safetensors: " + std::move(message)), path);
  };
  if (file.size() < safetensors_prefix_size) {
    return corrupt(fmt::format("the file has {} bytes, needed 8 or more", file.size()));
  }
  std::uint64_t header_size = 0;
  ARTESIAN_TRY_VOID(file.read_at(&header_size, safetensors_prefix_size, 0));
  if (header_size > safetensors_header_size_max) {
    return corrupt(fmt::format("header of {} bytes, allowed 100000000", header_size));
  }
  if (header_size > file.size() - safetensors_prefix_size) {
    return corrupt(fmt::format("header of {} bytes in a file of {}", header_size, file.size()));
  }
  std::string header(header_size, '\0');
  ARTESIAN_TRY_VOID(file.read_at(header.data(), header_size, safetensors_prefix_size));
  const std::uint64_t data_offset = safetensors_prefix_size + header_size;
  auto tensors = parse_safetensors_header(header, file.size() - data_offset);
  if (!tensors.has_value()) return with_file(std::move(tensors).error(), path);
  return SafetensorsFile(std::move(file), std::move(tensors).value(), data_offset);
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const auto& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

bool SafetensorsFile::readable(const SafetensorsTensor& tensor) noexcept {
  const std::string_view type = tensor.type->name;
  return type == "F32" || type == "F16" || type == "BF16" || type == "F64";
}

Result<void> SafetensorsFile::read(const SafetensorsTensor& tensor, std::uint64_t first,
                                   std::span<float> target) const noexcept {
  ARTESIAN_CHECK(readable(tensor));
  const std::uint64_t size = tensor.type->bits / 8;
  const std::uint64_t count = (tensor.end - tensor.begin) / size;
  ARTESIAN_CHECK(first <= count && target.size() <= count - first, first, target.size(), count);
  std::uint64_t offset = data_offset_ + tensor.begin + first * size;
  const auto named = [&](Result<void> result) -> Result<void> {
    if (result.has_value()) return {};
    Error error = std::move(result).error();
    error.message += " (tensor " + shown_name(tensor.name) + ")";
    return error;
  };
  if (size == sizeof(float)) {
    return named(file_.read_at(target.data(), target.size_bytes(), offset));
  }
  std::array<std::byte, piece_size> bytes;
  while (!target.empty()) {
    const std::size_t piece = std::min<std::size_t>(target.size(), piece_size / size);
    ARTESIAN_TRY_VOID(named(file_.read_at(bytes.data(), piece * size, offset)));
    convert(tensor.type->name, bytes.data(), target.first(piece));
    target = target.subspan(piece);
    offset += piece * size;
  }
  return {};
}

}  // namespace artesian::models
