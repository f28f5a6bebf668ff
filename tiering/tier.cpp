#include "tiering/tier.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace artesian::tiering {

const char* tier_name(Tier tier) noexcept {
  switch (tier) {
    case Tier::Device: return "device";
    case Tier::Host: return "host";
    case Tier::Nvme: return "nvme";
  }
  return "unknown";
}

Reservation::Reservation(Budget* budget, Tier tier, std::uint64_t bytes, std::size_t tag) noexcept
    : budget_(budget), tier_(tier), bytes_(bytes), tag_(tag) {}

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)),
      tier_(other.tier_),
      bytes_(std::exchange(other.bytes_, 0)),
      tag_(other.tag_) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    reset();
    budget_ = std::exchange(other.budget_, nullptr);
    tier_ = other.tier_;
    bytes_ = std::exchange(other.bytes_, 0);
    tag_ = other.tag_;
  }
  return *this;
}

Reservation::~Reservation() {
  reset();
}

void Reservation::reset() noexcept {
  if (budget_ != nullptr) budget_->give_back(tier_, bytes_, tag_);
  budget_ = nullptr;
  bytes_ = 0;
}

Budget::Budget(const std::array<std::uint64_t, tier_count>& bytes) noexcept {
  for (std::size_t i = 0; i < tier_count; ++i) tiers_[i].limit = bytes[i];
}

Budget::~Budget() {
  for (const TierState& tier : tiers_) {
    for (const Line& line : tier.lines) ARTESIAN_CHECK(line.bytes == 0, line.tag, line.bytes);
    ARTESIAN_CHECK(tier.used == 0, tier.used);
  }
}

Result<Reservation> Budget::reserve(Tier tier, std::uint64_t bytes,
                                    const std::string& tag) noexcept {
  TierState& state = tiers_[static_cast<std::size_t>(tier)];
  ARTESIAN_CHECK(state.used <= state.limit, state.used, state.limit);
  ARTESIAN_CHECK(!tag.empty());
  if (bytes > state.limit - state.used) {
    const std::uint64_t missing = bytes - (state.limit - state.used);
    return make_error(ErrorCode::Exhausted,
                      std::string(tier_name(tier)) + " budget: " + tag + " needs " +
                          format_size(bytes) + ", but " + format_size(state.used) + " of " +
                          format_size(state.limit) + " are in use: " + format_size(missing) + " (" +
                          std::to_string(missing) + " bytes) missing");
  }
  auto line = std::find_if(state.lines.begin(), state.lines.end(),
                           [&tag](const Line& each) { return each.tag == tag; });
  if (line == state.lines.end()) line = state.lines.insert(line, Line{.tag = tag});
  line->bytes += bytes;
  line->bytes_peak = std::max(line->bytes_peak, line->bytes);
  state.used += bytes;
  state.peak = std::max(state.peak, state.used);
  ARTESIAN_CHECK(state.used <= state.limit, state.used, state.limit);
  return Reservation(this, tier, bytes, static_cast<std::size_t>(line - state.lines.begin()));
}

void Budget::give_back(Tier tier, std::uint64_t bytes, std::size_t tag) noexcept {
  TierState& state = tiers_[static_cast<std::size_t>(tier)];
  ARTESIAN_CHECK(tag < state.lines.size(), tag);
  ARTESIAN_CHECK(bytes <= state.lines[tag].bytes, bytes, state.lines[tag].bytes);
  ARTESIAN_CHECK(bytes <= state.used, bytes, state.used);
  state.lines[tag].bytes -= bytes;
  state.used -= bytes;
}

std::uint64_t Budget::limit(Tier tier) const noexcept {
  return tiers_[static_cast<std::size_t>(tier)].limit;
}

std::uint64_t Budget::used(Tier tier) const noexcept {
  return tiers_[static_cast<std::size_t>(tier)].used;
}

std::uint64_t Budget::peak(Tier tier) const noexcept {
  return tiers_[static_cast<std::size_t>(tier)].peak;
}

std::uint64_t Budget::free(Tier tier) const noexcept {
  return limit(tier) - used(tier);
}

std::vector<Budget::Line> Budget::lines(Tier tier) const {
  return tiers_[static_cast<std::size_t>(tier)].lines;
}

}  // namespace artesian::tiering
