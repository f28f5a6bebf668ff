#include "zero3/torch/parameter_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace artesian::zero3 {
namespace {

constexpr std::size_t guards_max = 16;  // several engines may live in one process
std::array<std::atomic<const ParameterGuard*>, guards_max> guards;
struct sigaction previous_action;
std::atomic<bool> installed{false};

void say(const char* text) noexcept {
  const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(written);
}

void on_fault(int number, siginfo_t* info, void* context) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const auto& slot : guards) {
    const ParameterGuard* guard = slot.load();
    if (guard == nullptr) continue;
    for (const auto& region : guard->regions()) {
      if (address < region.begin || address >= region.end) continue;
      say("artesian: error: parameter: ");
      say(region.name.c_str());
      say(": got an access while released, allowed only inside its stage; gather it first\n");
      ::_exit(1);
    }
  }
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(number, info, context);
    return;
  }
  ::signal(number, SIG_DFL);  // not ours: fault again, with the default action
}

void install() {
  if (installed.exchange(true)) return;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_action);
}

}  // namespace

Result<std::unique_ptr<ParameterGuard>> ParameterGuard::create(
    const std::vector<std::string>& names, const std::vector<std::uint64_t>& bytes) {
  ARTESIAN_CHECK(names.size() == bytes.size(), names.size(), bytes.size());
  std::unique_ptr<ParameterGuard> guard(new ParameterGuard);
  for (std::size_t index = 0; index < names.size(); ++index) {
    const std::uint64_t length = round_up(std::max<std::uint64_t>(bytes[index], 1), 4096);
    void* address =
        ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      return make_error(ErrorCode::Exhausted, "no address space for released parameters", errno);
    }
    auto* begin = static_cast<std::byte*>(address);
    guard->regions_.push_back({begin, begin + length, names[index]});
  }
  install();
  for (auto& slot : guards) {
    const ParameterGuard* empty = nullptr;
    if (slot.compare_exchange_strong(empty, guard.get())) return guard;
  }
  return make_error(ErrorCode::Exhausted, "too many engines in one process");
}

ParameterGuard::~ParameterGuard() {
  for (auto& slot : guards) {
    const ParameterGuard* mine = this;
    slot.compare_exchange_strong(mine, nullptr);
  }
  for (const Region& region : regions_) {
    ::munmap(region.begin, static_cast<std::size_t>(region.end - region.begin));
  }
}

}  // namespace artesian::zero3
