#include "zero3/step/path_io.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "tiering/disk/block_device.h"

namespace artesian::zero3 {
namespace {

aio::Polling polling_of(PollingChoice choice) noexcept {
  switch (choice) {
    case PollingChoice::Off: return aio::Polling::None;
    case PollingChoice::Submission: return aio::Polling::Submission;
    case PollingChoice::Completion: return aio::Polling::Completion;
    case PollingChoice::Both: return aio::Polling::Both;
  }
  return aio::Polling::None;
}

std::optional<aio::EngineKind> kind_of(EngineChoice choice) noexcept {
  switch (choice) {
    case EngineChoice::Auto: return {};
    case EngineChoice::IoUring: return aio::EngineKind::IoUring;
    case EngineChoice::Libaio: return aio::EngineKind::Libaio;
    case EngineChoice::Threads: return aio::EngineKind::Threads;
  }
  return {};
}

std::optional<aio::EngineKind> kind_of(const std::string& name) noexcept {
  for (const aio::EngineKind kind :
       {aio::EngineKind::IoUring, aio::EngineKind::Libaio, aio::EngineKind::Threads}) {
    if (name == aio::engine_kind_name(kind)) return kind;
  }
  return {};
}

PathIo io_of(const Config& config) {
  return {.options = {.block_size = config.aio.block_size,
                      .queue_depth = config.aio.queue_depth,
                      .threads = config.aio.intra_op_parallelism,
                      .single_submit = config.aio.single_submit,
                      .overlap_events = config.aio.overlap_events,
                      .polling = polling_of(config.artesian.polling)}};
}

/// Why a profile's settings do not suit this config; empty if they do.
std::string obstacle(const Config& config, const tiering::MachineProfile& profile) {
  const auto kind = kind_of(profile.engine);
  if (!kind.has_value()) return "engine \"" + profile.engine + "\", which is not known here";
  const auto asked = kind_of(config.artesian.engine);
  if (asked.has_value() && asked != kind) {
    return "engine " + profile.engine + ", and artesian.engine is " + aio::engine_kind_name(*asked);
  }
  const aio::Polling polling = polling_of(config.artesian.polling);
  if (profile.best->polling != polling) {
    return std::string("polling ") + aio::polling_name(profile.best->polling) +
           ", and artesian.polling is " + aio::polling_name(polling);
  }
  return {};
}

/// Notes, with one line for all folders with the same text.
class Notes {
 public:
  void add(const std::string& before, const std::string& folder, const std::string& after) {
    for (auto& line : lines_) {
      if (line.before != before || line.after != after) continue;
      line.folders += ", " + folder;
      return;
    }
    lines_.push_back({before, folder, after});
  }
  std::vector<std::string> take() const {
    std::vector<std::string> notes;
    for (const auto& line : lines_) notes.push_back(line.before + line.folders + line.after);
    return notes;
  }

 private:
  struct Line {
    std::string before, folders, after;
  };
  std::vector<Line> lines_;
};

}  // namespace

std::vector<SavedProfile> saved_profiles(const std::vector<std::string>& directories) {
  std::vector<SavedProfile> all;
  for (const std::string& directory : directories) {
    SavedProfile& saved = all.emplace_back();
    auto path = tiering::machine_profile_path(tiering::nearest_folder(directory).folder);
    if (!path.has_value()) continue;  // the folder does not exist, which is reported elsewhere
    saved.file = *std::move(path);
    auto profile = tiering::load_machine_profile(saved.file);
    if (profile.has_value()) {
      saved.profile = *std::move(profile);
    } else if (profile.error().system_error != ENOENT) {
      saved.fault = std::move(profile).error();
    }
  }
  return all;
}

PathIoChoice choose_path_io(const Config& config, const std::vector<std::string>& directories,
                            const std::vector<SavedProfile>& profiles) {
  PathIoChoice choice{.paths = {directories.size(), io_of(config)}, .notes = {}};
  if (!config.aio_from_profile || profiles.empty()) return choice;
  ARTESIAN_CHECK(profiles.size() == directories.size(), profiles.size(), directories.size());
  Notes notes;
  for (std::size_t path = 0; path < directories.size(); ++path) {
    const SavedProfile& saved = profiles[path];
    if (saved.fault.has_value()) {
      notes.add("aio: defaults for ", directories[path], ": " + saved.fault->to_string());
    }
    if (!saved.profile.has_value() || !saved.profile->best.has_value()) continue;
    const tiering::MachineProfile& profile = *saved.profile;
    const std::string why_not = obstacle(config, profile);
    if (!why_not.empty()) {
      notes.add("aio: defaults for ", directories[path],
                ", as its machine profile is of " + why_not);
      continue;
    }
    choice.paths[path] = {.options = *profile.best, .engine = kind_of(profile.engine)};
    std::string settings = tiering::describe(*profile.best);
    if (choice.paths[path].engine != aio::EngineKind::IoUring) settings += ", " + profile.engine;
    notes.add("aio: " + settings + " of the machine profile of ", directories[path],
              " (aio_bench tune, " + profile.measured_at + ")");
  }
  choice.notes = notes.take();
  return choice;
}

}  // namespace artesian::zero3
