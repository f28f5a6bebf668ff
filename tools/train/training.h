// What every program of ours that trains does in the same way.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "tools/shell/process_setup.h"
#include "zero3/config/config.h"
#include "zero3/step/weights.h"

namespace artesian::tools {

/// The same error with the config key of the directory that it is about.
Error naming_directory(const zero3::Config& config, Error error);

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

}  // namespace artesian::tools
