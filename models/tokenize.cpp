#include "models/tokenize.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "models/file_io.h"

extern char** environ;

namespace artesian::models {
namespace {

constexpr int interrupted_exit_code = 130;
constexpr std::string_view script_prefix = "artesian_tokenize: ";
constexpr std::string_view error_prefix = "artesian_tokenize: error: ";

/// A folder that is removed, with all in it, when this goes.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> make() {
    std::error_code failure;
    auto base = std::filesystem::temp_directory_path(failure);
    if (failure) base = "/tmp";
    std::string path = (base / "artesian-tokens-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      return make_error(ErrorCode::Io, "cannot make a temporary folder: " + path, errno);
    }
    return TemporaryFolder(std::move(path));
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;  // what is left lies in a folder for such things
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const noexcept { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

/// Reads the script's stderr to its end: progress and notes are logged, and the line that tells
/// best why it failed is returned (its own error, else the last line that is not its own).
std::string follow_output(int descriptor) {
  std::string fault;
  std::string line;
  const auto finish_line = [&] {
    if (line.starts_with(error_prefix)) {
      fault = line.substr(error_prefix.size());
    } else if (line.starts_with(script_prefix)) {
      log(LogLevel::Info, line);
    } else if (!line.empty()) {
      fault = line;
    }
    line.clear();
  };
  std::array<char, 4096> bytes;
  for (;;) {
    const ssize_t count = ::read(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    for (const char c : std::string_view(bytes.data(), static_cast<std::size_t>(count))) {
      if (c == '\n') {
        finish_line();
      } else {
        line += c;
      }
    }
  }
  finish_line();
  return fault;
}

/// The Python to run: a file that exists, or a name to look for on PATH.
std::string choose_python() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here changes the environment
  const char* given = std::getenv("ARTESIAN_PYTHON");
  if (given != nullptr && *given != '\0') return given;
  const std::string built_with = ARTESIAN_PYTHON_DEFAULT;
  return !built_with.empty() && ::access(built_with.c_str(), X_OK) == 0 ? built_with : "python3";
}

/// The folder of the script: beside an installed program, else in the tree that it was built from.
std::string script_folder() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto installed = program.parent_path().parent_path() / "share/artesian/python";
  if (std::filesystem::exists(installed / "artesian_tokenize.py", ignored)) return installed;
  return ARTESIAN_SCRIPTS;
}

/// Our environment, with the folder of the script at the end of PYTHONPATH.
std::vector<std::string> script_environment() {
  constexpr std::string_view name = "PYTHONPATH=";
  std::vector<std::string> variables;
  std::string path(name);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!text.starts_with(name)) {
      variables.emplace_back(text);
    } else if (text.size() > name.size()) {
      path = std::string(text) + ":";
    }
  }
  variables.push_back(path + script_folder());
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Starts the program with stdout and stderr going into `output`. Returns errno, 0 if it runs.
int spawn(std::vector<std::string> words, int output, pid_t& process) {
  std::vector<std::string> variables = script_environment();
  const std::vector<char*> arguments = pointers_to(words);
  const std::vector<char*> environment = pointers_to(variables);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
  const int failure = ::posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(),
                                     environment.data());
  posix_spawn_file_actions_destroy(&actions);
  return failure;
}

int wait_for(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

Result<void> run_script(const std::vector<std::string>& words, const std::string& input) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return make_error(ErrorCode::Io, "cannot make a pipe", errno);
  }
  const Descriptor from_script(ends[0]);
  Descriptor to_us(ends[1]);
  const auto fault = [&](const std::string& text) {
    return make_error(ErrorCode::Invalid,
                      "data: " + input + ": cannot be tokenised: " + text +
                          "; set ARTESIAN_PYTHON to a " +
                          "Python that has artesian_tokenize and tokenizers, or give a .bin file");
  };
  pid_t process = 0;
  const int failure = spawn(words, to_us.value(), process);
  to_us.reset();
  if (failure != 0) return fault(words[0] + ": " + system_error_text(failure));
  const std::string last_line = follow_output(from_script.value());
  const int status = wait_for(process);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == interrupted_exit_code) {
    return make_error(ErrorCode::Cancelled, "data: " + input + ": tokenising was interrupted");
  }
  if (!last_line.empty()) return fault(words[0] + ": " + last_line);
  return fault(words[0] + " ended without saying why");
}

}  // namespace

Result<std::unique_ptr<TokenSource>> tokenize_text(const TokenizeOptions& options) {
  ARTESIAN_TRY(folder, TemporaryFolder::make());
  const std::string output = folder.path() + "/tokens.bin";
  ARTESIAN_TRY_VOID(run_script(
      {choose_python(), "-m", "artesian_tokenize", "--tokenizer", options.tokenizer_file, "--input",
       options.input, "--output", output, "--vocab-size", std::to_string(options.vocab_size)},
      options.input));
  return open_token_file(output, options.vocab_size);
}

}  // namespace artesian::models
