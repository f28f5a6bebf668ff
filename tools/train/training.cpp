#include "tools/train/training.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/log.h"
#include "tools/shell/report_error.h"

namespace artesian::tools {

Result<void> check_open_files() {
  constexpr std::size_t spare_files = 32;  // for the engine, data and a checkpoint
  std::vector<int> opened;
  while (opened.size() < spare_files) {
    const int descriptor = ::open("/", O_PATH | O_CLOEXEC);
    if (descriptor < 0) break;
    opened.push_back(descriptor);
  }
  const std::size_t count = opened.size();
  for (const int descriptor : opened) ::close(descriptor);
  if (count == spare_files) return {};
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return make_error(ErrorCode::Exhausted,
                    fmt::format("open files: got a limit of {}, of which {} are left, allowed at "
                                "least {} left; raise it: ulimit -n 1024",
                                limit.rlim_cur, count, spare_files));
}

Error naming_directory(const zero3::Config& config, Error error) {
  const zero3::ZeroConfig& zero = config.zero;
  for (const auto& [key, section] :
       {std::pair{"zero_optimization.offload_param.nvme_path", &zero.offload_param},
        std::pair{"zero_optimization.offload_optimizer.nvme_path", &zero.offload_optimizer}}) {
    if (section->device != zero3::Offload::Nvme) continue;
    for (std::string path : section->nvme_paths) {
      while (path.size() > 1 && path.back() == '/') path.pop_back();
      if (error.file != path && !error.file.starts_with(path + "/")) continue;
      return naming(key, std::move(error));
    }
  }
  return error;
}

namespace {

constexpr std::size_t names_shown_max = 3;

/// The bits of the largest float that rounds to a finite number of the dtype; the bits of
/// non-negative floats are ordered like the numbers.
std::uint32_t largest_bits(DType dtype) {
  if (dtype == DType::Float16) return std::bit_cast<std::uint32_t>(65519.996f);  // rounds to 65504
  if (dtype == DType::BFloat16) return 0x7f7f7fffu;  // the next float rounds to infinity
  return 0x7f7fffffu;
}

std::uint32_t magnitude(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}

}  // namespace

FiniteWeights::FiniteWeights(std::unique_ptr<zero3::WeightSource> source,
                             std::vector<std::string> names, std::string whose, DType dtype)
    : source_(std::move(source)),
      names_(std::move(names)),
      whose_(std::move(whose)),
      dtype_(dtype) {}

Result<void> FiniteWeights::read(std::uint32_t parameter, std::uint64_t first,
                                 std::span<float> target) noexcept {
  ARTESIAN_TRY_VOID(source_->read(parameter, first, target));
  const std::uint32_t allowed = largest_bits(dtype_);
  std::uint32_t largest = 0;  // a loop without early exit, which the compiler vectorizes
  for (const float value : target) largest = std::max(largest, magnitude(value));
  if (largest <= allowed) return {};
  const std::lock_guard lock(mutex_);
  if (!found_.insert(names_[parameter]).second || found_.size() > names_shown_max) return {};
  const auto bad = std::find_if(target.begin(), target.end(),
                                [&](float value) { return magnitude(value) > allowed; });
  const auto element = first + static_cast<std::uint64_t>(bad - target.begin());
  const std::string number = std::isnan(*bad) ? "nan" : std::to_string(*bad);
  log(LogLevel::Warning,
      fmt::format("{}: {}: element {}: got {}{}; losses will hardly be finite", whose_,
                  names_[parameter], element, number,
                  std::isfinite(*bad) ? std::string(", above the largest ") + dtype_name(dtype_)
                                      : ", which is not finite"));
  return {};
}

std::set<std::string> FiniteWeights::found() const {
  const std::lock_guard lock(mutex_);
  return found_;
}

std::string FiniteWeights::list(const std::set<std::string>& names) {
  std::string text;
  std::size_t shown = 0;
  for (const std::string& name : names) {
    if (shown++ == names_shown_max) {
      return fmt::format("{} and {} more", text, names.size() - names_shown_max);
    }
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

Result<void> fill(models::TokenData& data, std::uint64_t first, std::uint64_t samples,
                  zero3::TokenBatch& batch) {
  const std::size_t length = batch.ids().size() / samples;
  for (std::uint64_t sample = 0; sample < samples; ++sample) {
    ARTESIAN_TRY_VOID(data.sample(first + sample, batch.ids().subspan(sample * length, length),
                                  batch.targets().subspan(sample * length, length)));
  }
  return {};
}

}  // namespace artesian::tools
