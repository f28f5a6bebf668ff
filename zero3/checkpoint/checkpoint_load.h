// CheckpointLoad: a checkpoint that is loaded as the state of a training with any placement.
// Opening compares the checkpoint with the model, before the training changes; the object is then
// the source from which the state is filled. It distinguishes its own faults from those of the
// tiers.
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
  std::string tag{};  // empty: the tag in `latest`
  Strict strict = Strict::Yes;
  /// False: loads only weights; moments, counts and the loss scale start anew.
  bool optimizer_states = true;
  float initial_squares = 0.0f;  // initial value, from StepCore, of squares that start anew
  /// False: master weights are set from the parameters in the training's precision.
  bool from_fp32_weights = true;
  /// Source for parameters that the checkpoint excluded or, if not strict, lacks. Null: these keep
  /// their values, which is impossible in a training without weights.
  WeightSource* rest = nullptr;
  /// Another name of a parameter, used if the checkpoint does not have its own name.
  OtherName other_name = nullptr;
};

/// What happens to a parameter that is not loaded and has no other source.
enum class Rest : std::uint8_t { Stays, IsMissing };

struct LoadedBuffer {
  SavedBuffer buffer{};
  std::string bytes{};
};

struct LoadedCheckpoint {
  std::string tag{};
  CheckpointManifest manifest{};
  std::map<std::string, std::string> client{};  // files of the caller's, by name
  std::vector<LoadedBuffer> buffers{};          // the modules' buffers
  std::vector<std::string> missing{};           // parameters of the model that the checkpoint lacks
  std::vector<std::string> unexpected{};        // parameters of the checkpoint that the model lacks
};

class CheckpointLoad final : public StateSource {
 public:
  /// The request's source must outlive it. `dtype`: of the training's parameters. Errors: those of
  /// CheckpointReader::open and match_names; Invalid: a missing parameter has no source; those of
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
  /// True if a read from the checkpoint has failed, so that the tiers are not at fault.
  bool failed() const noexcept { return failed_; }

  /// Number of updates of each of the model's parameters; 0 for one that is not loaded.
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
