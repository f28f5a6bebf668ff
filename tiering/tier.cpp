#include "tiering/tier.h"

namespace artesian::tiering {

const char* tier_name(Tier tier) noexcept {
  switch (tier) {
    case Tier::Device: return "device";
    case Tier::Host: return "host";
    case Tier::Nvme: return "nvme";
  }
  return "unknown";
}

}  // namespace artesian::tiering
