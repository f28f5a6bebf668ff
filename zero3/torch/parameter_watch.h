// ParameterWatch: detects changes that a caller makes to adopted parameters without telling the
// engine: new values in place, other memory, unfrozen parameters, dropped or set gradients. These
// would be lost silently, so the next call detects them and names the parameter.
//
// Values are compared by version. Persistent units, which can be read between passes, are also
// compared by checksum, since changes through `data` have a separate version; on a device that the
// host cannot read, only by version. Below stage 3 all parameters can be read, and changing them is
// allowed: changed() finds the changes, so that they can be taken over.
//
// After a backward, `grad` of each parameter with a gradient is a tensor whose memory cannot be
// read: code that clips by it or reads it gets an error instead of wrong values.
//
// Used from one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "zero3/step/step_core.h"
#include "zero3/torch/parameter_tensors.h"

namespace artesian::zero3 {

/// What changed() compares: checksums need a pass over the memory.
enum class LookFor : std::uint8_t { VersionsAndMemory, Values };

class ParameterWatch {
 public:
  /// Drops gradients that the tensors already have. Both arguments must outlive it.
  ParameterWatch(const StepCore& core, ParameterTensors& tensors);
  ParameterWatch(const ParameterWatch&) = delete;
  ParameterWatch& operator=(const ParameterWatch&) = delete;

  /// Records the unit's values as valid. `readable`: they can be read until the next call.
  void remember(std::uint32_t unit, bool readable);
  /// Errors: Invalid: a parameter of the unit was changed since remember().
  Result<void> check_unchanged(std::uint32_t unit) const;
  /// Checks the same for persistent units, that all parameters have the engine's memory, and that
  /// frozen ones are still frozen. Errors: Invalid.
  Result<void> check() const;
  /// Lends the parameter to the caller, or ends that: lent parameters are not checked.
  void lend(std::uint32_t parameter, bool lent);
  /// The resident parameters, which the caller may change, whose values differ from the remembered
  /// ones.
  std::vector<std::uint32_t> changed(LookFor look) const;
  /// remember() of one readable parameter.
  void remember_one(std::uint32_t parameter);
  /// Records that all trainable parameters' versions were bumped by one; earlier changes by the
  /// caller are still detected.
  void versions_bumped();
  bool lends() const;

  /// Sets `grad` of the parameters with added[i], whose gradients the engine has taken, to a tensor
  /// that cannot be read.
  void place_gradients(const std::vector<bool>& added);
  void take_gradients_away();
  /// Returns whether the caller has removed all of them, as Module.zero_grad() does. Errors:
  /// Invalid: only some were removed, or others set.
  Result<bool> gradients_dropped(const std::vector<bool>& added) const;

 private:
  const std::string& name(std::uint32_t parameter) const;
  std::uint64_t sum_of(std::uint32_t parameter) const;  // 0 if the host cannot read the parameter
  bool is_as_remembered(std::uint32_t parameter, LookFor look) const;

  const StepCore& core_;
  ParameterTensors& tensors_;
  std::vector<std::uint32_t> versions_;  // by parameter, at remember()
  std::vector<std::uint64_t> sums_;      // checksums of the parameters that were readable then
  std::vector<bool> readable_;           // by unit
  std::vector<bool> lent_;               // by parameter
  std::vector<bool> unseen_;             // remembered while lent; to be checked later
  std::vector<at::Tensor> refused_gradients_;  // by parameter, made on demand
  bool placed_ = false;                        // whether parameters have them as `grad`
};

}  // namespace artesian::zero3
