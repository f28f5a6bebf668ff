// The rules of a safetensors header written a second time, as plainly as possible, over a JSON
// tree: what base/safetensors_header.h is compared with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace artesian::models {

/// Returns a JSON tree, and whether a name occurs twice in the header, in a tensor's known fields,
/// or in the metadata.
inline std::pair<nlohmann::json, bool> tree_and_duplicates(const std::string& header) {
  bool duplicate = false;
  std::vector<std::set<std::string>> seen;
  std::vector<std::string> path;
  const auto callback = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) {
      seen.emplace_back();
      path.emplace_back();
    } else if (event == Event::object_end) {
      seen.pop_back();
      path.pop_back();
    } else if (event == Event::key) {
      const auto name = value.get<std::string>();
      const bool known = name == "dtype" || name == "shape" || name == "data_offsets";
      const bool counts =
          path.size() == 1 || (path.size() == 2 && path[0] != "__metadata__" && known);
      if (!seen.back().insert(name).second && counts) duplicate = true;
      path.back() = name;
    }
    return true;
  };
  auto tree = nlohmann::json::parse(header, callback, /*allow_exceptions=*/false);
  return {std::move(tree), duplicate};
}

inline bool naive_tensor_fits(const nlohmann::json& tensor) {
  static const std::map<std::string, std::uint64_t> bits{
      {"BOOL", 8},        {"F4", 4},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
      {"F8_E4M3FNUZ", 8}, {"I8", 8},          {"U8", 8},      {"I16", 16},    {"U16", 16},
      {"F16", 16},        {"F8_E5M2FNUZ", 8}, {"I32", 32},    {"U32", 32},    {"F32", 32},
      {"C64", 64},        {"BF16", 16},       {"F64", 64},    {"I64", 64},    {"U64", 64}};
  if (!tensor.is_object()) return false;
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!tensor.contains(field)) return false;
  }
  if (!tensor["dtype"].is_string() || !bits.contains(tensor["dtype"].get<std::string>()))
    return false;
  for (const char* field : {"shape", "data_offsets"}) {
    if (!tensor[field].is_array()) return false;
    for (const auto& number : tensor[field]) {
      if (!number.is_number_unsigned()) return false;
    }
  }
  if (tensor["data_offsets"].size() != 2) return false;
  unsigned __int128 product = 1;
  for (const auto& extent : tensor["shape"]) {
    product *= extent.get<std::uint64_t>();
    if (product > ~std::uint64_t{0}) return false;
  }
  product *= bits.at(tensor["dtype"].get<std::string>());
  const auto begin = tensor["data_offsets"][0].get<std::uint64_t>();
  const auto end = tensor["data_offsets"][1].get<std::uint64_t>();
  return product <= ~std::uint64_t{0} && product % 8 == 0 && begin <= end &&
         end - begin == static_cast<std::uint64_t>(product / 8);
}

inline bool naive_accepts(const std::string& header, std::uint64_t data_size) {
  const auto [tree, duplicate] = tree_and_duplicates(header);
  if (!tree.is_object() || duplicate || header.starts_with("\xef\xbb\xbf")) return false;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, value] : tree.items()) {
    if (name == "__metadata__") {
      if (!value.is_null() && !value.is_object()) return false;
      for (const auto& text : value) {
        if (!text.is_string()) return false;
      }
      continue;
    }
    if (!naive_tensor_fits(value)) return false;
    ranges.emplace_back(value["data_offsets"][0].get<std::uint64_t>(),
                        value["data_offsets"][1].get<std::uint64_t>());
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t position = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != position) return false;
    position = end;
  }
  return position == data_size;
}

}  // namespace artesian::models
