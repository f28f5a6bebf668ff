// The part of Checkpoints that several ranks execute together: Note [By several ranks].
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "zero3/checkpoint/checkpoints.h"

namespace artesian::zero3 {
namespace {

/// A message from one rank to all, always of the same length.
using Message = std::array<char, 1024>;

std::span<std::byte> bytes_of(Message& message) {
  return std::as_writable_bytes(std::span(message));
}

/// Lines, each ended by a line feed, padded with zeros.
Message message_of(const std::vector<std::string>& lines) {
  Message message{};
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  ARTESIAN_CHECK(text.size() < message.size(), text.size());
  std::memcpy(message.data(), text.data(), text.size());
  return message;
}

std::vector<std::string> lines_of(const char* message) {
  std::vector<std::string> lines{""};
  for (const char* at = message; *at != 0; ++at) {
    if (*at == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += *at;
    }
  }
  lines.resize(8);
  return lines;
}

std::uint64_t number_of(const std::string& text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

/// Shares rank 0's findings about the folder.
Result<void> Checkpoints::open_of_ranks(Result<void> own) {
  if (from_.group == nullptr) return own;
  const comm::What what{"the folder of checkpoints"};
  auto opened = from_.group->agree(std::move(own), what);
  if (!opened.has_value()) {
    saver_.reset();
    return opened;
  }
  write_rate_ = saver_->write_rate();
  ARTESIAN_TRY_VOID(
      from_.group->broadcast(std::as_writable_bytes(std::span(&write_rate_, 1)), 0, what));
  if (rank() != 0) return {};
  ARTESIAN_TRY(parts, parts_of_ranks());
  parts_ = std::move(parts);
  return {};
}

/// The parts in all ranks' files, for rank 0's manifest.
Result<std::vector<SavedPart>> Checkpoints::parts_of_ranks() const {
  std::vector<SavedPart> all;
  for (std::uint32_t other = 0; other < ranks(); ++other) {
    const SavedUnits units = trained_units(from_.placement, other);
    ARTESIAN_TRY(layout, make_checkpoint_layout(from_.parameters, units.images, {}, other));
    all.insert(all.end(), layout.parts().begin(), layout.parts().end());
  }
  return all;
}

/// `own`: rank 0's outcome of beginning the checkpoint.
Result<void> Checkpoints::begin_of_ranks(Result<void> own, const std::string& tag,
                                         std::uint64_t step) {
  if (from_.group == nullptr) return own;
  const comm::What what{"the begin of a checkpoint"};
  own_failure_.reset();
  ARTESIAN_TRY_VOID(from_.group->agree(std::move(own), what));
  joined_ = true;
  Message message{};
  if (rank() == 0) {
    const CheckpointToJoin begun = saver_->to_join();
    message = message_of({begun.folder, std::to_string(begun.id)});
    // Buffers are in rank 0's file, where they shift the arrays after them.
    if (!trained_layout_->buffers().empty()) {
      ARTESIAN_TRY(parts, parts_of_ranks());
      parts_ = trained_layout_->parts();
      for (const SavedPart& part : parts) {
        if (part.file != 0) parts_.push_back(part);
      }
    }
  }
  ARTESIAN_TRY_VOID(from_.group->broadcast(bytes_of(message), 0, what));
  if (rank() == 0) return {};
  const auto lines = lines_of(message.data());
  return saver_->join({lines[0], number_of(lines[1])}, tag, step);
}

/// Adds the other ranks' records.
Result<void> Checkpoints::add_records(const std::string& mine) {
  Message message = message_of({mine});
  ARTESIAN_TRY(all, from_.group->exchange(bytes_of(message), {"the files of a checkpoint"}));
  if (rank() != 0) return {};
  for (std::uint32_t other = 1; other < ranks(); ++other) {
    const auto lines = lines_of(reinterpret_cast<const char*>(all.data()) + other * message.size());
    const CheckpointToJoin begun = saver_->to_join();
    saver_->add_durable({.name = rank_file_name(other),
                         .rank = other,
                         .node = lines[0],
                         .bytes = number_of(lines[1]),
                         .head_bytes = number_of(lines[2]),
                         .head_digest = lines[3],
                         .sums_digest = lines[4],
                         .seed = {begun.id, manifest_.state.step, other}});
  }
  return {};
}

/// Called when all files are durable: rank 0 gives the checkpoint its name.
Result<SavedCheckpoint> Checkpoints::publish_of_ranks() {
  SavedCheckpoint saved;
  Result<void> published;
  if (rank() == 0) {
    saver_->commit(std::move(manifest_), std::move(side_files_));
    auto finished = saver_->finish(Deadline::after_seconds(commit_seconds_));
    late_ = saver_->committing();
    if (finished.has_value()) {
      saved = **std::move(finished);
      remember_frozen(saved);
      saved.bytes_written *= ranks();
    } else {
      published = std::move(finished).error();
    }
  }
  const comm::What what{"a checkpoint to be durable"};
  ARTESIAN_TRY_VOID(from_.group->agree(std::move(published), what));
  Message message{};
  if (rank() == 0) {
    message =
        message_of({saved.tag, std::to_string(saved.step), std::to_string(saved.bytes_written)});
  }
  ARTESIAN_TRY_VOID(from_.group->broadcast(bytes_of(message), 0, what));
  const auto lines = lines_of(message.data());
  if (rank() == 0) return saved;
  return SavedCheckpoint{.tag = lines[0],
                         .link = {},
                         .step = number_of(lines[1]),
                         .bytes_written = number_of(lines[2]),
                         .files = {}};
}

/// Brings rank 0 the other ranks' shares of what is frozen, unless the file is linked or left out.
/// A rank whose part has failed, or which cannot read its shares, still sends something. Errors:
/// the group's.
Result<void> Checkpoints::collect_frozen() {
  const std::vector<Unit>& units = from_.placement.layout.units;
  const auto divided = [&](std::uint32_t unit) { return units[unit].is_cut(); };
  if (std::none_of(frozen_.units.begin(), frozen_.units.end(), divided)) return {};
  std::uint8_t wanted = frozen_copy_.has_value() && !frozen_copy_->failed() ? 1 : 0;
  ARTESIAN_TRY_VOID(from_.group->broadcast(std::as_writable_bytes(std::span(&wanted, 1)), 0,
                                           {"whether to save what is frozen"}));
  if (wanted == 0) return {};
  for (const std::uint32_t unit : frozen_.units) {
    if (!divided(unit)) continue;
    for (std::uint32_t owner = 1; owner < ranks(); ++owner) {
      if (owner == rank()) {
        ARTESIAN_TRY_VOID(send_frozen(unit));
        continue;
      }
      for (std::uint64_t index = 0; index < from_.placement.sub_group_count(unit); ++index) {
        ARTESIAN_TRY_VOID(pass_frozen(unit, owner, index, {}));
      }
    }
  }
  return {};
}

/// Sends this rank's share of a frozen unit.
Result<void> Checkpoints::send_frozen(std::uint32_t unit) {
  const std::uint64_t size = dtype_size(from_.placement.param_dtype);
  std::uint64_t sent = 0;
  Result<void> passed;
  const auto send = [&](std::span<const std::byte> bytes) {
    if (passed.has_value()) passed = pass_frozen(unit, rank(), sent++, bytes);
  };
  if (!own_failure_.has_value()) {
    auto read = from_.optimizer.read_units(
        {unit}, [](std::uint32_t, std::uint64_t) { return true; },
        [&](const SubGroup& group) {
          send({group.param, group.count * size});
        });
    if (!read.has_value()) own_failure_ = std::move(read).error();
  }
  while (passed.has_value() && sent < from_.placement.sub_group_count(unit)) {
    const std::vector<std::byte> nothing(from_.placement.sub_group_numel(unit, sent) * size);
    send(nothing);
  }
  return passed;
}

/// Sends a sub-group of the owner's share to rank 0, which copies it; other ranks only take part.
Result<void> Checkpoints::pass_frozen(std::uint32_t unit, std::uint32_t owner, std::uint64_t index,
                                      std::span<const std::byte> mine) {
  const Placement& plan = from_.placement;
  const std::uint64_t count = plan.sub_group_numel(unit, index);
  std::vector<std::byte> arrived(rank() == 0 ? count * dtype_size(plan.param_dtype) : 0);
  std::vector<std::span<const std::byte>> sent(ranks());
  std::vector<std::span<std::byte>> received(ranks());
  sent[0] = mine;
  if (rank() == 0) received[owner] = arrived;
  ARTESIAN_TRY_VOID(from_.group->all_to_all(
      sent, received, {"the frozen parameters of", plan.layout.units[unit].name}));
  if (rank() != 0) return {};
  SubGroup group{.unit = unit, .index = index, .share_first = index * plan.sub_group_of(unit)};
  group.image_first = plan.layout.units[unit].share_begin(owner) + group.share_first;
  group.count = count;
  group.param = arrived.data();
  frozen_copy_->add(group);
  return {};
}

Result<SavedCheckpoint> Checkpoints::commit_of_ranks() {
  Result<void> own;
  std::string record;
  if (own_failure_.has_value()) {
    own = *std::exchange(own_failure_, std::nullopt);
    if (rank() != 0) saver_->leave();
  } else if (rank() != 0) {
    auto durable = saver_->make_durable(Deadline::after_seconds(commit_seconds_));
    if (durable.has_value()) {
      record = fmt::format("{}\n{}\n{}\n{}\n{}", durable->node, durable->bytes, durable->head_bytes,
                           durable->head_digest, durable->sums_digest);
    } else {
      own = std::move(durable).error();
    }
  }
  auto all = from_.group->agree(std::move(own), {"the files of a checkpoint"});
  if (!all.has_value()) {
    if (rank() == 0) {
      saver_->abandon(all.error());
      (void)saver_->finish(Deadline::after_seconds(commit_seconds_)).has_value();
      late_ = saver_->committing();
    }
    return std::move(all).error();
  }
  ARTESIAN_TRY_VOID(add_records(record));
  return publish_of_ranks();
}

}  // namespace artesian::zero3
