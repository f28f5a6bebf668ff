#include "tools/train/save_model.h"

#include <span>

namespace artesian::tools {

Result<models::CheckpointWriter> prepare_save(const zero3::Config& config,
                                              const models::ModelConfig& model_config,
                                              SaveOptions options) {
  std::vector<models::TensorDeclaration> tensors;
  for (const zero3::ParameterSpec& parameter : models::model_parameters(model_config)) {
    tensors.push_back({models::saved_name(model_config, parameter.name), parameter.shape});
  }
  return models::CheckpointWriter::create(
      {.target = std::move(options.target),
       .files = std::move(options.files),
       .dtype = options.fp32 ? DType::Float32 : config.param_dtype},
      std::move(tensors));
}

Result<void> save_model(zero3::Engine& engine, const models::ModelConfig& model_config,
                        models::CheckpointWriter* writer) {
  const std::size_t parameters = models::model_parameters(model_config).size();
  for (std::uint32_t parameter = 0; parameter < parameters; ++parameter) {
    const auto append = [&](std::span<const float> piece) -> Result<void> {
      if (writer == nullptr) return {};
      // The parameter is the rounded master weight: the same bits as in its home.
      return writer->append_rounded(parameter, piece);
    };
    ARTESIAN_TRY_VOID(engine.read_master(parameter, append));
  }
  return writer == nullptr ? Result<void>() : writer->commit();
}

}  // namespace artesian::tools
