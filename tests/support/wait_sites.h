// WaitSites: the places in the engine's code that record a fence or wait for one on a test's
// device. A place can be dropped, as if its line were missing: then a test must fail. The variable
// ARTESIAN_WAIT_DROPPED names the places to drop, with commas between them. A program writes the
// places that it has reached to the file ARTESIAN_WAIT_SITES.
#pragma once

#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

namespace artesian::test_support {

class WaitSites {
 public:
  static WaitSites& instance() {
    static WaitSites sites;
    return sites;
  }
  ~WaitSites() {
    if (const char* path = std::getenv("ARTESIAN_WAIT_SITES"); path != nullptr) {
      std::ofstream file(path);
      for (const auto& [site, times] : reached_) file << site << '\n';
    }
  }

  /// Counts a call. `caller`: its return address. Returns true if the call is to be left out.
  bool drops(const char* call, const void* caller) {
    Dl_info library{};
    ::dladdr(caller, &library);
    const auto offset =
        static_cast<const std::byte*>(caller) - static_cast<const std::byte*>(library.dli_fbase);
    const std::string site = std::string(call) + " " + std::to_string(offset);
    const std::lock_guard lock(mutex_);
    ++reached_[site];
    return dropped_.contains(site);
  }
  /// The same, if the environment told the program anything; else false.
  bool drops_if_told(const char* call, const void* caller) { return told_ && drops(call, caller); }
  /// Returns the caller of the calling function's caller: each join is a place of its own.
  [[gnu::noinline]] static const void* callers_caller() {
    std::array<void*, 4> frames{};  // this, who asks, its caller, that one's
    ::backtrace(frames.data(), static_cast<int>(frames.size()));
    return frames[3];
  }

  /// "wait 1234", by call and offset in its library: how often it was reached.
  std::map<std::string, std::uint64_t> reached() {
    const std::lock_guard lock(mutex_);
    return reached_;
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    reached_.clear();
  }
  /// From here on these sites are left out.
  void drop(std::set<std::string> sites) {
    const std::lock_guard lock(mutex_);
    dropped_ = std::move(sites);
  }

 private:
  WaitSites() {
    const char* const dropped = std::getenv("ARTESIAN_WAIT_DROPPED");
    told_ = dropped != nullptr || std::getenv("ARTESIAN_WAIT_SITES") != nullptr;
    std::istringstream list(dropped == nullptr ? "" : dropped);
    for (std::string site; std::getline(list, site, ',');) dropped_.insert(site);
  }

  std::mutex mutex_;
  std::map<std::string, std::uint64_t> reached_;
  std::set<std::string> dropped_;
  bool told_ = false;
};

}  // namespace artesian::test_support
