// Layout: which parameters form a unit, and where each lies in the unit's image.
//
// A unit is a set of parameters that are gathered and released together. Its image is one flat
// array of elements: the parameter shard, the gradient, the master weights and both moments share
// its indexing, so every transfer is one contiguous range. Each parameter starts at a multiple of
// 2048 elements. So its leaves of the norm (Gradients) do not depend on which other parameters are
// in its unit, which changes with persistence. Padding elements are and stay zero: Adam's update of
// a zero weight by a zero gradient is zero.
//
// Note [Shares]: an image consists of one equal, contiguous share per rank, each a multiple of 2048
// elements (4 KiB in 16 bit: no two sub-groups share a sector). So one in-place all-gather collects
// a unit. The number of ranks does not change where parameters lie, only the padding at the image's
// end. An element has an index in the image, the same for all ranks, and an index in its share;
// names begin with `image_` or `share_` if both occur. With one rank both are the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero3/plan/model_shape.h"

namespace artesian::zero3 {

constexpr std::uint64_t parameter_alignment = 2048;  // elements
// elements; alignment of a share and so of an image
constexpr std::uint64_t image_alignment = 2048;

/// The place of a parameter: elements [first, first + numel) of the unit's image.
struct ParameterPlace {
  std::uint32_t unit = 0;
  std::uint64_t first = 0;
  std::uint64_t numel = 0;
  std::uint32_t group = 0;  // as ParameterSpec::group
};

struct Unit {
  std::string name;
  std::vector<std::uint32_t> parameters;  // indices of parameters, in image order
  std::uint64_t numel = 0;                // elements of its parameters
  std::uint64_t share = 0;                // elements of one rank's share of its image
  std::uint64_t image = 0;                // elements of its image: all shares, with padding
  bool persistent = false;                // gathered once, never released
  bool trainable = true;   // true if all of its parameters are trainable; units never mix
  std::uint64_t rows = 0;  // rows, if the unit is one matrix that is updated as a whole
  double aspect = 1.0;     // ratio of that matrix's last two dimensions
  bool as_stored = false;  // its stages use it in its stored dtype: tiled or looked up

  /// False if each rank has all of it.
  bool is_cut() const noexcept { return share != image; }
  /// Index in the image at which a rank's share begins.
  std::uint64_t share_begin(std::uint64_t rank) const noexcept {
    return is_cut() ? rank * share : 0;
  }
  /// Elements [begin, end) of the image.
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t count() const noexcept { return end - begin; }
  };
  /// The part of the `count` elements from `first` on that lies in a rank's share; an empty range
  /// if none does.
  Range in_share(std::uint64_t first, std::uint64_t count, std::uint64_t rank) const noexcept {
    const std::uint64_t own = share_begin(rank);
    const std::uint64_t begin = std::max(first, own);
    const std::uint64_t end = std::min(first + count, own + share);
    return begin < end ? Range{begin, end} : Range{};
  }
};

struct Layout {
  std::vector<Unit> units;                         // units in order of first use
  std::vector<ParameterPlace> places;              // one for each parameter
  std::vector<std::vector<std::uint32_t>> stages;  // the units that each stage gathers
  std::size_t first_trainable_stage = 0;           // the stage where backward ends
};

/// Whether frozen parameters are divided among the ranks, or complete on each.
enum class Frozen : std::uint8_t { Cut, Whole };
/// Whether a trained matrix is a unit of its own: ParameterSpec::matrix.
enum class Matrices : std::uint8_t { Together, Apart };

struct PersistenceLimits {
  std::uint64_t param_numel_max = 0;  // stage3_param_persistence_threshold; 0: none persist
  std::uint64_t model_numel_max = 0;  // stage3_model_persistence_threshold, cut to fit the budget
};

/// The layout of a model over `ranks`, at least 1: Note [Shares]. Parameters used by several stages
/// (tied weights) are units of their own; so are tiled parameters and the looked-up one, which
/// backward does not gather. The persistent parameters of a stage form a second unit beside its
/// streamed one, and frozen parameters form separate units.
Layout make_layout(const std::vector<ParameterSpec>& parameters,
                   const std::vector<StageSpec>& stages, const PersistenceLimits& persistence,
                   std::uint64_t ranks, Matrices matrices = Matrices::Together,
                   Frozen frozen = Frozen::Cut);

}  // namespace artesian::zero3
