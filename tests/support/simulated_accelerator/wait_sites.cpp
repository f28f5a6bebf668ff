#include "tests/support/simulated_accelerator/wait_sites.h"

#include <dlfcn.h>

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
  return site == dropped_;
}

std::map<std::string, std::uint64_t> WaitSites::reached() {
  const std::lock_guard lock(mutex_);
  return reached_;
}

void WaitSites::forget() {
  const std::lock_guard lock(mutex_);
  reached_.clear();
}

void WaitSites::drop(const std::string& site) {
  const std::lock_guard lock(mutex_);
  dropped_ = site;
}

}  // namespace artesian::test_support
