// A thin layer over Highway's table of targets.
#include "kernels/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dispatch.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace artesian::kernels::HWY_NAMESPACE {

/// The target for which this copy was compiled, which is the one that dispatch has chosen.
const char* own_target_name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace artesian::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace artesian::kernels {
namespace {

HWY_EXPORT(own_target_name);

/// Targets of this build and CPU, best first. Determined once, before any target is forced.
const std::vector<std::int64_t>& targets_of_cpu() {
  static const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  return targets;
}

/// Chooses a target; zero means the best.
void choose(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<std::string> supported_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : targets_of_cpu()) names.emplace_back(hwy::TargetName(target));
  return names;
}

const char* active_target_name() noexcept {
  return HWY_DYNAMIC_DISPATCH(own_target_name)();
}

Result<void> force_target(std::string_view name) {
  std::string names;
  for (const std::int64_t target : targets_of_cpu()) {
    if (name == hwy::TargetName(target)) {
      choose(target);
      return {};
    }
    names += std::string(names.empty() ? "" : ", ") + hwy::TargetName(target);
  }
  if (!name.empty()) {
    return make_error(ErrorCode::Invalid, "instruction set \"" + std::string(name) +
                                              "\" is not available; this machine has " + names);
  }
  choose(0);
  return {};
}

}  // namespace artesian::kernels
#endif
