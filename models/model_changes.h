// Compares a model's config.json with the copy in its checkpoint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace artesian::models {

/// Returns the keys of config.json that differ and affect what the model computes, each with both
/// values: "rope_theta was 10000.0, is 500000.0". A missing key has its default. Keys that affect
/// nothing here (names, versions, dtypes, random initialisation) are ignored. If a text is not a
/// configuration that Artesian reads, there are no changes.
std::vector<std::string> model_changes(std::string_view before, std::string_view after);

}  // namespace artesian::models
