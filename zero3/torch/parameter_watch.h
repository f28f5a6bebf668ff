// ParameterWatch: what a caller does to adopted parameters that the engine is not told of: changes
// their values in place, gives them other memory, switches frozen ones on, drops or sets their
// gradients. It would be lost in silence, so the next call finds it and names the parameter.
//
// Values are compared by their version; where they can be read between passes (persistent units),
// by a checksum, too, since what is changed through `data` has a version of its own; on a device
// that the host cannot read, by the version alone. Below stage 3
// all parameters can be, and what has changed is no mistake: changed() finds it, for who takes it
// over.
//
// After a backward, `grad` of each parameter that got some is a tensor whose memory cannot be read:
// who clips by it, or looks at it, gets an error instead of nothing.
//
// Used from one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "zero3/step/step_core.h"
#include "zero3/torch/parameter_tensors.h"

namespace artesian::zero3 {

/// What changed() compares: checksums cost a pass over the memory.
enum class LookFor : std::uint8_t { VersionsAndMemory, Values };

class ParameterWatch {
 public:
  /// Gradients that tensors have already are dropped. Both must outlive it.
  ParameterWatch(const StepCore& core, ParameterTensors& tensors);
  ParameterWatch(const ParameterWatch&) = delete;
  ParameterWatch& operator=(const ParameterWatch&) = delete;

  /// Records the unit's values as valid. `readable`: they can be read until the next call.
  void remember(std::uint32_t unit, bool readable);
  /// Errors: Invalid: a parameter of the unit has been changed since then.
  Result<void> check_unchanged(std::uint32_t unit) const;
  /// The same of persistent units; and all parameters have the engine's memory, and frozen ones
  /// are so still. Errors: Invalid.
  Result<void> check() const;
  /// Lends the parameter to the caller, or ends that: lent ones are not checked.
  void lend(std::uint32_t parameter, bool lent);
  /// Of resident parameters, which the caller may change: those that are not as remembered.
  std::vector<std::uint32_t> changed(LookFor look) const;
  /// remember() of one readable parameter.
  void remember_one(std::uint32_t parameter);
  /// All trainable parameters' versions have been bumped by one; what the caller has changed stays
  /// so.
  void versions_bumped();
  bool lends() const;

  /// What a caller finds as `grad` of parameters with added[i], in place of what has been taken.
  void place_gradients(const std::vector<bool>& added);
  void take_gradients_away();
  /// Whether the caller has taken all of them away, as Module.zero_grad() does. Errors: Invalid:
  /// only some, or has set others.
  Result<bool> gradients_dropped(const std::vector<bool>& added) const;

 private:
  const std::string& name(std::uint32_t parameter) const;
  std::uint64_t sum_of(std::uint32_t parameter) const;  // 0 where the host cannot read it
  bool is_as_remembered(std::uint32_t parameter, LookFor look) const;

  const StepCore& core_;
  ParameterTensors& tensors_;
  std::vector<std::uint32_t> versions_;        // by parameter, at remember()
  std::vector<std::uint64_t> sums_;            // checksums of parameters that were readable then
  std::vector<bool> readable_;                 // by unit
  std::vector<bool> lent_;                     // by parameter
  std::vector<bool> unseen_;                   // remembered while lent, to be checked later
  std::vector<at::Tensor> refused_gradients_;  // by parameter, made on demand
  bool placed_ = false;                        // parameters have them as `grad`
};

}  // namespace artesian::zero3
