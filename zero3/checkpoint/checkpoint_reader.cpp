#include "zero3/checkpoint/checkpoint_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/split_master.h"
#include "tiering/block_checksums.h"
#include "tiering/snapshot_sums.h"
#include "zero3/checkpoint/checkpoint_folder.h"
#include "zero3/config/optimizers.h"
#include "zero3/plan/checkpoint_names.h"

namespace artesian::zero3 {
namespace {

constexpr std::uint64_t piece = 8192;  // elements converted at once

template <typename Element>
std::byte* bytes_of(Element* elements) noexcept {
  return reinterpret_cast<std::byte*>(elements);
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::open(FileSystem& files,
                                                                 const std::string& directory,
                                                                 const std::string& tag) noexcept {
  ARTESIAN_TRY(parent, files.open_folder(directory));
  std::string chosen = tag;
  if (chosen.empty()) {
    ARTESIAN_TRY(latest, read_latest(*parent));
    if (latest.empty()) {
      return of_file(make_error(ErrorCode::Invalid, "no checkpoint: there is no file `latest`"),
                     *parent, latest_name);
    }
    chosen = std::move(latest);
  }
  ARTESIAN_TRY_VOID(check_checkpoint_tag(chosen));
  auto folder = parent->open_folder(chosen);
  if (!folder.has_value()) {
    if (!is_absent(folder.error())) return std::move(folder).error();
    return of_file(make_error(ErrorCode::Invalid, "no such checkpoint"), *parent, chosen);
  }
  ARTESIAN_TRY(manifest, read_manifest_of(**folder));
  std::unique_ptr<CheckpointReader> reader(
      new CheckpointReader(std::move(folder).value(), std::move(chosen)));
  reader->manifest_ = std::move(manifest);
  ARTESIAN_TRY_VOID(check_files(*reader->folder_, reader->manifest_));
  ARTESIAN_TRY_VOID(reader->open_files());
  ARTESIAN_TRY_VOID(reader->sort_parts());
  return reader;
}

Result<void> CheckpointReader::open_files() noexcept {
  for (const SavedDataFile& file : manifest_.files) ARTESIAN_TRY_VOID(open_file(file));
  ARTESIAN_CHECK(data_.size() == manifest_.files.size(), data_.size(), manifest_.files.size());
  std::vector<std::uint64_t> blocks_of;
  for (const DataFile& data : data_) blocks_of.push_back(data.ends.size());
  cache_ = std::make_unique<BlockCache>(
      [this](BlockCache::Key key) { return load(key.file, key.block); }, std::move(blocks_of),
      BlockCache::Options{});
  return {};
}

Result<void> CheckpointReader::open_file(const SavedDataFile& file) noexcept {
  DataFile opened;
  const std::string sums_name = sums_file_name(file.name);
  ARTESIAN_TRY(text, read_whole_file(*folder_, sums_name, sums_bytes_max));
  auto sums = tiering::read_snapshot_sums(text, file.bytes - file.head_bytes);
  if (!sums.has_value()) return of_file(std::move(sums).error(), *folder_, sums_name);
  std::uint64_t end = file.head_bytes;
  for (const tiering::SnapshotSum& sum : *sums) {
    end += sum.length;
    opened.ends.push_back(end);
    opened.sums.push_back(sum.sum);
  }
  ARTESIAN_TRY(data, folder_->open(file.name, {.read_only = true}));
  std::string head(file.head_bytes, '\0');
  ARTESIAN_TRY_VOID(data->read_at(head.data(), head.size(), 0));
  if (digest_of(head) != file.head_digest) {
    return corrupt_file(*folder_, file.name,
                        "its header does not have the digest that the manifest has");
  }
  opened.file = std::move(data);
  data_.push_back(std::move(opened));
  return {};
}

Result<void> CheckpointReader::sort_parts() {
  have_.resize(manifest_.parameters.size());
  for (const SavedPart& part : manifest_.parts) {
    have_[part.parameter].parts[static_cast<std::size_t>(part.array)].push_back(part);
  }
  for (const SavedGroup& group : manifest_.groups) {
    const OptimizerForm* form = find_optimizer(group.optimizer);
    const bool needs = form != nullptr && !form->moments.squares.empty();
    const bool of_muon = form != nullptr && form->type == OptimizerType::Muon;
    for (const std::uint32_t parameter : group.parameters) {
      const bool matrix =
          of_muon && find_moment(parameter, MomentKind::Average) == SavedArray::MomentumBuffer;
      have_[parameter].needs_squares = needs && !matrix;
    }
  }
  for (Have& have : have_) {
    for (auto& parts : have.parts) {
      std::sort(parts.begin(), parts.end(), [](const SavedPart& left, const SavedPart& right) {
        return left.first < right.first;
      });
    }
  }
  for (std::uint32_t index = 0; index < have_.size(); ++index) {
    by_name_.emplace(manifest_.parameters[index].name, index);
    ARTESIAN_TRY_VOID(check_parameter(index));
  }
  for (const auto& [alias, name] : manifest_.aliases) {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) by_name_.emplace(alias, found->second);
  }
  return {};
}

std::optional<SavedArray> CheckpointReader::find_moment(std::uint32_t parameter,
                                                        MomentKind kind) const noexcept {
  for (std::size_t index = 0; index < saved_array_count; ++index) {
    const auto array = static_cast<SavedArray>(index);
    if (moment_kind(array) == kind && has(parameter, array)) return array;
  }
  return std::nullopt;
}

bool CheckpointReader::is_excluded(const std::string& name) const {
  return std::find(manifest_.excluded.begin(), manifest_.excluded.end(), name) !=
         manifest_.excluded.end();
}

/// Checks that each array has each element once (no two parts overlap), and that the arrays form a
/// complete state.
Result<void> CheckpointReader::check_parameter(std::uint32_t parameter) const {
  const SavedParameter& saved = manifest_.parameters[parameter];
  const auto refuse = [&](const std::string& why) {
    return corrupt_file(*folder_, std::string(manifest_name),
                        "parameter " + shown_name(saved.name) + ": " + why);
  };
  for (std::size_t array = 0; array < have_[parameter].parts.size(); ++array) {
    std::uint64_t count = 0;
    const auto& parts = have_[parameter].parts[array];
    for (const SavedPart& part : parts) count += part.count;
    if (!parts.empty() && count != saved.numel()) {
      return refuse(fmt::format("of {} {} elements are there, of {}",
                                format_of(static_cast<SavedArray>(array)).name, count,
                                saved.numel()));
    }
  }
  const bool whole = has(parameter, SavedArray::Master);
  const bool high = has(parameter, SavedArray::MasterHigh);
  const bool frozen = has(parameter, SavedArray::Weight);
  const int forms = int{whole} + int{high} + int{frozen};
  const bool tie = find_moment(parameter, MomentKind::SignedSquares).has_value();
  if (high != has(parameter, SavedArray::MasterLow) || (tie && !high) ||
      (high && !tie && have_[parameter].needs_squares)) {
    return refuse("its master weights are split, and not all halves are there");
  }
  if (high && find_moment(parameter, MomentKind::Squares).has_value()) {
    return refuse("its master weights are split, and its squares have no sign");
  }
  if (forms == 1) return {};
  if (forms == 0 && (saved.numel() == 0 || is_excluded(saved.name))) return {};
  return refuse(forms == 0 ? "it has no weights" : "it has weights of two kinds");
}

std::optional<std::uint32_t> CheckpointReader::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

bool CheckpointReader::has_weights(std::uint32_t parameter) const noexcept {
  return has(parameter, SavedArray::Master) || has(parameter, SavedArray::MasterHigh) ||
         has(parameter, SavedArray::Weight);
}

/// See Note [Verified each time].
Result<SharedBytes> CheckpointReader::load(std::size_t file, std::uint64_t block) const noexcept {
  const DataFile& data = data_[file];
  ARTESIAN_CHECK(block < data.ends.size(), file, block);
  const std::uint64_t begin = block == 0 ? manifest_.files[file].head_bytes : data.ends[block - 1];
  const std::uint64_t length = data.ends[block] - begin;
  auto bytes = std::make_shared<AlignedBytes>(length);
  ARTESIAN_TRY_VOID(data.file->read_at(bytes->data, length, begin));
  const std::uint64_t seed = manifest_.files[file].seed.of_block(block);
  const std::uint64_t sum = tiering::BlockChecksums::sum_of_pieces(seed, 0, bytes->data, length);
  if (sum == data.sums[block]) return SharedBytes(std::move(bytes));
  Error error = corrupt_file(*folder_, manifest_.files[file].name,
                             fmt::format("block {} of the checkpoint does not have its checksum: "
                                         "its bytes are not what was written",
                                         block));
  error.offset = begin;
  error.length = length;
  return error;
}

Result<void> CheckpointReader::read_bytes(std::size_t file, std::uint64_t offset,
                                          std::span<std::byte> target) const noexcept {
  const DataFile& data = data_[file];
  const auto next = std::upper_bound(data.ends.begin(), data.ends.end(), offset);
  auto block = static_cast<std::uint64_t>(next - data.ends.begin());
  while (!target.empty()) {
    ARTESIAN_TRY(bytes, cache_->get({file, block}));
    const std::uint64_t begin = data.ends[block] - bytes->size;
    ARTESIAN_CHECK(begin <= offset && offset < data.ends[block], block, offset);
    const std::uint64_t length = std::min<std::uint64_t>(target.size(), data.ends[block] - offset);
    std::memcpy(target.data(), bytes->data + (offset - begin), length);
    target = target.subspan(length);
    offset += length;
    ++block;
  }
  return {};
}

Result<void> CheckpointReader::read_array(std::uint32_t parameter, SavedArray array,
                                          std::uint64_t first, std::uint64_t count,
                                          std::byte* target) const noexcept {
  const auto& parts = have_[parameter].parts[static_cast<std::size_t>(array)];
  auto part = std::upper_bound(parts.begin(), parts.end(), first,
                               [](std::uint64_t element, const SavedPart& each) {
                                 return element < each.first + each.count;
                               });
  while (count != 0) {
    ARTESIAN_CHECK(part != parts.end() && part->first <= first, parameter, first);
    const std::uint64_t size = part->type->bits / 8;
    const std::uint64_t elements = std::min(count, part->first + part->count - first);
    ARTESIAN_TRY_VOID(read_bytes(part->file, part->offset + (first - part->first) * size,
                                 {target, elements * size}));
    target += elements * size;
    first += elements;
    count -= elements;
    ++part;
  }
  return {};
}

Result<void> CheckpointReader::read_split(std::uint32_t parameter, std::uint64_t first,
                                          std::span<float> master,
                                          std::span<float> exp_avg_sq) const noexcept {
  const std::uint64_t count = std::max(master.size(), exp_avg_sq.size());
  ARTESIAN_CHECK(master.empty() || master.size() == count, master.size(), count);
  ARTESIAN_CHECK(exp_avg_sq.empty() || exp_avg_sq.size() == count, exp_avg_sq.size(), count);
  const auto tie = find_moment(parameter, MomentKind::SignedSquares);
  std::array<std::uint16_t, piece> high;
  std::array<std::uint16_t, piece> low;
  std::array<float, piece> moment;
  for (std::uint64_t done = 0; done < count; done += piece) {
    const std::uint64_t now = std::min(piece, count - done);
    if (tie.has_value()) {
      ARTESIAN_TRY_VOID(read_floats(parameter, *tie, first + done, std::span(moment).first(now)));
    } else {
      std::fill(moment.begin(), moment.end(), 0.0f);  // see Note [Without a bit] in split_master.h
    }
    if (!master.empty()) {
      ARTESIAN_TRY_VOID(
          read_array(parameter, SavedArray::MasterHigh, first + done, now, bytes_of(high.data())));
      ARTESIAN_TRY_VOID(
          read_array(parameter, SavedArray::MasterLow, first + done, now, bytes_of(low.data())));
    }
    for (std::uint64_t i = 0; i < now; ++i) {
      if (!exp_avg_sq.empty()) exp_avg_sq[done + i] = std::abs(moment[i]);
      if (master.empty()) continue;
      master[done + i] = kernels::join_master({high[i], low[i], moment[i]}).master;
    }
  }
  return {};
}

/// Reads elements of an array of any floating-point dtype, as fp32.
Result<void> CheckpointReader::read_floats(std::uint32_t parameter, SavedArray array,
                                           std::uint64_t first,
                                           std::span<float> target) const noexcept {
  if (target.empty()) return {};
  const auto& parts = have_[parameter].parts[static_cast<std::size_t>(array)];
  const std::string_view type = parts.front().type->name;
  if (type == "F32") {
    return read_array(parameter, array, first, target.size(), bytes_of(target.data()));
  }
  std::array<std::uint16_t, piece> halves;
  for (std::uint64_t done = 0; done < target.size(); done += piece) {
    const std::uint64_t now = std::min<std::uint64_t>(piece, target.size() - done);
    ARTESIAN_TRY_VOID(read_array(parameter, array, first + done, now, bytes_of(halves.data())));
    for (std::uint64_t i = 0; i < now; ++i) {
      target[done + i] = type == "F16" ? fp16_to_float(halves[i]) : bf16_to_float(halves[i]);
    }
  }
  return {};
}

Result<void> CheckpointReader::read(std::uint32_t parameter, std::uint64_t first,
                                    std::span<float> master, std::span<float> exp_avg,
                                    std::span<float> exp_avg_sq) const noexcept {
  ARTESIAN_CHECK(parameter < have_.size(), parameter, have_.size());
  const std::uint64_t numel = manifest_.parameters[parameter].numel();
  for (const auto& wanted : {master, exp_avg, exp_avg_sq}) {
    ARTESIAN_CHECK(first <= numel && wanted.size() <= numel - first, first, wanted.size(), numel);
  }
  const bool split = has(parameter, SavedArray::MasterHigh);
  if (split) {
    ARTESIAN_TRY_VOID(read_split(parameter, first, master, exp_avg_sq));
  } else if (!master.empty() && has(parameter, SavedArray::Weight)) {
    ARTESIAN_TRY_VOID(read_floats(parameter, SavedArray::Weight, first, master));
  } else if (!master.empty()) {
    ARTESIAN_TRY_VOID(read_floats(parameter, SavedArray::Master, first, master));
  }
  const auto read_moment = [&](MomentKind kind, std::span<float> target) -> Result<void> {
    if (const auto array = find_moment(parameter, kind)) {
      return read_floats(parameter, *array, first, target);
    }
    std::fill(target.begin(), target.end(), 0.0f);
    return {};
  };
  ARTESIAN_TRY_VOID(read_moment(MomentKind::Average, exp_avg));
  return split ? Result<void>() : read_moment(MomentKind::Squares, exp_avg_sq);
}

Result<std::string> CheckpointReader::read_buffer(const SavedBufferPlace& place) const noexcept {
  std::string bytes(static_cast<std::size_t>(place.bytes), '\0');
  ARTESIAN_TRY_VOID(read_bytes(place.file, place.offset, {bytes_of(bytes.data()), bytes.size()}));
  return bytes;
}

Result<std::string> CheckpointReader::read_side_file(const std::string& name) const noexcept {
  const auto found = std::find_if(manifest_.side_files.begin(), manifest_.side_files.end(),
                                  [&](const SavedSideFile& each) { return each.name == name; });
  if (found == manifest_.side_files.end()) {
    return of_file(make_error(ErrorCode::Invalid, "the checkpoint has no such file"), *folder_,
                   shown_name(name));
  }
  const std::size_t slash = name.find('/');
  std::unique_ptr<Folder> inner;
  if (slash != std::string::npos) {
    ARTESIAN_TRY(opened, folder_->open_folder(name.substr(0, slash)));
    inner = std::move(opened);
  }
  Folder& folder = inner == nullptr ? *folder_ : *inner;
  const std::string last = inner == nullptr ? name : name.substr(slash + 1);
  return read_with_digest(folder, last, found->bytes, found->digest);
}

Result<void> CheckpointReader::check_side_files(std::vector<Error>& faults,
                                                std::size_t faults_max) const noexcept {
  for (const SavedSideFile& file : manifest_.side_files) {
    auto read = read_side_file(file.name);
    if (read.has_value()) continue;
    if (read.error().code != ErrorCode::Corrupt) return std::move(read).error();
    if (faults.size() < faults_max) faults.push_back(std::move(read).error());
  }
  return {};
}

Result<std::vector<Error>> CheckpointReader::verify(const Progress& progress,
                                                    std::size_t faults_max) const noexcept {
  std::vector<Error> faults;
  ARTESIAN_TRY_VOID(check_side_files(faults, faults_max));
  std::uint64_t all = 0;
  for (const SavedDataFile& file : manifest_.files) all += file.bytes - file.head_bytes;
  std::uint64_t done = 0;
  for (std::size_t file = 0; file < data_.size(); ++file) {
    for (std::uint64_t block = 0; block < data_[file].ends.size(); ++block) {
      if (faults.size() >= faults_max) return faults;
      auto loaded = load(file, block);
      if (loaded.has_value()) {
        done += (*loaded)->size;
      } else if (loaded.error().code == ErrorCode::Corrupt) {
        done += loaded.error().length;
        faults.push_back(std::move(loaded).error());
      } else {
        return std::move(loaded).error();
      }
      if (progress) progress(done, all);
    }
  }
  return faults;
}

Result<NameMatch> match_names(const std::vector<ParameterSpec>& parameters,
                              const CheckpointReader& reader, Strict strict,
                              const OtherName& other_name) {
  const CheckpointManifest& manifest = reader.manifest();
  NameMatch match;
  std::vector<bool> used(manifest.parameters.size(), false);
  std::string faults;
  for (const ParameterSpec& parameter : parameters) {
    auto saved = reader.find(parameter.name);
    if (!saved && other_name) saved = reader.find(other_name(parameter.name));
    const bool excluded = reader.is_excluded(parameter.name);
    match.saved.push_back(excluded ? std::nullopt : saved);
    if (saved) used[*saved] = true;
    if (excluded) continue;
    if (!saved) {
      match.missing.push_back(parameter.name);
      continue;
    }
    const auto& shape = manifest.parameters[*saved].shape;
    if (!std::equal(shape.begin(), shape.end(), parameter.shape.begin(), parameter.shape.end(),
                    [](std::uint64_t left, std::int64_t right) {
                      return left == static_cast<std::uint64_t>(right);
                    })) {
      faults += fmt::format("{}checkpoint: parameter {}: its shape is not the model's",
                            faults.empty() ? "" : "\n", shown_name(parameter.name));
    }
  }
  for (std::size_t index = 0; index < used.size(); ++index) {
    if (!used[index]) match.unexpected.push_back(manifest.parameters[index].name);
  }
  if (strict == Strict::Yes) {
    const auto list = [&](const std::vector<std::string>& names, const char* what) {
      if (names.empty()) return;
      faults += fmt::format("{}checkpoint: {}{}, the first is {}", faults.empty() ? "" : "\n",
                            names.size(), what, shown_name(names.front()));
    };
    list(match.missing, " parameters of the model are not in it");
    list(match.unexpected, " parameters of it are not the model's");
  }
  if (!faults.empty()) return make_error(ErrorCode::Invalid, faults);
  return match;
}

}  // namespace artesian::zero3
