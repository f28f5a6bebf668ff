// The address space that released parameters point to; nothing may access it. An access from
// outside the engine ends the process with a line that names the parameter, instead of reading
// stale memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/result.h"

namespace artesian::zero3 {

class ParameterGuard {
 public:
  /// Reserves `bytes[i]` of PROT_NONE address space for the parameter called `names[i]`, and
  /// installs a SIGSEGV handler that forwards all other faults. Errors: Exhausted.
  static Result<std::unique_ptr<ParameterGuard>> create(const std::vector<std::string>& names,
                                                        const std::vector<std::uint64_t>& bytes);
  ~ParameterGuard();
  ParameterGuard(const ParameterGuard&) = delete;
  ParameterGuard& operator=(const ParameterGuard&) = delete;

  /// Returns the address of parameter `index` while it is released.
  std::byte* address(std::size_t index) const noexcept {
    ARTESIAN_CHECK(index < regions_.size(), index, regions_.size());
    return regions_[index].begin;
  }

  struct Region {
    std::byte* begin;
    std::byte* end;
    std::string name;
  };
  const std::vector<Region>& regions() const noexcept { return regions_; }

 private:
  ParameterGuard() = default;
  std::vector<Region> regions_;
};

}  // namespace artesian::zero3
