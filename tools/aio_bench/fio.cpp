#include "tools/aio_bench/fio.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>

namespace artesian::bench {
namespace {

constexpr int descriptor_in_child = 3;  // a low number, as the limit (ulimit -n) may be low

struct Output {
  std::string text;  // stdout and stderr together
  int status = 0;    // status from waitpid
};

Error spawn_failure(int system_error) {
  return make_error(ErrorCode::Unsupported,
                    system_error == ENOENT
                        ? "fio: got no such program in PATH, allowed an installed one; install it "
                          "(Debian: apt-get install fio)"
                        : "fio cannot be started",
                    system_error == ENOENT ? 0 : system_error);
}

/// Reads the child's output to its end; ends the child when asked to stop.
void read_all(int pipe, pid_t child, const std::atomic<int>& stop, std::string& text) {
  bool told = false;
  while (true) {
    if (stop != 0 && !told) {
      told = true;
      ::kill(child, SIGTERM);
    }
    pollfd wanted{.fd = pipe, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wanted, 1, 100);
    if (ready <= 0) continue;  // interrupted by a signal, or no output yet
    char piece[4096];
    const ssize_t got = ::read(pipe, piece, sizeof piece);
    if (got > 0) text.append(piece, static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) return;
  }
}

struct Start {
  char** words = nullptr;
  int descriptor = -1;
  int output = -1;
  pid_t parent = 0;
  sigset_t signals = {};  // signals to block in the program
  int failed = 0;         // errno of execvp
};

/// Runs in the parent's memory until execvp replaces it, so it only makes system calls.
int become_program(void* given) {
  auto& start = *static_cast<Start*>(given);
  // SIGTERM, so that fio ends its jobs, which are separate processes.
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != start.parent) ::_exit(127);
  for (const int number : {SIGINT, SIGTERM, SIGPIPE}) ::signal(number, SIG_DFL);
  if (start.descriptor == descriptor_in_child) {
    // A dup2 to the same number would keep the close-on-exec flag.
    ::fcntl(descriptor_in_child, F_SETFD, 0);
  } else if (start.descriptor >= 0) {
    ::dup2(start.descriptor, descriptor_in_child);
  }
  ::dup2(start.output, STDOUT_FILENO);
  ::dup2(start.output, STDERR_FILENO);
  ::pthread_sigmask(SIG_SETMASK, &start.signals, nullptr);
  ::execvp(start.words[0], start.words);
  start.failed = errno;
  ::_exit(127);
}

/// Starts a program that ends when this process ends, which posix_spawn does not support. Like
/// posix_spawn it avoids copying this process's memory, whose registered parts would have to be
/// copied. Returns 0 or errno.
int start_program(Start& start, pid_t& child) {
  constexpr std::size_t stack_size = 256 << 10;  // execvp puts PATH on the stack
  const auto stack = std::make_unique<std::array<char, stack_size>>();
  start.parent = ::getpid();
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &start.signals);  // a handler would run in the shared memory
  child =
      ::clone(become_program, stack->data() + stack_size, CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
  const int failed = child < 0 ? errno : start.failed;
  ::pthread_sigmask(SIG_SETMASK, &start.signals, nullptr);
  if (child > 0 && failed != 0) ::waitpid(child, nullptr, 0);
  return failed;
}

Result<Output> run_program(const std::vector<std::string>& words, int descriptor,
                           const std::atomic<int>& stop) {
  int pipes[2];
  if (::pipe2(pipes, O_CLOEXEC) != 0) {
    return make_error(ErrorCode::Exhausted, "cannot make a pipe", errno);
  }
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  // Moved away from the descriptors that are replaced first.
  const int ending = ::fcntl(pipes[1], F_DUPFD_CLOEXEC, descriptor_in_child + 1);
  Start start{.words = arguments.data(), .descriptor = descriptor, .output = ending};
  pid_t child = 0;
  const int failed = ending < 0 ? errno : start_program(start, child);
  ::close(pipes[1]);
  ::close(ending);
  if (failed != 0) {
    ::close(pipes[0]);
    return spawn_failure(failed);
  }
  Output output;
  read_all(pipes[0], child, stop, output.text);
  ::close(pipes[0]);
  while (::waitpid(child, &output.status, 0) < 0 && errno == EINTR) {
  }
  if (stop != 0) return make_error(ErrorCode::Cancelled, "stopped by a signal");
  return output;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1, 200);
}

/// Returns fio's error message; if there is none, the last line, which may be the end of its JSON.
std::string complaint(const std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (text.compare(begin, 5, "fio: ") == 0) return text.substr(begin + 5, end - begin - 5);
    begin = end + 1;
  }
  return last_line(text);
}

bool succeeded(const Output& output) {
  return WIFEXITED(output.status) && WEXITSTATUS(output.status) == 0;
}

}  // namespace

Result<std::string> fio_version(const std::atomic<int>& stop) {
  ARTESIAN_TRY(output, run_program({"fio", "--version"}, -1, stop));
  if (succeeded(output)) return last_line(output.text);
  return make_error(ErrorCode::Unsupported, "fio --version failed: " + last_line(output.text) +
                                                "; repair its installation");
}

std::vector<std::string> fio_arguments(const FioJob& job) {
  const char* operation = job.access == Access::Mixed ? "rw" : access_name(job.access);
  // Fio overwrites existing bytes as in our measurement: stamps only, no new contents.
  std::vector<std::string> words{"fio",
                                 "--name=compare",
                                 fmt::format("--filename=/proc/self/fd/{}", descriptor_in_child),
                                 std::string("--rw=") + operation,
                                 fmt::format("--size={}", job.size),
                                 fmt::format("--bs={}", job.block_size),
                                 fmt::format("--iodepth={}", job.queue_depth),
                                 std::string("--ioengine=") + job.engine,
                                 job.direct ? "--direct=1" : "--direct=0",
                                 job.huge_pages ? "--mem=mmaphuge" : "--mem=malloc",
                                 "--overwrite=1",
                                 "--scramble_buffers=0",
                                 "--fallocate=none",
                                 "--allow_file_create=0",
                                 "--output-format=json"};
  if (job.access == Access::Mixed) {
    words.insert(words.end(), {"--rwmixread=50", "--unified_rw_reporting=1"});
  }
  if (std::string_view(job.engine) == "io_uring") {
    words.insert(words.end(), {"--registerfiles=1"});
    if (job.fixed_buffers) words.insert(words.end(), {"--fixedbufs=1"});
  }
  if (job.seconds != 0) {
    words.insert(words.end(), {"--time_based=1", fmt::format("--runtime={}", job.seconds)});
  }
  return words;
}

Result<FioResult> parse_fio(std::string_view output, Access access) {
  const auto refusal = [](const std::string& what) {
    return make_error(ErrorCode::Invalid, "fio's output cannot be read: " + what);
  };
  const std::size_t begin = output.find('{');  // warnings may precede the JSON
  if (begin == std::string_view::npos) return refusal("no JSON in it");
  const auto json = nlohmann::json::parse(output.substr(begin), nullptr, false);
  if (!json.is_object()) return refusal("no JSON in it");
  try {
    const auto& job = json.at("jobs").at(0);
    const auto& moved = job.at(access_name(access));
    const auto& percentiles = moved.at("clat_ns").at("percentile");
    FioResult result;
    result.bytes = moved.at("io_bytes").get<std::uint64_t>();
    result.seconds = moved.at("runtime").get<double>() * 1e-3;
    result.cpu_seconds = (job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>()) / 100 *
                         job.at("job_runtime").get<double>() * 1e-3;
    result.latency_us_p50 = percentiles.at("50.000000").get<double>() * 1e-3;
    result.latency_us_p99 = percentiles.at("99.000000").get<double>() * 1e-3;
    if (result.bytes == 0 || result.seconds <= 0) return refusal("it has moved nothing");
    return result;
  } catch (const nlohmann::json::exception& error) {
    return refusal(error.what());
  }
}

Result<FioResult> run_fio(const FioJob& job, const std::atomic<int>& stop) {
  ARTESIAN_TRY(output, run_program(fio_arguments(job), job.descriptor, stop));
  if (!succeeded(output)) {
    return make_error(ErrorCode::Io, "fio failed: " + complaint(output.text));
  }
  return parse_fio(output.text, job.access);
}

}  // namespace artesian::bench
