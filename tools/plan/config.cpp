#include "tools/plan/config.h"

#include <optional>
#include <vector>

#include "models/file_io.h"
#include "zero3/config/settings.h"
#include "zero3/step/config_file.h"

namespace artesian::tools {
namespace {

constexpr std::uint64_t any_steps = 1000;         // no planned figure depends on the learning rate
constexpr std::uint64_t file_size_max = 1 << 20;  // the limit of read_json()

/// The config's keys as written; nothing if it is unreadable, which zero3::read_config reports.
std::optional<zero3::Settings> settings_of(const std::string& path) {
  const auto file = models::InputFile::open(path);
  if (!file.has_value() || file->size() > file_size_max) return std::nullopt;
  std::string text(file->size(), '\0');
  if (!file->read_at(text.data(), text.size(), 0).has_value()) return std::nullopt;
  const auto root = zero3::read_json(text, path);
  if (!root.has_value()) return std::nullopt;
  zero3::Faults faults;
  std::vector<std::string> notes;
  return zero3::Settings(*root, zero3::UnknownKeys::AreFaults, faults, notes);
}

/// "auto" gets the value that Hugging Face's trainer would set.
DeepSpeedBuckets buckets_of(const zero3::Settings& settings, std::uint64_t hidden) {
  DeepSpeedBuckets buckets;
  buckets.overlap_comm = settings.boolean("zero_optimization.overlap_comm");
  const char* reduce = "zero_optimization.reduce_bucket_size";
  buckets.reduce_bucket_size =
      settings.automatic(reduce) ? hidden * hidden : settings.integer(reduce);
  buckets.allgather_bucket_size = settings.integer("zero_optimization.allgather_bucket_size");
  return buckets;
}

}  // namespace

Result<PlanConfig> read_plan_config(const std::string& path, zero3::ConfigArguments arguments) {
  const auto settings = settings_of(path);
  if (settings.has_value() && !settings->given("scheduler.params.total_num_steps")) {
    arguments.steps = any_steps;
  }
  PlanConfig read;
  ARTESIAN_TRY(config, zero3::read_config(path, arguments));
  read.config = std::move(config);
  if (settings.has_value()) {
    read.buckets = buckets_of(*settings, arguments.hidden_size.value_or(0));
    read.grad_accum_dtype_given = settings->given("data_types.grad_accum_dtype");
  }
  return read;
}

}  // namespace artesian::tools
