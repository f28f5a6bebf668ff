// For LD_PRELOAD: ends the process by SIGKILL at the n-th call that changes what a folder holds, or
// makes it durable, before it is made. ARTESIAN_KILL_FOLDER: the folder; ARTESIAN_KILL_AT: n, from
// 1; ARTESIAN_KILL_LOG: a file to which each such call is appended, "NAME PATH" a line.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string path_of(int folder, const char* name) {
  if (name != nullptr && name[0] == '/') return name;
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  char path[PATH_MAX];
  const ssize_t length = readlink(link, path, sizeof path - 1);
  std::string found(path, length < 0 ? 0 : static_cast<std::size_t>(length));
  return name == nullptr ? found : found + "/" + name;
}

/// One call, of any thread.
void count(const char* call, const std::string& path) {
  static const char* const folder = std::getenv("ARTESIAN_KILL_FOLDER");
  static const char* const at = std::getenv("ARTESIAN_KILL_AT");
  static const char* const log = std::getenv("ARTESIAN_KILL_LOG");
  static std::atomic<long> calls = 0;
  if (folder == nullptr || path.compare(0, std::strlen(folder), folder) != 0) return;
  const long number = ++calls;
  if (log != nullptr) {
    const int file = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    const std::string line = std::string(call) + " " + path.substr(std::strlen(folder)) + "\n";
    if (write(file, line.data(), line.size()) < 0) std::abort();
    close(file);
  }
  if (at != nullptr && number == std::atol(at)) kill(getpid(), SIGKILL);
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int fsync(int file) {
  static const auto real = next<int (*)(int)>("fsync");
  count("fsync", path_of(file, nullptr));
  return real(file);
}

int fallocate(int file, int mode, off_t offset, off_t length) {
  static const auto real = next<int (*)(int, int, off_t, off_t)>("fallocate");
  count("fallocate", path_of(file, nullptr));
  return real(file, mode, offset, length);
}

ssize_t pwrite(int file, const void* bytes, size_t length, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  count("pwrite", path_of(file, nullptr));
  return real(file, bytes, length, offset);
}

int mkdirat(int folder, const char* name, mode_t mode) {
  static const auto real = next<int (*)(int, const char*, mode_t)>("mkdirat");
  count("mkdirat", path_of(folder, name));
  return real(folder, name, mode);
}

int renameat2(int folder, const char* name, int other, const char* to, unsigned flags) {
  static const auto real = next<int (*)(int, const char*, int, const char*, unsigned)>("renameat2");
  count("renameat2", path_of(folder, name));
  return real(folder, name, other, to, flags);
}

int linkat(int folder, const char* name, int other, const char* to, int flags) {
  static const auto real = next<int (*)(int, const char*, int, const char*, int)>("linkat");
  count("linkat", path_of(folder, name));
  return real(folder, name, other, to, flags);
}

int unlinkat(int folder, const char* name, int flags) {
  static const auto real = next<int (*)(int, const char*, int)>("unlinkat");
  count("unlinkat", path_of(folder, name));
  return real(folder, name, flags);
}

/// openat2, where it makes a file.
long syscall(long number, ...) {
  static const auto real = next<long (*)(long, ...)>("syscall");
  std::va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  if (number == SYS_openat2) {
    const auto* how = reinterpret_cast<const open_how*>(words[2]);
    if ((how->flags & O_CREAT) != 0) {
      count("openat2",
            path_of(static_cast<int>(words[0]), reinterpret_cast<const char*>(words[1])));
    }
  }
  return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

}  // extern "C"
