#include "tests/support/simulated_accelerator/wait_sites.h"

#include <dlfcn.h>

#include <utility>

namespace artesian::test_support {

WaitSites& WaitSites::instance() {
  static auto* const sites = new WaitSites();
  return *sites;
}

bool WaitSites::drops(const char* call, const void* caller) {
  Dl_info library{};
  ::dladdr(caller, &library);
  const auto offset =
      static_cast<const std::byte*>(caller) - static_cast<const std::byte*>(library.dli_fbase);
  const std::string site = std::string(call) + " " + std::to_string(offset);
  const std::lock_guard lock(mutex_);
  ++reached_[site];
  return dropped_.contains(site);
}

std::map<std::string, std::uint64_t> WaitSites::reached() {
  const std::lock_guard lock(mutex_);
  return reached_;
}

void WaitSites::forget() {
  const std::lock_guard lock(mutex_);
  reached_.clear();
}

void WaitSites::drop(std::set<std::string> sites) {
  const std::lock_guard lock(mutex_);
  dropped_ = std::move(sites);
}

}  // namespace artesian::test_support
