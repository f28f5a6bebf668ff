// Watches system calls that make files durable, and lets them fail. This header defines them in
// place of the C library's, for the program that includes it once. The calls are a list, in their
// order.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace artesian::test_support {

struct WatchedCall {
  enum class Kind : std::uint8_t { Write, Sync, Reserve, Link, Rename };
  Kind kind;
  std::string path;        // of a rename the target; a file without a name has "(deleted)"
  bool left_open = false;  // of a rename: a descriptor leads to the source, or below it
};

class WatchedCalls {
 public:
  static WatchedCalls& all() {
    static WatchedCalls calls;
    return calls;
  }
  struct Failure {
    WatchedCall::Kind kind;
    int number;  // of the calls of this kind, from 0
    int system_error;
  };
  /// Forgets all calls; from now on these fail.
  void begin(std::vector<Failure> failures = {}) {
    list_.clear();
    failures_ = std::move(failures);
    watching_ = true;
  }
  void end() { watching_ = false; }
  const std::vector<WatchedCall>& list() const { return list_; }
  int count(WatchedCall::Kind kind) const {
    int count = 0;
    for (const WatchedCall& call : list_) count += call.kind == kind ? 1 : 0;
    return count;
  }

  /// Notes a call. Returns true if it is to fail, with errno set.
  bool see(WatchedCall::Kind kind, std::string path, bool left_open = false) {
    if (!watching_) return false;
    int system_error = 0;
    for (const Failure& failure : failures_) {
      const bool this_one = failure.kind == kind && failure.number == count(kind);
      if (this_one) system_error = failure.system_error;
    }
    list_.push_back({kind, std::move(path), left_open});
    if (system_error != 0) errno = system_error;
    return system_error != 0;
  }
  static std::string path_of(int descriptor) {
    std::error_code none;
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), none);
  }
  /// True if a descriptor of this process leads to the path or below it.
  static bool is_open(const std::string& path) {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      const std::string target = std::filesystem::read_symlink(entry.path(), none);
      if (target == path || target.starts_with(path + "/")) return true;
    }
    return false;
  }

 private:
  bool watching_ = false;
  std::vector<Failure> failures_;
  std::vector<WatchedCall> list_;
};

}  // namespace artesian::test_support

// NOLINTBEGIN(misc-definitions-in-headers,readability-inconsistent-declaration-parameter-name)
extern "C" {

ssize_t write(int descriptor, const void* source, size_t length) {
  using artesian::test_support::WatchedCall;
  auto& calls = artesian::test_support::WatchedCalls::all();
  if (descriptor > STDERR_FILENO &&
      calls.see(WatchedCall::Kind::Write, calls.path_of(descriptor))) {
    return -1;
  }
  return syscall(SYS_write, descriptor, source, length);
}

int fsync(int descriptor) {
  using artesian::test_support::WatchedCall;
  auto& calls = artesian::test_support::WatchedCalls::all();
  if (calls.see(WatchedCall::Kind::Sync, calls.path_of(descriptor))) return -1;
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

/// A call that fails has reserved half of the bytes, as the kernel does on a full disk.
int fallocate(int descriptor, int mode, off_t offset, off_t length) {
  using artesian::test_support::WatchedCall;
  auto& calls = artesian::test_support::WatchedCalls::all();
  if (calls.see(WatchedCall::Kind::Reserve, calls.path_of(descriptor))) {
    const int system_error = errno;
    static_cast<void>(syscall(SYS_fallocate, descriptor, mode, offset, length / 2));
    errno = system_error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, descriptor, mode, offset, length));
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  using artesian::test_support::WatchedCall;
  auto& calls = artesian::test_support::WatchedCalls::all();
  if (calls.see(WatchedCall::Kind::Link, to)) return -1;
  return static_cast<int>(syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  using artesian::test_support::WatchedCall;
  auto& calls = artesian::test_support::WatchedCalls::all();
  if (calls.see(WatchedCall::Kind::Rename, to, calls.is_open(from))) return -1;
  return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

int rename(const char* from, const char* to) noexcept {
  using artesian::test_support::WatchedCall;
  auto& calls = artesian::test_support::WatchedCalls::all();
  if (calls.see(WatchedCall::Kind::Rename, to, calls.is_open(from))) return -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

}  // extern "C"
// NOLINTEND(misc-definitions-in-headers,readability-inconsistent-declaration-parameter-name)
