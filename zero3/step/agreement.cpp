#include "zero3/step/agreement.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace artesian::zero3 {

/// A message of fixed length.
struct Agreement::Control {
  Kind kind{};
  std::uint32_t flags = 0;      // asked to stop, or ready
  std::uint64_t step = 0;       // number of the step in the run
  std::uint64_t done = 0;       // micro-batches done in this step
  std::uint64_t following = 0;  // micro-batches in this forward
  std::uint64_t tokens = 0;
  std::uint64_t constants = 0;  // digest of an update's constants
  std::uint64_t unit = 0;       // the first unit that is entered
  std::uint64_t units = 0;      // digest of all units

  bool same_call(const Control& other) const noexcept {
    return kind == other.kind && step == other.step && done == other.done;
  }
  std::string describe() const {
    return fmt::format("{} of step {} behind {} micro-batches", name(), step, done);
  }
  const char* name() const noexcept {
    switch (kind) {
      case Kind::EndForward: return "a micro-batch";
      case Kind::Step: return "the update";
      case Kind::Enter: return "parameters";
      case Kind::Evaluate: return "parameters of an evaluation";
      case Kind::EndEvaluation: return "the end of an evaluation";
      case Kind::Refuse: return "a batch that it refuses";
    }
    return "";
  }
};

namespace {

/// The values of all ranks, with equal sizes.
template <typename Value>
std::vector<Value> read_all(const std::vector<std::byte>& bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(Value));
  return values;
}

template <typename Value>
std::span<const std::byte> bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::string join(const Agreement::Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += name + "\n" + value + "\n";
  return text;
}

/// The line that begins at `at`; moves `at` behind it.
std::string next_line(const std::string& text, std::size_t& at) {
  const std::size_t end = std::min(text.find('\n', at), text.size());
  std::string line = text.substr(at, end - at);
  at = std::min(end + 1, text.size());
  return line;
}

}  // namespace

Result<void> Agreement::compare(const Facts& facts) {
  if (group_ == nullptr) return {};
  ARTESIAN_TRY(texts, group_->exchange_texts(join(facts), {"what all ranks must have alike"}));
  const std::string& first = texts[0];
  for (std::uint32_t rank = 1; rank < ranks(); ++rank) {
    const std::string& other = texts[rank];
    if (other == first) continue;
    std::size_t at = 0;
    std::size_t other_at = 0;
    while (at < first.size() || other_at < other.size()) {
      const std::string name = next_line(first, at);
      const std::string value = next_line(first, at);
      const std::string other_name = next_line(other, other_at);
      const std::string other_value = next_line(other, other_at);
      if (name == other_name && value == other_value) continue;
      return make_error(ErrorCode::Invalid,
                        fmt::format("{}: rank 0 has {}, rank {} has {}; give all ranks the same",
                                    name, value, rank, other_value));
    }
  }
  return {};
}

Result<std::uint64_t> Agreement::of_first(std::uint64_t value, const char* what) {
  if (group_ == nullptr) return value;
  ARTESIAN_TRY_VOID(group_->broadcast(std::as_writable_bytes(std::span(&value, 1)), 0, {what}));
  return value;
}

Result<void> Agreement::take_first(std::vector<std::uint32_t>& values, const char* what) {
  if (group_ == nullptr) return {};
  ARTESIAN_TRY(count, of_first(values.size(), what));
  values.resize(static_cast<std::size_t>(count));
  return group_->broadcast(std::as_writable_bytes(std::span(values)), 0, {what});
}

Result<std::uint64_t> Agreement::least(std::uint64_t value, const char* what) {
  if (group_ == nullptr) return value;
  ARTESIAN_TRY(bytes, group_->exchange(bytes_of(value), {what}));
  const auto all = read_all<std::uint64_t>(bytes);
  return *std::min_element(all.begin(), all.end());
}

/// Errors: Invalid, where some rank has refused its batch, or is about to do something else.
Result<std::vector<Agreement::Control>> Agreement::tell(const Control& mine, const char* what) {
  refused_ = false;
  ARTESIAN_TRY(bytes, group_->exchange(bytes_of(mine), {what}));
  auto all = read_all<Control>(bytes);
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    if (all[rank].kind != Kind::Refuse || all[rank].step != mine.step) continue;
    refused_ = true;
    return make_error(ErrorCode::Invalid, fmt::format("rank {} has refused its batch", rank));
  }
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    if (all[rank].same_call(mine)) continue;
    return make_error(ErrorCode::Invalid,
                      fmt::format("ranks do different things: rank {} is at {}, rank {} at {}",
                                  group_->rank(), mine.describe(), rank, all[rank].describe()));
  }
  return all;
}

Result<std::vector<double>> Agreement::end_forward(std::uint64_t step, std::uint64_t done,
                                                   std::span<const double> losses) {
  if (group_ == nullptr) return std::vector<double>(losses.begin(), losses.end());
  const Control mine{
      .kind = Kind::EndForward, .step = step, .done = done, .following = losses.size()};
  ARTESIAN_TRY(all, tell(mine, "the end of a forward"));
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    if (all[rank].following == mine.following) continue;
    return make_error(
        ErrorCode::Invalid,
        fmt::format("ranks do different things: rank {} has run {} micro-batches at once, rank {} "
                    "{}",
                    group_->rank(), mine.following, rank, all[rank].following));
  }
  ARTESIAN_TRY(bytes, group_->exchange(std::as_bytes(losses), {"losses"}));
  const auto by_rank = read_all<double>(bytes);
  std::vector<double> in_order;
  for (std::size_t micro = 0; micro < losses.size(); ++micro) {
    for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
      in_order.push_back(by_rank[rank * losses.size() + micro]);
    }
  }
  return in_order;
}

Result<void> Agreement::end_evaluation(std::uint64_t step, std::uint64_t done) {
  if (group_ == nullptr) return {};
  ARTESIAN_TRY_VOID(
      tell({.kind = Kind::EndEvaluation, .step = step, .done = done}, "the end of an evaluation"));
  return {};
}

Result<void> Agreement::refuse(std::uint64_t step, std::uint64_t done) {
  if (group_ == nullptr) return {};
  const auto told =
      tell({.kind = Kind::Refuse, .step = step, .done = done}, "the end of a forward");
  return refused_ ? Result<void>() : Result<void>(told.error());
}

Result<bool> Agreement::enter(std::uint64_t step, std::uint64_t done, const Entry& entry,
                              const std::function<std::string(std::uint64_t unit)>& name_of) {
  if (group_ == nullptr) return entry.ready;
  const Control mine{.kind = entry.evaluates ? Kind::Evaluate : Kind::Enter,
                     .flags = entry.ready ? 1u : 0u,
                     .step = step,
                     .done = done,
                     .unit = entry.first,
                     .units = entry.units};
  ARTESIAN_TRY(all, tell(mine, "what is entered"));
  bool ready = true;
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    ready = ready && all[rank].flags != 0;
    if (all[rank].unit == mine.unit && all[rank].units == mine.units) continue;
    return make_error(
        ErrorCode::Invalid,
        fmt::format("ranks enter different units: rank {} is at {}, rank {} at {}", group_->rank(),
                    name_of(mine.unit), rank, name_of(all[rank].unit)));
  }
  return ready;
}

Result<Agreement::StepFacts> Agreement::step(std::uint64_t step, std::uint64_t done,
                                             std::uint64_t tokens, bool stop,
                                             std::uint64_t constants) {
  if (group_ == nullptr) return StepFacts{tokens, stop};
  const Control mine{.kind = Kind::Step,
                     .flags = stop ? 1u : 0u,
                     .step = step,
                     .done = done,
                     .tokens = tokens,
                     .constants = constants};
  ARTESIAN_TRY(all, tell(mine, "the begin of an update"));
  StepFacts facts;
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    if (all[rank].constants == constants) continue;
    return make_error(ErrorCode::Invalid,
                      fmt::format("step(): learning rates, or other constants of parameter groups, "
                                  "differ between rank {} and rank {}; give all ranks the same",
                                  group_->rank(), rank));
  }
  for (const Control& each : all) {
    facts.tokens += each.tokens;
    facts.stop = facts.stop || each.flags != 0;
  }
  return facts;
}

}  // namespace artesian::zero3
