// Compares a model's config.json with the one that its checkpoint was saved with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace artesian::models {

/// Names the keys of config.json that differ and change what the model computes, each with both
/// values: "rope_theta was 10000.0, is 500000.0". A key that is left out has its default, and one
/// that bears on nothing here (names, versions, dtypes, how weights are made at random) is not
/// looked at. A text that is no configuration of ours has no changes.
std::vector<std::string> model_changes(std::string_view before, std::string_view after);

}  // namespace artesian::models
