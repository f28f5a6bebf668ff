// "Did you mean": the known name that is closest to what somebody typed.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace artesian {

/// The candidate with the fewest single-character edits from `name`, case ignored; empty if none is
/// near enough (at most one edit for names of up to three characters, else a third of the length,
/// at least two). Among equals, the first.
std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace artesian
