// Where state lives, and how many bytes of each place a run may use.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace artesian::tiering {

enum class Tier : std::uint8_t { Device, Host, Nvme };
constexpr std::size_t tier_count = 3;

/// "device", "host" or "nvme".
const char* tier_name(Tier tier) noexcept;

class Budget;

/// Bytes set aside in one tier; given back on destruction. Move-only.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();
  std::uint64_t bytes() const noexcept { return bytes_; }
  void reset() noexcept;

 private:
  friend class Budget;
  Reservation(Budget* budget, Tier tier, std::uint64_t bytes, std::size_t tag) noexcept;
  Budget* budget_ = nullptr;
  Tier tier_ = Tier::Device;
  std::uint64_t bytes_ = 0;
  std::size_t tag_ = 0;
};

/// Hard byte budgets, one per tier; every byte has a tag. Used from the compute thread only.
class Budget {
 public:
  struct Line {
    std::string tag;
    std::uint64_t bytes = 0;
    std::uint64_t bytes_peak = 0;
  };

  /// `bytes[tier]` is the limit of that tier.
  explicit Budget(const std::array<std::uint64_t, tier_count>& bytes) noexcept;
  ~Budget();  // checks that everything was given back

  /// Errors: Exhausted, naming tier, tag, bytes asked and bytes missing.
  Result<Reservation> reserve(Tier tier, std::uint64_t bytes, const std::string& tag) noexcept;
  std::uint64_t limit(Tier tier) const noexcept;
  std::uint64_t used(Tier tier) const noexcept;
  std::uint64_t peak(Tier tier) const noexcept;
  std::uint64_t free(Tier tier) const noexcept;
  /// Current and peak bytes by tag, in order of first use.
  std::vector<Line> lines(Tier tier) const;

 private:
  friend class Reservation;
  void give_back(Tier tier, std::uint64_t bytes, std::size_t tag) noexcept;
  struct TierState {
    std::uint64_t limit = 0;
    std::uint64_t used = 0;
    std::uint64_t peak = 0;
    std::vector<Line> lines;
  };
  std::array<TierState, tier_count> tiers_;
};

}  // namespace artesian::tiering
