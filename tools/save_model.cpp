#include "tools/save_model.h"

#include <span>

#include "kernels/cast.h"

namespace artesian::tools {

std::uint64_t save_size(const zero3::Config& config,
                        const std::vector<zero3::ParameterSpec>& parameters, bool fp32) {
  std::uint64_t elements = 0;
  for (const zero3::ParameterSpec& parameter : parameters) elements += parameter.numel();
  return elements * dtype_size(fp32 ? DType::Float32 : config.param_dtype);
}

Result<void> save_model(zero3::Engine& engine, const models::ModelConfig& model_config,
                        const std::vector<zero3::ParameterSpec>& parameters, SaveOptions options) {
  const DType dtype = options.fp32 ? DType::Float32 : engine.config().param_dtype;
  std::vector<models::TensorDeclaration> tensors;
  tensors.reserve(parameters.size());
  for (const zero3::ParameterSpec& parameter : parameters) {
    tensors.push_back({models::saved_name(model_config, parameter.name), parameter.shape});
  }
  ARTESIAN_TRY(writer, models::CheckpointWriter::create({.target = std::move(options.target),
                                                         .files = std::move(options.files),
                                                         .dtype = dtype},
                                                        std::move(tensors)));
  std::vector<std::uint16_t> narrowed;
  for (std::uint32_t parameter = 0; parameter < parameters.size(); ++parameter) {
    const auto append = [&](std::span<const float> piece) -> Result<void> {
      if (dtype == DType::Float32) return writer.append(parameter, std::as_bytes(piece));
      // The parameter is its master weight rounded: the same bits as in its home tier.
      narrowed.resize(piece.size());
      static_cast<void>(kernels::narrow(piece.data(), narrowed.data(), dtype, piece.size()));
      return writer.append(parameter, std::as_bytes(std::span(narrowed)));
    };
    ARTESIAN_TRY_VOID(engine.read_master(parameter, append));
  }
  return writer.commit();
}

}  // namespace artesian::tools
