// CheckpointLoad: a checkpoint that is to become the state of a training, whatever placement that
// has. Opening it compares the checkpoint with the model, before anything of the training changes;
// then it is the source that the state is filled from. It tells its own faults from the tiers'.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/result.h"
#include "zero3/checkpoint/checkpoint_reader.h"
#include "zero3/step/state_source.h"
#include "zero3/step/weights.h"

namespace artesian::zero3 {

struct LoadRequest {
  std::string directory{};
  std::string tag{};  // empty: the one in `latest`
  Strict strict = Strict::Yes;
  /// False: weights alone; moments and counts start anew, the loss scale, too.
  bool optimizer_states = true;
  float initial_squares = 0.0f;  // initial value of moments that start anew, from StepCore
  /// False: master weights are what the parameters are in the training's precision.
  bool from_fp32_weights = true;
  /// For parameters that the checkpoint left out, or, not strict, does not have. Null: these stay
  /// as they are, which a training that has no weights yet cannot.
  WeightSource* rest = nullptr;
  /// What a parameter is called elsewhere: looked for where the checkpoint does not have its name.
  OtherName other_name = nullptr;
};

/// Says what a parameter is that nothing is loaded for and that has no other source.
enum class Rest : std::uint8_t { Stays, IsMissing };

struct LoadedBuffer {
  SavedBuffer buffer{};
  std::string bytes{};
};

struct LoadedCheckpoint {
  std::string tag{};
  CheckpointManifest manifest{};
  std::map<std::string, std::string> client{};  // files of the caller's, by name
  std::vector<LoadedBuffer> buffers{};          // the modules'
  std::vector<std::string> missing{};           // the model's parameters that it did not have
  std::vector<std::string> unexpected{};        // its parameters that the model does not have
};

class CheckpointLoad final : public StateSource {
 public:
  /// The request's source must outlive it. `dtype`: of the training's parameters. Errors: those of
  /// CheckpointReader::open and match_names; Invalid: what is missing has no source; those of
  /// reading the caller's files and buffers.
  static Result<std::unique_ptr<CheckpointLoad>> open(FileSystem& files, const LoadRequest& request,
                                                      const std::vector<ParameterSpec>& parameters,
                                                      DType dtype, Rest rest);

  Result<void> read(std::uint32_t parameter, std::uint64_t first, std::span<float> master,
                    std::span<float> exp_avg, std::span<float> exp_avg_sq) noexcept override;
  bool keeps(std::uint32_t parameter) const noexcept override {
    ARTESIAN_CHECK(parameter < match_.saved.size(), parameter, match_.saved.size());
    return !match_.saved[parameter].has_value() && request_.rest == nullptr;
  }
  /// True if a read has failed: then it is not the tiers that are at fault.
  bool failed() const noexcept { return failed_; }

  /// How many updates each of the model's parameters has had; of one that stays, 0.
  std::vector<std::uint64_t> update_counts() const;
  bool optimizer_states() const noexcept { return request_.optimizer_states; }
  const CheckpointManifest& manifest() const noexcept { return reader_->manifest(); }
  /// Describes what was loaded, for the caller.
  LoadedCheckpoint loaded() const;

 private:
  CheckpointLoad(const LoadRequest& request, DType dtype) : request_(request), dtype_(dtype) {}
  Result<void> check_missing(const std::vector<ParameterSpec>& parameters) const;
  Result<void> read_client_files();
  Result<void> read_buffers();
  Result<void> read_array(std::uint32_t parameter, std::uint64_t first, std::span<float> master,
                          std::span<float> exp_avg, std::span<float> exp_avg_sq) noexcept;

  const LoadRequest request_;
  const DType dtype_;
  std::unique_ptr<CheckpointReader> reader_;
  NameMatch match_;
  std::map<std::string, std::string> client_;
  std::vector<LoadedBuffer> buffers_;
  std::atomic<bool> failed_ = false;  // set by any thread that reads
};

}  // namespace artesian::zero3
