// Where state lives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace artesian::tiering {

enum class Tier : std::uint8_t { Device, Host, Nvme };
constexpr std::size_t tier_count = 3;

/// "device", "host" or "nvme".
const char* tier_name(Tier tier) noexcept;

}  // namespace artesian::tiering
