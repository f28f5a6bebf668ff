// What decoder configurations have in common, without tensors: building the list of parameters and
// the stages, and the keys with the same meaning in each.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "models/config_reader.h"
#include "zero3/plan/model_shape.h"

namespace artesian::models {

// Bounds far above any model, low enough that no product of two overflows.
constexpr IntegerRange width_range{1, std::int64_t{1} << 24};
constexpr IntegerRange vocabulary_range{1, std::int64_t{1} << 30};
constexpr IntegerRange layer_range{1, 100000};

/// Dropout is not implemented: valid probabilities under these keys are set to 0, with one note.
void read_dropout(ConfigReader& reader, std::initializer_list<const char*> names, double absent);

/// Reads the keys, common to all models, that would change results but are not implemented, and
/// those that have no effect.
void read_common_keys(ConfigReader& reader);

class ParameterList {
 public:
  /// Shape: [rows, columns], normal with this deviation around 0.
  void matrix(std::string name, std::int64_t rows, std::int64_t columns, double deviation);
  void zeros(std::string name, std::int64_t count);
  void ones(std::string name, std::int64_t count);
  /// Row `row` of the matrix listed last starts as zeros.
  void zero_row(std::int64_t row);
  /// The matrix listed last is the head's, which works on it in tiles (linear_cross_entropy.h).
  void tiled();
  std::vector<zero3::ParameterSpec> take() { return std::move(specs_); }

 private:
  void add(std::string name, std::vector<std::int64_t> shape, zero3::Initial initial,
           double deviation);

  std::vector<zero3::ParameterSpec> specs_;
};

/// How the list of parameters is divided into stages: first the embedding's, beginning with its
/// look-up table; then each block's; then the head's; last the head's table, unless it is tied.
struct DecoderShape {
  std::uint32_t embedding_parameters = 1;
  std::string block_prefix;  // "h.": the blocks are named "h.0", "h.1" ...
  std::int64_t blocks = 0;
  std::uint32_t block_parameters = 0;
  std::uint32_t head_parameters = 0;  // without the head's table
  bool tied = false;
};

/// "embed", the blocks, "head": the parameters of stage k follow those of stage k - 1; a tied head
/// also uses the look-up table.
std::vector<zero3::StageSpec> decoder_stages(const DecoderShape& shape);

}  // namespace artesian::models
