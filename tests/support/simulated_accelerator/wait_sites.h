// WaitSites: the places in the engine's code that record a fence or wait for one on a
// SimulatedDevice. One of them can be dropped, as if its line were not there: then a test must
// fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace artesian::test_support {

class WaitSites {
 public:
  static WaitSites& instance();
  /// Counts a call. `caller`: where it returns to. True if it is to be left out.
  bool drops(const char* call, const void* caller);
  /// "wait 1234", by call and offset in its library: how often it was reached.
  std::map<std::string, std::uint64_t> reached();
  void forget();
  /// From here on these sites are left out.
  void drop(std::set<std::string> sites);

 private:
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> reached_;
  std::set<std::string> dropped_;
};

}  // namespace artesian::test_support
