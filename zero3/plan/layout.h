// Layout: which parameters form a unit, and where each lies in the unit's image.
//
// A unit is what is gathered and released together. Its image is one flat array of elements: the
// same indexing serves the parameter shard, the gradient, the master weights and both moments, so
// every transfer is one contiguous range. Each parameter starts at a multiple of 2048 elements, so
// that it is cut into the same leaves of the norm (Gradients) whatever else is in its unit:
// with which parameters it would share one depends on what persists. Padding elements are
// zero and stay zero: Adam of a zero gradient on a zero weight is zero.
//
// Note [Shares]: an image is as many equal, contiguous shares as there are ranks, each a multiple
// of 2048 elements (4 KiB in 16 bit: no two sub-groups share a sector). So one all-gather in place
// brings a unit. Where parameters lie does not depend on the number of ranks: only the padding at
// the image's end does. An element has a place in the image, the same for all ranks, and one in
// the share that it is in: `image_...` and `share_...` say which is meant wherever both occur. With
// one rank they are the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zero3/plan/model_shape.h"

namespace artesian::zero3 {

constexpr std::uint64_t parameter_alignment = 2048;  // elements
constexpr std::uint64_t image_alignment = 2048;      // elements, of a share and so of an image

/// The place of a parameter: elements [first, first + numel) of the unit's image.
struct ParameterPlace {
  std::uint32_t unit = 0;
  std::uint64_t first = 0;
  std::uint64_t numel = 0;
  std::uint32_t group = 0;  // ParameterSpec::group
};

struct Unit {
  std::string name;
  std::vector<std::uint32_t> parameters;  // indices of parameters, in image order
  std::uint64_t numel = 0;                // elements of its parameters
  std::uint64_t share = 0;                // elements of one rank's share of its image
  std::uint64_t image = 0;                // elements of its image, shares together, with padding
  bool persistent = false;                // gathered once, never released
  bool trainable = true;                  // as all of its parameters are
  std::uint64_t rows = 0;                 // rows of a unit that is one matrix updated as a whole
  double aspect = 1.0;                    // ratio of that matrix's last two dimensions
  bool as_stored =
      false;  // its stages take it in the dtype in which it is stored: tiled or looked up

  /// False where each rank has all of it.
  bool is_cut() const noexcept { return share != image; }
  /// The element of the image with which a rank's share begins.
  std::uint64_t share_begin(std::uint64_t rank) const noexcept {
    return is_cut() ? rank * share : 0;
  }
  /// Elements [begin, end) of the image.
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t count() const noexcept { return end - begin; }
  };
  /// What of `count` elements from `first` on is in a rank's share; nothing of it: an empty range.
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
  std::vector<std::vector<std::uint32_t>> stages;  // units that each stage gathers
  std::size_t first_trainable_stage = 0;           // the stage at which backward ends
};

/// Whether frozen parameters are divided among the ranks, or whole on each.
enum class Frozen : std::uint8_t { Cut, Whole };
/// Says whether a matrix that is trained is a unit of its own: ParameterSpec::matrix.
enum class Matrices : std::uint8_t { Together, Apart };

struct PersistenceLimits {
  std::uint64_t param_numel_max = 0;  // stage3_param_persistence_threshold; 0: none persist
  std::uint64_t model_numel_max = 0;  // stage3_model_persistence_threshold, cut to the budget
};

/// The layout of a model over `ranks`, at least 1: Note [Shares]. Parameters of several stages
/// (tied weights) are units of their own, and so are tiled ones and the looked-up one, which
/// backward does not gather; the persistent ones of a stage form a second unit beside its streamed
/// one, and its frozen ones units of their own.
Layout make_layout(const std::vector<ParameterSpec>& parameters,
                   const std::vector<StageSpec>& stages, const PersistenceLimits& persistence,
                   std::uint64_t ranks, Matrices matrices = Matrices::Together,
                   Frozen frozen = Frozen::Cut);

}  // namespace artesian::zero3
