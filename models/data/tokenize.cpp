#include "models/data/tokenize.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "models/data/python_script.h"
#include "models/data/temporary_folder.h"
#include "models/file_io.h"

extern char** environ;

namespace artesian::models {
namespace {

constexpr int interrupted_exit_code = 130;
constexpr std::string_view script_prefix = "artesian_tokenize: ";
constexpr std::string_view error_prefix = "artesian_tokenize: error: ";

/// The fault of a process, with its message.
struct Fault {
  std::string text;
  bool of_script = false;  // the script itself failed, with a Python that works
};

/// Lines of the script's stderr: progress and notes are logged, and the line that best explains a
/// failure is kept (the script's own error, else its last other line).
class Output {
 public:
  void take(std::string_view bytes) {
    for (const char c : bytes) {
      if (c == '\n') {
        finish_line();
      } else {
        line_ += c;
      }
    }
  }
  Fault fault() {
    finish_line();
    return fault_;
  }

 private:
  void finish_line() {
    if (line_.starts_with(error_prefix)) {
      fault_ = {.text = line_.substr(error_prefix.size()), .of_script = true};
    } else if (line_.starts_with(script_prefix)) {
      log(LogLevel::Info, line_);
    } else if (!line_.empty() && !fault_.of_script) {
      fault_.text = line_;
    }
    line_.clear();
  }

  std::string line_;
  Fault fault_;
};

/// Reads until the script ends. Polls `stopped` all the time, as a signal may arrive just before a
/// blocking read; once it returns true, the script is told to end.
Fault follow(int descriptor, pid_t process, const std::function<bool()>& stopped) {
  constexpr int ask_ms = 100;
  Output output;
  std::array<char, 4096> bytes;
  for (bool told = false;;) {
    if (!told && stopped && stopped()) {
      ::kill(process, SIGTERM);
      told = true;
    }
    struct pollfd readable {
      .fd = descriptor, .events = POLLIN, .revents = 0
    };
    const int ready = ::poll(&readable, 1, ask_ms);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t count = ::read(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return output.fault();
    output.take({bytes.data(), static_cast<std::size_t>(count)});
  }
}

int wait_for(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/// Starts the program with stdout and stderr redirected to `output`; the program ends when this
/// process ends. Returns errno, or 0 if it runs. (posix_spawn cannot tie the program to this
/// process.)
int spawn(std::vector<std::string> words, int output, pid_t& process) {
  std::vector<std::string> variables = script_environment();
  const std::vector<char*> arguments = pointers_to(words);
  const std::vector<char*> environment = pointers_to(variables);
  std::array<int, 2> ends{};  // closed by a successful exec; otherwise carries its errno
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno;
  const Descriptor failures(ends[0]);
  Descriptor fails(ends[1]);
  const pid_t parent = ::getpid();
  process = ::fork();
  if (process < 0) return errno;
  if (process == 0) {  // only async-signal-safe calls after a fork in a threaded process
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(interrupted_exit_code);  // the parent has already ended
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    ::execvpe(arguments[0], arguments.data(), environment.data());
    const int failure = errno;
    static_cast<void>(::write(fails.value(), &failure, sizeof failure) == sizeof failure);
    ::_exit(interrupted_exit_code);
  }
  fails.reset();
  int failure = 0;
  ssize_t count = 0;
  do {
    count = ::read(failures.value(), &failure, sizeof failure);
  } while (count < 0 && errno == EINTR);
  if (count != sizeof failure) return 0;
  static_cast<void>(wait_for(process));
  return failure;
}

/// Tells what to do. The script's messages cover its own faults, except a lack of space in our
/// folder.
std::string advice(const Fault& fault, const std::string& folder) {
  if (!fault.of_script) {
    return "; set ARTESIAN_PYTHON to a Python that has artesian_tokenize and tokenizers, or give a "
           ".bin file";
  }
  if (fault.text.find(folder) == std::string::npos) return "";
  return "; set TMPDIR to a folder with room for the token ids, or give a .bin file";
}

Result<void> run_script(const std::vector<std::string>& words, const std::string& folder,
                        const TokenizeOptions& options) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return make_error(ErrorCode::Io, "cannot make a pipe", errno);
  }
  const Descriptor from_script(ends[0]);
  Descriptor to_us(ends[1]);
  const std::string data =
      "data: " + options.inputs.front() + (options.inputs.size() == 1 ? ": " : " and others: ");
  const auto error = [&](const Fault& fault) {
    return make_error(ErrorCode::Invalid,
                      data + "cannot be tokenised: " + (fault.of_script ? "" : words[0] + ": ") +
                          fault.text + advice(fault, folder));
  };
  pid_t process = 0;
  const int failure = spawn(words, to_us.value(), process);
  to_us.reset();
  if (failure != 0) return error({.text = system_error_text(failure)});
  Fault fault = follow(from_script.value(), process, options.stopped);
  const int status = wait_for(process);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  const bool interrupted = WIFEXITED(status) && WEXITSTATUS(status) == interrupted_exit_code;
  if (interrupted || (options.stopped && options.stopped())) {
    return make_error(ErrorCode::Cancelled, data + "tokenising was interrupted");
  }
  if (fault.text.empty()) fault.text = "it ended without saying why";
  return error(fault);
}

}  // namespace

std::string tokenize_script() {
  return script_folder() + "/artesian_tokenize.py";
}

Result<std::unique_ptr<TokenSource>> tokenize_text(const TokenizeOptions& options) {
  ARTESIAN_TRY(folder, TemporaryFolder::make());
  const std::string output = folder.path() + "/tokens.bin";
  std::vector<std::string> words{
      script_python(), "-m", "artesian_tokenize", "--tokenizer", options.tokenizer_file, "--input"};
  words.insert(words.end(), options.inputs.begin(), options.inputs.end());
  words.insert(words.end(),
               {"--output", output, "--vocab-size", std::to_string(options.vocab_size)});
  if (options.text_field.has_value()) {
    words.insert(words.end(), {"--text-field", *options.text_field});
  }
  ARTESIAN_TRY_VOID(run_script(words, folder.path(), options));
  ARTESIAN_TRY(source, open_token_file(output, options.vocab_size, IdsFrom::Tokenizer));
  if (options.made) options.made(output);
  return source;
}

}  // namespace artesian::models
