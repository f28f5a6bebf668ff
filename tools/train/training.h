// What all our training programs do in the same way.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "models/data/token_data.h"
#include "tools/shell/process_setup.h"
#include "zero3/config/config.h"
#include "zero3/step/weights.h"
#include "zero3/torch/token_batch.h"

namespace artesian::tools {

/// Returns the error with the config key of the directory that it is about.
Error naming_directory(const zero3::Config& config, Error error);

/// Checks that enough files can be opened for a run and its checkpoints. Errors: Exhausted.
Result<void> check_open_files();

/// Checks weights, while they are read, for values that are not finite, or not finite in the
/// parameters' dtype, and logs once for each tensor where the first one is.
class FiniteWeights final : public zero3::WeightSource {
 public:
  /// `names`: by parameter. `whose`: source of the weights, for the log.
  FiniteWeights(std::unique_ptr<zero3::WeightSource> source, std::vector<std::string> names,
                std::string whose, DType dtype);
  Result<void> read(std::uint32_t parameter, std::uint64_t first,
                    std::span<float> target) noexcept override;
  /// Lists the first few tensors found so far, separated by ", "; empty if there are none.
  static std::string list(const std::set<std::string>& names);
  std::set<std::string> found() const;

 private:
  const std::unique_ptr<zero3::WeightSource> source_;
  const std::vector<std::string> names_;
  const std::string whose_;
  const DType dtype_;
  mutable std::mutex mutex_;  // several threads read
  std::set<std::string> found_;
};

/// Ends initialisation when the user asks to stop.
class StoppableWeights final : public zero3::WeightSource {
 public:
  explicit StoppableWeights(std::unique_ptr<zero3::WeightSource> source)
      : source_(std::move(source)) {}
  Result<void> read(std::uint32_t parameter, std::uint64_t first,
                    std::span<float> target) noexcept override {
    if (stop_requested() != 0) return make_error(ErrorCode::Cancelled, "stopped by a signal");
    return source_->read(parameter, first, target);
  }

 private:
  std::unique_ptr<zero3::WeightSource> source_;
};

/// Fills a batch with this many samples, beginning at number `first`. Errors: Io, Corrupt.
Result<void> fill(models::TokenData& data, std::uint64_t first, std::uint64_t samples,
                  zero3::TokenBatch& batch);

}  // namespace artesian::tools
