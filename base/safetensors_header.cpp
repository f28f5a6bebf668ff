#include "base/safetensors_header.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace artesian {

// Note [What a header may say]: the same as the reference reader (the Rust crate safetensors 0.8)
// accepts, field for field. Unknown fields of a tensor are skipped, "__metadata__" maps strings to
// strings or is null, offsets in order must leave no hole and end at the file's end, and nesting is
// at most 127 deep. Two rules are stricter, as in the format's description: a name must not occur
// twice, and a tensor must be an object. The header is parsed by events, never as a tree, so that
// its depth costs nothing.

namespace {

using Json = nlohmann::json;

constexpr std::array<SafetensorsType, 20> types{
    {{"BOOL", 8},        {"F4", 4},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
     {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"U8", 8},      {"I8", 8},      {"I16", 16},
     {"U16", 16},        {"F16", 16},        {"BF16", 16},   {"I32", 32},    {"U32", 32},
     {"F32", 32},        {"C64", 64},        {"F64", 64},    {"I64", 64},    {"U64", 64}}};

constexpr std::string_view metadata_name = "__metadata__";

Error corrupt(std::string message) {
  return make_error(ErrorCode::Corrupt, "safetensors: " + std::move(message));
}

enum class Field : std::uint8_t { DType, Shape, Offsets, Unknown };

/// Receives the parser's events. Depth 1 is the header's object, 2 a tensor or the metadata, 3 a
/// tensor's shape or offsets; below an unknown field everything is allowed.
class HeaderEvents {
 public:
  bool null() { return depth_ == 1 && in_metadata() ? true : scalar("null"); }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(std::int64_t) { return scalar("a negative number"); }
  bool number_float(double, const std::string&) { return scalar("a fraction"); }
  bool binary(Json::binary_t&) { return scalar("binary data"); }
  bool number_unsigned(std::uint64_t value);
  bool string(std::string& value);
  bool start_object(std::size_t);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool key(std::string& value);
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error);

  std::vector<SafetensorsTensor> tensors;
  std::string fault;

 private:
  bool in_metadata() const noexcept { return name_ == metadata_name; }
  bool in_unknown() const noexcept {
    return depth_ >= 2 && !in_metadata() && field_ == Field::Unknown;
  }
  bool fail(std::string text) {
    if (fault.empty()) fault = std::move(text);
    return false;
  }
  bool scalar(const char* got) { return in_unknown() ? true : wrong(got); }
  bool wrong(const char* got);
  bool deeper();

  std::uint32_t depth_ = 0;
  std::string name_;  // the key at depth 1
  bool metadata_seen_ = false;
  Field field_ = Field::Unknown;
  std::array<bool, 3> seen_{};  // which fields of the current tensor were seen, by Field
  SafetensorsTensor tensor_;
  std::vector<std::uint64_t> offsets_;
};

bool HeaderEvents::wrong(const char* got) {
  if (depth_ <= 1) return fail(shown_name(name_) + ": got " + got + ", allowed an object");
  if (in_metadata()) return fail(std::string("metadata: got ") + got + ", allowed a string");
  const std::array<const char*, 3> fields{"dtype", "shape", "data_offsets"};
  const std::array<const char*, 3> allowed{"a string", "a list of integers of at least 0",
                                           "a list of two integers of at least 0"};
  const auto field = static_cast<std::size_t>(field_);
  return fail("tensor " + shown_name(name_) + ": " + fields[field] + ": got " + got + ", allowed " +
              allowed[field]);
}

bool HeaderEvents::deeper() {
  ++depth_;
  return depth_ <= safetensors_depth_max || fail("header is nested too deeply, allowed 127 levels");
}

bool HeaderEvents::number_unsigned(std::uint64_t value) {
  if (in_unknown()) return true;
  if (depth_ != 3) return wrong("a number");
  (field_ == Field::Shape ? tensor_.shape : offsets_).push_back(value);
  return true;
}

bool HeaderEvents::string(std::string& value) {
  if (in_unknown() || (depth_ == 2 && in_metadata())) return true;
  if (depth_ != 2 || field_ != Field::DType) return wrong("a string");
  tensor_.type = find_safetensors_type(value);
  return tensor_.type != nullptr ||
         fail("tensor " + shown_name(name_) + ": unknown dtype " + shown_name(value));
}

bool HeaderEvents::start_object(std::size_t) {
  if (depth_ >= 2 && !in_unknown()) return wrong("an object");
  if (!deeper()) return false;
  if (depth_ == 2) {
    tensor_ = {};
    tensor_.name = name_;
    offsets_.clear();
    seen_ = {};
  }
  return true;
}

bool HeaderEvents::end_object() {
  --depth_;
  if (depth_ != 1 || in_metadata()) return true;
  const std::string who = "tensor " + shown_name(name_);
  if (!seen_[0]) return fail(who + ": dtype is missing");
  if (!seen_[1]) return fail(who + ": shape is missing");
  if (!seen_[2]) return fail(who + ": data_offsets is missing");
  if (offsets_.size() != 2) {
    return fail(fmt::format("{}: data_offsets has {} numbers, allowed 2", who, offsets_.size()));
  }
  tensor_.begin = offsets_[0];
  tensor_.end = offsets_[1];
  tensors.push_back(std::move(tensor_));
  return true;
}

bool HeaderEvents::start_array(std::size_t) {
  if (depth_ == 0) return fail("header is a list, allowed an object");
  const bool list_expected =
      depth_ == 2 && !in_metadata() && (field_ == Field::Shape || field_ == Field::Offsets);
  if (!list_expected && !in_unknown()) return wrong("a list");
  return deeper();
}

bool HeaderEvents::end_array() {
  --depth_;
  return true;
}

bool HeaderEvents::key(std::string& value) {
  if (depth_ == 1) {
    name_ = value;
    field_ = Field::Unknown;
    if (!in_metadata()) return true;
    if (metadata_seen_) return fail("metadata comes twice");
    metadata_seen_ = true;
    return true;
  }
  if (depth_ != 2 || in_metadata()) return true;
  field_ = value == "dtype"          ? Field::DType
           : value == "shape"        ? Field::Shape
           : value == "data_offsets" ? Field::Offsets
                                     : Field::Unknown;
  if (field_ == Field::Unknown) return true;
  bool& seen = seen_[static_cast<std::size_t>(field_)];
  if (seen) return fail("tensor " + shown_name(name_) + ": " + value + " comes twice");
  seen = true;
  return true;
}

bool HeaderEvents::parse_error(std::size_t position, const std::string&,
                               const Json::exception& error) {
  const std::string text = error.what();
  if (text.find("UTF-8") != std::string::npos) {
    return fail(fmt::format("header is not UTF-8 at byte {}", position));
  }
  return fail(fmt::format("header is not JSON at byte {}", position));
}

/// Bytes of a tensor. Errors: Corrupt on overflow, or if the bits do not fill whole bytes.
Result<std::uint64_t> tensor_size(const SafetensorsTensor& tensor) {
  std::uint64_t bits = 1;
  bool overflow = false;
  for (const std::uint64_t extent : tensor.shape) {
    overflow = overflow || __builtin_mul_overflow(bits, extent, &bits);
  }
  overflow = overflow || __builtin_mul_overflow(bits, std::uint64_t{tensor.type->bits}, &bits);
  const std::string who = "tensor " + shown_name(tensor.name);
  if (overflow) return corrupt(who + ": its shape's product overflows");
  if (bits % 8 != 0) return corrupt(who + ": its elements do not fill whole bytes");
  return bits / 8;
}

/// Checks that tensors, in order of offsets, are contiguous and fill the data.
Result<void> check_layout(const std::vector<SafetensorsTensor>& tensors, std::uint64_t data_size) {
  std::uint64_t position = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::string range = fmt::format("{} to {}", tensor.begin, tensor.end);
    const std::string who = "tensor " + shown_name(tensor.name) + " (bytes " + range + ")";
    if (tensor.end < tensor.begin) return corrupt(who + ": ends before it begins");
    if (tensor.begin < position) {
      return corrupt(
          fmt::format("{}: overlaps the tensor before it, which ends at {}", who, position));
    }
    if (tensor.begin > position) {
      return corrupt(fmt::format("{}: leaves a hole after byte {}", who, position));
    }
    ARTESIAN_TRY(size, tensor_size(tensor));
    if (tensor.end - tensor.begin != size) {
      return corrupt(fmt::format("{}: shape and dtype need {} bytes", who, size));
    }
    position = tensor.end;
  }
  if (position > data_size) {
    return corrupt(
        fmt::format("the file is truncated: the header speaks of {} bytes of data, the file has {}",
                    position, data_size));
  }
  if (position < data_size) {
    return corrupt(fmt::format("{} trailing bytes belong to no tensor", data_size - position));
  }
  return {};
}

}  // namespace

const SafetensorsType* find_safetensors_type(std::string_view name) noexcept {
  const auto* type = std::find_if(types.begin(), types.end(),
                                  [&](const SafetensorsType& known) { return name == known.name; });
  return type == types.end() ? nullptr : type;
}

std::string shown_name(std::string_view name) {
  constexpr std::size_t shown_max = 80;
  const Json text(std::string(name.substr(0, shown_max)));
  std::string shown = text.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (name.size() > shown_max) shown += "...";
  return shown;
}

const SafetensorsType* safetensors_type(DType dtype) noexcept {
  return find_safetensors_type(dtype == DType::Float32   ? "F32"
                               : dtype == DType::Float16 ? "F16"
                                                         : "BF16");
}

std::string write_safetensors_header(const std::vector<SafetensorsTensor>& tensors,
                                     std::uint64_t alignment) {
  // As text, since a JSON tree would be ten times as large.
  std::string text(safetensors_prefix_size, '\0');
  text += R"({"__metadata__":{"format":"pt"})";
  for (const SafetensorsTensor& tensor : tensors) {
    text +=
        "," + Json(tensor.name).dump() + R"(:{"dtype":")" + tensor.type->name + R"(","shape":[)";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      text += fmt::format("{}{}", i == 0 ? "" : ",", tensor.shape[i]);
    }
    text += fmt::format(R"(],"data_offsets":[{},{}]}})", tensor.begin, tensor.end);
  }
  text += '}';
  text.append((alignment - text.size() % alignment) % alignment, ' ');
  const std::uint64_t length = text.size() - safetensors_prefix_size;
  std::memcpy(text.data(), &length, sizeof length);
  return text;
}

Result<std::vector<SafetensorsTensor>> parse_safetensors_header(std::string_view header,
                                                                std::uint64_t data_size) {
  if (header.starts_with("\xef\xbb\xbf")) return corrupt("header starts with a byte order mark");
  HeaderEvents events;
  if (!Json::sax_parse(header.begin(), header.end(), &events)) return corrupt(events.fault);
  auto tensors = std::move(events.tensors);
  std::unordered_set<std::string_view> names;
  for (const SafetensorsTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return corrupt("tensor " + shown_name(tensor.name) + " comes twice");
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& left, const auto& right) {
    return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
  });
  ARTESIAN_TRY_VOID(check_layout(tensors, data_size));
  return tensors;
}

}  // namespace artesian
