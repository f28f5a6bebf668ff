#include "tools/train/trackers.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "models/data/python_script.h"

namespace artesian::tools {
namespace {

constexpr int pipe_bytes = 1 << 20;  // room for thousands of steps
constexpr std::chrono::seconds end_deadline{60};

nlohmann::json sections_of(const zero3::Config& config) {
  nlohmann::json sections;
  for (const zero3::TrackerConfig& tracker : config.trackers) {
    sections[tracker.name] = tracker.options;
  }
  return sections;
}

}  // namespace

Trackers::Trackers(const zero3::Config& config) {
  if (!config.trackers.empty()) start(config);
}

void Trackers::start(const zero3::Config& config) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return give_up(system_error_text(errno));
  const Descriptor theirs(ends[0]);
  lines_ = Descriptor(ends[1]);
  static_cast<void>(::fcntl(lines_.value(), F_SETPIPE_SZ, pipe_bytes));
  static_cast<void>(::fcntl(lines_.value(), F_SETFL, O_NONBLOCK));
  std::vector<std::string> words{
      models::script_python(), models::script_folder() + "/artesian/trackers.py",
      sections_of(config).dump(), std::to_string(config.train_batch_size)};
  std::vector<std::string> variables = models::script_environment();
  posix_spawn_file_actions_t actions{};
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.value(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  // A separate process group, so that the terminal's signals do not end it before our last line.
  posix_spawnattr_t attributes{};
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int failure =
      ::posix_spawnp(&process_, words[0].c_str(), &actions, &attributes,
                     models::pointers_to(words).data(), models::pointers_to(variables).data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failure == 0) return;
  process_ = -1;
  give_up(words[0] + ": " + system_error_text(failure) + "; set ARTESIAN_PYTHON to a Python");
}

void Trackers::give_up(const std::string& reason) {
  lines_.reset();
  log(LogLevel::Warning, "trackers: no figures are sent from here on: " + reason);
}

void Trackers::write(const zero3::StepResult& result, const std::optional<double>& held_out_loss) {
  if (lines_.value() < 0) return;
  nlohmann::json line{{"step", result.step},
                      {"loss", result.loss},
                      {"lr", result.lr},
                      {"loss_scale", result.loss_scale},
                      {"grad_norm", result.grad_norm},
                      {"step_s", result.step_s}};
  if (held_out_loss.has_value()) line["eval_loss"] = *held_out_loss;
  // Less than PIPE_BUF, so that it is written completely or not at all.
  const std::string text = line.dump() + '\n';
  if (::write(lines_.value(), text.data(), text.size()) >= 0) return;
  if (errno != EAGAIN && errno != EINTR) return give_up("the process has ended");
  if (is_behind_) return;
  is_behind_ = true;
  log(LogLevel::Warning,
      "trackers: they take figures more slowly than steps come; some are left out");
}

void Trackers::close() {
  if (process_ < 0) return;
  const bool gave_up = lines_.value() < 0;
  lines_.reset();
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + end_deadline;
  while (::waitpid(process_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      log(LogLevel::Warning, "trackers: they have not ended within a minute, and are killed");
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  process_ = -1;
  if (status != 0 && !gave_up) give_up("the process has failed");
}

}  // namespace artesian::tools
