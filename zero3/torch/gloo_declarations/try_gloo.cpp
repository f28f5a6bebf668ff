// Run when the build is configured: creates a Gloo group with one rank, as gloo_group.cpp does with
// several, and waits for it. Exits with 0 if that works.
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <exception>

int main() {
  try {
    const std::chrono::milliseconds deadline(10'000);
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::HashStore>(), 0, 1,
        c10d::ProcessGroupGloo::Options::create_default(deadline));
    group->barrier()->wait(deadline);
    return group->getSize() == 1 ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}
