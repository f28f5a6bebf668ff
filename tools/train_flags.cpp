#include "tools/train_flags.h"

#include <charconv>
#include <cmath>

#include "zero3/compute_device.h"
#include "zero3/config_faults.h"

namespace artesian::tools {
namespace {

// Far above any run, and low enough that products of two stay within 64 bits.
constexpr std::uint64_t count_max = 1'000'000'000;

/// The whole text as a number of type T, or nothing.
template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

class Reader {
 public:
  explicit Reader(const CLI::App& app) : app_(app) {}

  bool given(const char* flag) const { return app_.get_option(flag)->count() != 0; }
  bool has_faults() const { return !faults_.empty(); }
  Error error() const { return faults_.to_error(); }
  void unsupported(const std::string& what) { faults_.unsupported(what); }
  void refuse(const std::string& flag, const std::string& got, const std::string& rest) {
    faults_.invalid(flag + ": got " + got + ", allowed " + rest);
  }
  void refuse_text(const char* flag, const std::string& rest) {
    refuse(flag, '"' + text(flag) + '"', rest);
  }

  std::string text(const char* flag) const {
    return given(flag) ? app_.get_option(flag)->results().front() : std::string();
  }

  void expect_single_values() {
    for (const CLI::Option* option : app_.get_options()) {
      if (option->get_items_expected_max() == 0 || option->count() < 2) continue;
      refuse(option->get_name(), std::to_string(option->count()) + " values",
             "one; drop the others");
    }
  }

  std::string path(const char* flag) {
    std::string value = text(flag);
    if (given(flag) && value.empty()) refuse_text(flag, "a path; write one, or drop the flag");
    return value;
  }

  std::string required_path(const char* flag, const std::string& fix) {
    if (!given(flag)) refuse(flag, "nothing", "a path; " + fix);
    return path(flag);
  }

  std::optional<std::uint64_t> count(const char* flag) {
    if (!given(flag)) return std::nullopt;
    const auto value = parse_number<std::uint64_t>(text(flag));
    if (value.has_value() && *value >= 1 && *value <= count_max) return value;
    const bool large = value.has_value() && *value > count_max;
    refuse_text(flag, large
                          ? "a whole number of at most " + std::to_string(count_max) + "; lower it"
                          : std::string("a whole number of at least 1; write one such as 10"));
    return std::nullopt;
  }

  std::uint64_t seed(const char* flag) {
    if (!given(flag)) return 0;
    const auto value = parse_number<std::uint64_t>(text(flag));
    if (!value.has_value()) {
      refuse_text(flag, "a whole number from 0 to 18446744073709551615; write one such as 1");
    }
    return value.value_or(0);
  }

  std::optional<double> rate(const char* flag) {
    if (!given(flag)) return std::nullopt;
    const auto value = parse_number<double>(text(flag));
    if (value.has_value() && std::isfinite(*value) && *value >= 0) return value;
    refuse_text(flag, "a number of at least 0; write one such as 1e-4");
    return std::nullopt;
  }

  /// Whether the second of two words was given; the first is the default.
  bool second_word(const char* flag, const std::string& first, const std::string& second) {
    const std::string value = text(flag);
    if (given(flag) && value != first && value != second) {
      refuse_text(flag, first + " or " + second + "; write one of them");
    }
    return value == second;
  }

 private:
  const CLI::App& app_;
  zero3::Faults faults_;
};

void check_later_flags(Reader& reader) {
  for (const char* later : {"--resume", "--checkpoint-every"}) {
    if (reader.given(later)) reader.unsupported(later);
  }
}

/// Whether the GPU is there shows later; the word, now.
std::string read_device(Reader& reader) {
  if (!reader.given("--device")) return "cpu";
  std::string device = reader.text("--device");
  if (!zero3::device_index(device).has_value()) {
    reader.refuse_text("--device", "cpu, cuda or cuda:i; write one of them");
  }
  return device;
}

}  // namespace

void add_train_flags(CLI::App& train) {
  const auto value = [&](const char* flag, const char* type, const std::string& description) {
    train.add_option(flag, description)
        ->type_name(type)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);  // counted when they are read
  };
  const auto flag = [&](const char* name, const std::string& description) {
    train.add_flag(name, description)->disable_flag_override();
  };
  value("--model", "DIR", "Hugging Face directory: config.json, optionally weights and tokenizer");
  value("--data", "PATH", "Token ids (.bin), or a text file or folder");
  value("--config", "FILE", "DeepSpeed JSON config");
  value("--steps", "N", "Optimizer steps");
  value("--epochs", "N", "Passes over the data (default: 1)");
  value("--seq-len", "L", "Tokens of a sample (default: the model's positions, at most 1024)");
  value("--seed", "S", "Seed of weights and sample order (default: 0)");
  value("--order", "WORD", "Sample order: shuffled (default) or sequential");
  value("--device", "WORD", "cpu (default), cuda or cuda:i: the first or another visible GPU");
  flag("--init", "Random weights, also where the directory has some");
  value("--micro-batch", "N", "Samples of one forward");
  value("--accumulation", "N", "Micro-batches of one step");
  value("--lr", "X", "Learning rate");
  value("--save", "DIR", "Write a Hugging Face directory at the end");
  value("--save-dtype", "WORD", "model (default: the training precision) or fp32");
  value("--log-jsonl", "FILE", "One JSON object per step");
  value("--trace", "FILE", "Timeline for Perfetto");
  flag("--quiet", "No notes, no progress, no end table");
  // Of a later release: refused by name.
  for (const char* later : {"--resume", "--checkpoint-every"}) {
    train.add_option(later)->group("");
  }
}

Result<TrainOptions> read_train_flags(const CLI::App& train) {
  Reader reader(train);
  TrainOptions options;
  check_later_flags(reader);
  reader.expect_single_values();
  options.model = reader.required_path("--model", "name the folder of config.json");
  options.data = reader.required_path("--data", "name a text or .bin file, or a folder of text");
  options.config = reader.required_path("--config", "name a DeepSpeed JSON file");
  options.steps = reader.count("--steps");
  options.epochs = reader.count("--epochs");
  if (reader.given("--steps") && reader.given("--epochs")) {
    reader.refuse("--epochs", "both --steps and --epochs", "one of them; drop one");
  }
  options.length = reader.count("--seq-len");
  options.seed = reader.seed("--seed");
  options.shuffled = !reader.second_word("--order", "shuffled", "sequential");
  options.device = read_device(reader);
  options.random_weights = reader.given("--init");
  options.micro_batch = reader.count("--micro-batch");
  options.accumulation = reader.count("--accumulation");
  options.lr = reader.rate("--lr");
  options.save = reader.path("--save");
  while (options.save.size() > 1 && options.save.back() == '/') options.save.pop_back();
  options.save_fp32 = reader.second_word("--save-dtype", "model", "fp32");
  options.log_jsonl = reader.path("--log-jsonl");
  options.trace = reader.path("--trace");
  if (!options.trace.empty() && options.trace == options.log_jsonl) {
    reader.refuse("--trace", "the file of --log-jsonl", "another one; rename one of them");
  }
  options.quiet = reader.given("--quiet");
  if (reader.has_faults()) return reader.error();
  return options;
}

}  // namespace artesian::tools
