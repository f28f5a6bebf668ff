// What the Python tests drive: our reader and writer from the command line.
//     checkpoint_tool check                    reads paths from stdin; prints "ok" or the error for
//     each checkpoint_tool rewrite SOURCE TARGET fp32|fp16|bf16 SHARD_SIZE_MAX [SEED]
//         reads a Hugging Face directory (or random weights of SEED) and writes another one
#include <array>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "models/checkpoint_weights.h"
#include "models/checkpoint_writer.h"

namespace artesian::models {
namespace {

int check() {
  for (std::string path; std::getline(std::cin, path);) {
    const auto opened = SafetensorsFile::open(path);
    std::puts(opened.has_value() ? "ok" : opened.error().to_string().c_str());
  }
  return 0;
}

Result<void> append_piece(CheckpointWriter& writer, std::size_t tensor,
                          std::span<const float> values, DType dtype) {
  if (dtype == DType::Float32) return writer.append(tensor, std::as_bytes(values));
  std::vector<std::uint16_t> narrow;
  for (const float value : values) {
    narrow.push_back(dtype == DType::Float16 ? float_to_fp16(value) : float_to_bf16(value));
  }
  return writer.append(tensor, std::as_bytes(std::span(narrow)));
}

Result<void> rewrite(const std::string& source, CheckpointWriterOptions options, const char* seed) {
  ARTESIAN_TRY(config, read_model_config(source));
  const auto parameters = model_parameters(config);
  std::unique_ptr<zero3::WeightSource> weights;
  if (seed != nullptr) {
    weights = std::make_unique<zero3::RandomWeights>(parameters, std::stoull(seed));
  } else {
    ARTESIAN_TRY(checkpoint, CheckpointWeights::open(source, config));
    weights = std::make_unique<CheckpointWeights>(std::move(checkpoint));
  }
  std::vector<TensorDeclaration> declared;
  for (const auto& parameter : parameters) {
    declared.push_back({saved_name(config, parameter.name), parameter.shape});
  }
  ARTESIAN_TRY(files, read_model_files(source));
  options.files = std::move(files);
  ARTESIAN_TRY(writer, CheckpointWriter::create(options, std::move(declared)));
  std::array<float, 1000> piece;
  for (std::uint32_t i = 0; i < parameters.size(); ++i) {
    for (std::uint64_t first = 0; first < parameters[i].numel(); first += piece.size()) {
      const auto count = std::min<std::uint64_t>(piece.size(), parameters[i].numel() - first);
      const std::span<float> values(piece.data(), count);
      ARTESIAN_TRY_VOID(weights->read(i, first, values));
      ARTESIAN_TRY_VOID(append_piece(writer, i, values, options.dtype));
    }
  }
  return writer.commit();
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[1] == "check") return check();
  if (arguments.size() < 6 || arguments[1] != "rewrite") return 2;
  const std::string& name = arguments[4];
  const DType dtype = name == "fp32"   ? DType::Float32
                      : name == "fp16" ? DType::Float16
                                       : DType::BFloat16;
  const CheckpointWriterOptions options{.target = arguments[3],
                                        .files = {},
                                        .dtype = dtype,
                                        .shard_size_max = std::stoull(arguments[5])};
  const char* seed = arguments.size() > 6 ? arguments[6].c_str() : nullptr;
  const auto done = rewrite(arguments[2], options, seed);
  if (done.has_value()) return 0;
  std::fprintf(stderr, "%s\n", done.error().to_string().c_str());
  return 1;
}

}  // namespace
}  // namespace artesian::models

int main(int count, char** arguments) {
  return artesian::models::run({arguments, arguments + count});
}
