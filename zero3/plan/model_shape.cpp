#include "zero3/plan/model_shape.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

namespace artesian::zero3 {
namespace {

constexpr std::size_t faults_shown_max = 5;

class Faults {
 public:
  void add(const std::string& where, const std::string& what) {
    if (count_++ >= faults_shown_max) return;
    text_ += (text_.empty() ? "" : "\n") + where + ": " + what;
  }
  Result<void> result() && {
    if (count_ == 0) return {};
    return make_error(ErrorCode::Invalid, std::move(text_));
  }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

void check_parameters(const std::vector<ParameterSpec>& parameters, Faults& faults) {
  std::set<std::string> names;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const ParameterSpec& parameter = parameters[index];
    const std::string where = fmt::format("module.parameters()[{}]", index);
    if (parameter.name.empty() || !names.insert(parameter.name).second) {
      faults.add(where, "got the name \"" + parameter.name + "\", allowed one of its own");
    }
    for (const std::int64_t extent : parameter.shape) {
      if (extent >= 1) continue;
      faults.add(where + " " + parameter.name,
                 fmt::format("got an extent of {}, allowed 1 and more", extent));
      break;
    }
    if (parameter.matrix && parameter.shape.size() < 2) {
      faults.add(
          where + " " + parameter.name,
          fmt::format("a matrix: got {} dimensions, allowed 2 and more", parameter.shape.size()));
    }
  }
}

void check_lookup(const std::vector<ParameterSpec>& parameters,
                  const std::vector<StageSpec>& stages, std::size_t stage, Faults& faults) {
  const StageSpec& spec = stages[stage];
  if (!spec.lookup.has_value()) return;
  const std::string where = fmt::format("module.stages()[{}] {}", stage, spec.name);
  const auto& own = spec.parameters;
  if (std::find(own.begin(), own.end(), *spec.lookup) == own.end()) {
    faults.add(where, fmt::format("lookup names parameter {}, which is not in the stage's list",
                                  *spec.lookup));
  } else if (*spec.lookup < parameters.size() && parameters[*spec.lookup].shape.size() != 2) {
    faults.add(where, "lookup of " + parameters[*spec.lookup].name +
                          ": allowed a parameter of shape [rows, width]");
  }
}

}  // namespace

std::vector<std::uint32_t> graph_parameters(const StageSpec& stage) {
  std::vector<std::uint32_t> parameters = stage.parameters;
  if (stage.lookup.has_value()) std::erase(parameters, *stage.lookup);
  return parameters;
}

std::size_t first_trainable_stage(const std::vector<ParameterSpec>& parameters,
                                  const std::vector<StageSpec>& stages) {
  const auto first = std::find_if(stages.begin(), stages.end(), [&](const StageSpec& stage) {
    return std::any_of(stage.parameters.begin(), stage.parameters.end(),
                       [&](std::uint32_t index) { return parameters[index].trainable; });
  });
  return static_cast<std::size_t>(first - stages.begin());
}

Result<void> check_trainable(const std::vector<ParameterSpec>& parameters) {
  const bool some = std::any_of(parameters.begin(), parameters.end(),
                                [](const auto& parameter) { return parameter.trainable; });
  if (some || parameters.empty()) return {};
  return make_error(ErrorCode::Invalid,
                    fmt::format("module.parameters(): all {} are frozen (trainable is false), "
                                "allowed all but one: there is nothing to train",
                                parameters.size()));
}

Result<void> check_shape(const std::vector<ParameterSpec>& parameters,
                         const std::vector<StageSpec>& stages) {
  Faults faults;
  if (parameters.empty()) faults.add("module.parameters()", "got none, allowed 1 and more");
  if (stages.empty()) faults.add("module.stages()", "got none, allowed 1 and more");
  check_parameters(parameters, faults);
  std::vector<bool> used(parameters.size(), false);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const StageSpec& spec = stages[stage];
    const std::string where = fmt::format("module.stages()[{}] {}", stage, spec.name);
    const std::set<std::uint32_t> own(spec.parameters.begin(), spec.parameters.end());
    if (own.size() != spec.parameters.size()) faults.add(where, "lists a parameter twice");
    for (const std::uint32_t parameter : own) {
      if (parameter < parameters.size()) {
        used[parameter] = true;
      } else {
        faults.add(where, fmt::format("got parameter {}, allowed 0 to {} exclusive", parameter,
                                      parameters.size()));
      }
    }
    check_lookup(parameters, stages, stage, faults);
  }
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (used[index]) continue;
    faults.add(fmt::format("module.parameters()[{}] {}", index, parameters[index].name),
               "no stage uses it; name it in a stage, or leave it out");
  }
  return std::move(faults).result();
}

}  // namespace artesian::zero3
