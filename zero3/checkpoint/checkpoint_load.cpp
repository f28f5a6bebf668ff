#include "zero3/checkpoint/checkpoint_load.h"

#include <algorithm>

#include "kernels/cast.h"
#include "zero3/plan/checkpoint_names.h"

namespace artesian::zero3 {

Result<std::unique_ptr<CheckpointLoad>> CheckpointLoad::open(
    FileSystem& files, const LoadRequest& request, const std::vector<ParameterSpec>& parameters,
    DType dtype, Rest rest) {
  std::unique_ptr<CheckpointLoad> load(new CheckpointLoad(request, dtype));
  ARTESIAN_TRY(reader, CheckpointReader::open(files, request.directory, request.tag));
  load->reader_ = std::move(reader);
  ARTESIAN_TRY(match, match_names(parameters, *load->reader_, request.strict, request.other_name));
  load->match_ = std::move(match);
  ARTESIAN_CHECK(load->match_.saved.size() == parameters.size(), parameters.size());
  if (rest == Rest::IsMissing) ARTESIAN_TRY_VOID(load->check_missing(parameters));
  ARTESIAN_TRY_VOID(load->read_client_files());
  ARTESIAN_TRY_VOID(load->read_buffers());
  return load;
}

Result<void> CheckpointLoad::check_missing(const std::vector<ParameterSpec>& parameters) const {
  if (request_.rest != nullptr) return {};
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    if (match_.saved[index].has_value()) continue;
    return make_error(ErrorCode::Invalid, "checkpoint " + reader_->path() +
                                              ": got no weights of \"" + parameters[index].name +
                                              "\"; give a source for what it does not have");
  }
  return {};
}

Result<void> CheckpointLoad::read_client_files() {
  const std::string prefix = client_file_name("");
  for (const SavedSideFile& file : manifest().side_files) {
    if (!file.name.starts_with(prefix)) continue;
    ARTESIAN_TRY(bytes, reader_->read_side_file(file.name));
    client_.emplace(file.name.substr(prefix.size()), std::move(bytes));
  }
  return {};
}

Result<void> CheckpointLoad::read_buffers() {
  for (const SavedBufferPlace& place : manifest().buffers) {
    ARTESIAN_TRY(bytes, reader_->read_buffer(place));
    buffers_.push_back({place.buffer, std::move(bytes)});
  }
  return {};
}

Result<void> CheckpointLoad::read_array(std::uint32_t parameter, std::uint64_t first,
                                        std::span<float> master, std::span<float> exp_avg,
                                        std::span<float> exp_avg_sq) noexcept {
  ARTESIAN_CHECK(!keeps(parameter), parameter);  // the caller has a source for it
  const auto saved = match_.saved[parameter];
  if (saved.has_value() && request_.optimizer_states) {
    return reader_->read(*saved, first, master, exp_avg, exp_avg_sq);
  }
  std::fill(exp_avg.begin(), exp_avg.end(), 0.0f);
  std::fill(exp_avg_sq.begin(), exp_avg_sq.end(), request_.initial_squares);
  return saved.has_value() ? reader_->read(*saved, first, master, {}, {})
                           : request_.rest->read(parameter, first, master);
}

Result<void> CheckpointLoad::read(std::uint32_t parameter, std::uint64_t first,
                                  std::span<float> master, std::span<float> exp_avg,
                                  std::span<float> exp_avg_sq) noexcept {
  auto outcome = read_array(parameter, first, master, exp_avg, exp_avg_sq);
  if (!outcome.has_value()) {
    failed_ = true;
    return outcome;
  }
  if (request_.from_fp32_weights) return {};
  std::vector<std::byte> rounded(master.size() * dtype_size(dtype_));
  static_cast<void>(kernels::narrow(master.data(), rounded.data(), dtype_, master.size()));
  kernels::expand(rounded.data(), dtype_, master.data(), master.size());
  return {};
}

std::vector<std::uint64_t> CheckpointLoad::update_counts() const {
  const TrainingState& state = manifest().state;
  std::vector<std::uint64_t> counts;
  for (const auto& saved : match_.saved) {
    if (!request_.optimizer_states || !saved.has_value()) {
      counts.push_back(0);
    } else {
      counts.push_back(state.parameter_steps.empty() ? state.updates
                                                     : state.parameter_steps[*saved]);
    }
  }
  return counts;
}

LoadedCheckpoint CheckpointLoad::loaded() const {
  return {.tag = reader_->tag(),
          .manifest = manifest(),
          .client = client_,
          .buffers = buffers_,
          .missing = match_.missing,
          .unexpected = match_.unexpected};
}

}  // namespace artesian::zero3
