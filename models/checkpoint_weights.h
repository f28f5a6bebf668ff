// Initial weights from the safetensors of a Hugging Face directory: reads any slice of any
// parameter at any time, so that no parameter is ever complete in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model_config.h"
#include "models/safetensors.h"
#include "zero3/step/weights.h"

namespace artesian::models {

/// True if the directory holds model.safetensors or model.safetensors.index.json.
bool has_checkpoint(const std::string& directory);

/// Refuses a directory that has weights but no usable checkpoint (another format, shards without
/// their index, a broken link), so that nobody trains from random weights by mistake. Errors:
/// Invalid, naming the file; Io if the directory cannot be listed.
Result<void> check_no_other_weights(const std::string& directory);

class CheckpointWeights final : public zero3::WeightSource {
 public:
  /// Opens all files and matches their tensors with the model's parameters. Names may have the
  /// prefix of the class with the head. A tied weight may have the name of the embedding or of the
  /// head; if both exist, they are compared. Errors: Io; Corrupt; Invalid: tensors that are
  /// missing, superfluous, of another shape or not floating point, one line per kind of fault; a
  /// tied head that differs.
  static Result<CheckpointWeights> open(const std::string& directory, const ModelConfig& config);

  Result<void> read(std::uint32_t parameter, std::uint64_t first,
                    std::span<float> target) noexcept override;

 private:
  struct Source {
    std::size_t file;
    const SafetensorsTensor* tensor;  // points into files_[file], whose list does not move
  };
  CheckpointWeights(std::vector<SafetensorsFile> files, std::vector<Source> sources)
      : files_(std::move(files)), sources_(std::move(sources)) {}

  struct Matched {
    std::vector<Source> sources;  // one for each parameter
    Source second{0, nullptr};    // for a tied weight stored under both names: the head's tensor
    std::uint32_t embedding = 0;  // the parameter that `second` must equal
  };
  static Result<Matched> match(const std::vector<SafetensorsFile>& files, const ModelConfig& config,
                               const std::string& directory);
  Result<void> check_tied(const Matched& matched, const std::string& directory);

  std::vector<SafetensorsFile> files_;
  std::vector<Source> sources_;  // one for each parameter
};

}  // namespace artesian::models
