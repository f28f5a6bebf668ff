// MadeUpTraining: a small model whose state is a function of its seed and step. It is saved through
// the saver as an engine saves it, and compared with what a reader returns. It works with any
// FileSystem and any I/O engine.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "kernels/split_master.h"
#include "tests/support/crash_files.h"
#include "zero3/checkpoint/checkpoint_reader.h"
#include "zero3/checkpoint/checkpoint_saver.h"
#include "zero3/plan/layout.h"

namespace artesian::zero3 {

/// Lends memory that is returned, or is given up and then kept.
struct LentBuffers final : BufferOwner {
  BufferLease lend(std::uint64_t bytes) {
    auto* data = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
    ++out;
    return {data, bytes, this};
  }
  void give_back(std::byte* data, std::uint64_t) noexcept override {
    --out;
    std::free(data);
  }
  void abandon(std::byte* data, std::uint64_t) noexcept override {
    lost().push_back(data);
    ++given_up;
  }
  static std::vector<std::byte*>& lost() {
    static auto& all = *new std::vector<std::byte*>;
    return all;
  }
  int out = 0;
  int given_up = 0;
};

class MadeUpTraining {
 public:
  /// `ranks`: images are cut into this many shares, each in a file. `frozen`: 16-bit frozen
  /// parameters.
  explicit MadeUpTraining(StateForm form, std::uint64_t numel = 3000, std::uint32_t ranks = 1,
                          DType frozen = DType::BFloat16)
      : ranks_(ranks), frozen_(frozen) {
    add_unit(StateForm::Frozen, {numel / 2});
    add_unit(form, {numel, 77});
    add_unit(form, {5, numel / 3});
  }

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }

  /// Returns the value that a reader must return.
  float master(std::uint64_t step, std::uint32_t parameter, std::uint64_t i) const {
    const std::uint64_t when = form_[parameter] == StateForm::Frozen ? 0 : step;
    const auto word = random_word(when, parameter, i);
    // One in four is a tie of the split, the others are any finite pattern.
    auto bits = static_cast<std::uint32_t>(word) & 0xbf7fffffu;
    const auto half = static_cast<std::uint16_t>(bits >> 16);
    if (form_[parameter] == StateForm::Frozen) {
      return frozen_ == DType::Float16 ? fp16_to_float(half) : bf16_to_float(half);
    }
    if ((word >> 60) < 4) bits = (bits & 0xffff0000u) | 0x8000u;
    return std::bit_cast<float>(bits);
  }
  float exp_avg(std::uint64_t step, std::uint32_t parameter, std::uint64_t i) const {
    if (form_[parameter] == StateForm::Frozen) return 0.0f;
    return static_cast<float>(random_word(step, 100 + parameter, i) % 1000) - 500.0f;
  }
  float exp_avg_sq(std::uint64_t step, std::uint32_t parameter, std::uint64_t i) const {
    if (form_[parameter] == StateForm::Frozen) return 0.0f;
    return static_cast<float>(random_word(step, 200 + parameter, i) % 1000);
  }

  std::vector<SavedImage> images_of(std::uint32_t rank) const {
    std::vector<SavedImage> images = images_;
    for (SavedImage& image : images) {
      const std::uint64_t share = round_up((image.count + ranks_ - 1) / ranks_, image_alignment);
      image.first = std::min(share * rank, image.count);
      image.count = std::min(share, image.count - image.first);
    }
    return images;
  }

  /// Saves the state of `step`. Returns the error of the first call that failed.
  Result<SavedCheckpoint> save(CheckpointSaver& saver, const std::string& tag, std::uint64_t step,
                               LentBuffers& buffers, std::vector<SideFile> files = {}) const {
    ARTESIAN_TRY_VOID(saver.begin(tag, step));
    CheckpointManifest manifest = manifest_of(step);
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      auto added = add_rank(saver, rank, step, buffers, manifest);
      if (added.has_value()) continue;
      saver.abandon(added.error());
      break;
    }
    std::erase_if(manifest.parts, [&](const SavedPart& part) {
      return parameters_[part.parameter].name == left_out;
    });
    if (!left_out.empty() && says_left_out) manifest.excluded = {left_out};
    if (saver.begun()) saver.commit(std::move(manifest), std::move(files));
    ARTESIAN_TRY(saved, saver.finish(Deadline::after_seconds(wait_seconds)));
    EXPECT_TRUE(saved.has_value());
    return *saved;
  }

  /// The same by ranks, each with its own saver, in the order of Checkpoints (its Note [By several
  /// ranks]). `as` is called with the rank whose operations follow, `meet` where all ranks meet.
  Result<SavedCheckpoint> save_together(const std::vector<std::unique_ptr<CheckpointSaver>>& savers,
                                        const std::string& tag, std::uint64_t step,
                                        LentBuffers& buffers,
                                        const std::function<void(std::uint32_t)>& as,
                                        const std::function<void()>& meet) const {
    CheckpointSaver& first = *savers.front();
    as(0);
    ARTESIAN_TRY_VOID(first.begin(tag, step));
    meet();
    const CheckpointToJoin begun = first.to_join();
    CheckpointManifest manifest = manifest_of(step);
    std::vector<SavedDataFile> durable;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      as(rank);
      if (rank != 0) ARTESIAN_TRY_VOID(savers[rank]->join(begun, tag, step));
      ARTESIAN_TRY_VOID(add_rank(*savers[rank], rank, step, buffers, manifest));
      if (rank == 0) continue;
      ARTESIAN_TRY(file, savers[rank]->make_durable(Deadline::after_seconds(wait_seconds)));
      durable.push_back(std::move(file));
    }
    meet();
    as(0);
    for (SavedDataFile& file : durable) first.add_durable(std::move(file));
    first.commit(std::move(manifest), {});
    ARTESIAN_TRY(saved, first.finish(Deadline::after_seconds(wait_seconds)));
    EXPECT_TRUE(saved.has_value());
    meet();
    return *saved;
  }

  CheckpointManifest manifest_of(std::uint64_t step) const {
    CheckpointManifest manifest;
    manifest.state.step = step;
    manifest.state.updates = step;
    manifest.state.scaler = {
        .scale = 1024.0, .hysteresis_left = 1, .iteration = step + 1, .overflow_last = -1};
    manifest.state.random["cpu"] = std::string("\0\xff\x01", 3);
    for (std::size_t index = 0; index < parameters_.size(); ++index) {
      SavedParameter saved{.name = parameters_[index].name};
      for (const auto extent : parameters_[index].shape) {
        saved.shape.push_back(static_cast<std::uint64_t>(extent));
      }
      saved.trainable = form_[index] != StateForm::Frozen;
      manifest.parameters.push_back(std::move(saved));
    }
    SavedGroup group{.optimizer = "adamw",
                     .beta1 = 0.9,
                     .beta2 = 0.999,
                     .eps = 1e-8,
                     .weight_decay = 0.1,
                     .lr = 3e-4,
                     .step = step};
    for (std::uint32_t index = 1; index < parameters_.size(); ++index) {
      group.parameters.push_back(index);
    }
    manifest.groups.push_back(std::move(group));
    manifest.aliases = {{"tied", parameters_[1].name}};
    manifest.config = R"({"a": "b"})";
    manifest.machine["threads"] = "2";
    manifest.trainer = SavedTrainer{.next_sample = step * 8,
                                    .seed = 42,
                                    .order = "shuffled",
                                    .sequence_length = 128,
                                    .sources = {{"a.bin", 1000, "x"}},
                                    .tokenizer_digest = "",
                                    .log_line = "{}\n"};
    return manifest;
  }

  /// Expects the checkpoint to have exactly this step's state.
  void expect_state(const CheckpointReader& reader, std::uint64_t step) const {
    ASSERT_EQ(reader.manifest().state, manifest_of(step).state);
    for (std::uint32_t parameter = 0; parameter < parameters_.size(); ++parameter) {
      const std::uint64_t numel = parameters_[parameter].numel();
      std::vector<float> values[3] = {std::vector<float>(numel), std::vector<float>(numel),
                                      std::vector<float>(numel)};
      const auto read = reader.read(parameter, 0, values[0], values[1], values[2]);
      ASSERT_TRUE(read.has_value()) << read.error().to_string();
      for (std::uint64_t i = 0; i < numel; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(values[0][i]),
                  std::bit_cast<std::uint32_t>(master(step, parameter, i)));
        ASSERT_EQ(std::bit_cast<std::uint32_t>(values[1][i]),
                  std::bit_cast<std::uint32_t>(exp_avg(step, parameter, i)));
        ASSERT_EQ(std::bit_cast<std::uint32_t>(values[2][i]),
                  std::bit_cast<std::uint32_t>(exp_avg_sq(step, parameter, i)));
      }
    }
  }

  double wait_seconds = 60.0;
  std::string left_out;  // a parameter of which nothing is saved
  bool says_left_out = true;

 private:
  void add_unit(StateForm form, std::vector<std::uint64_t> sizes) {
    SavedImage image{.sub_group = image_alignment, .form = form, .frozen_dtype = frozen_};
    std::uint64_t end = 0;
    for (const std::uint64_t size : sizes) {
      ParameterSpec parameter;
      parameter.name = "h." + std::to_string(parameters_.size()) + ".w";
      parameter.shape = {static_cast<std::int64_t>(size)};
      const std::uint64_t first = round_up(end, parameter_alignment);
      image.parameters.push_back({static_cast<std::uint32_t>(parameters_.size()), first, size});
      end = first + size;
      parameters_.push_back(std::move(parameter));
      form_.push_back(form);
    }
    image.count = round_up(end, image_alignment);
    images_.push_back(std::move(image));
  }

  Result<void> add_rank(CheckpointSaver& saver, std::uint32_t rank, std::uint64_t step,
                        LentBuffers& buffers, CheckpointManifest& manifest) const {
    const std::vector<SavedImage> images = images_of(rank);
    ARTESIAN_TRY(made, make_checkpoint_layout(parameters_, images, {}, rank));
    const auto layout = std::make_shared<const CheckpointLayout>(std::move(made));
    ARTESIAN_TRY(snapshot, saver.add_file(rank_file_name(rank), rank, layout));
    manifest.parts.insert(manifest.parts.end(), layout->parts().begin(), layout->parts().end());
    for (std::size_t index = images.size(); index-- > 0;) {
      const SavedImage& image = images[index];
      for (const SavedArray array : arrays_of(image)) {
        for (std::uint64_t done = 0; done < image.count; done += image.sub_group) {
          const BlockRange range = layout->blocks_of(index, array, done / image.sub_group);
          EXPECT_EQ(range.count, 1u);
          const std::uint64_t length = layout->blocks()[range.first].length;
          write_block(*snapshot, {range.first, length}, image, array, done, step, buffers);
        }
      }
    }
    return {};
  }

  struct Block {
    std::uint64_t number;
    std::uint64_t length;
  };
  void write_block(tiering::SnapshotFile& snapshot, const Block& block, const SavedImage& image,
                   SavedArray array, std::uint64_t done, std::uint64_t step,
                   LentBuffers& buffers) const {
    const std::uint64_t length = block.length;
    BufferLease lease = buffers.lend(length);
    std::memset(lease.data(), 0, length);
    const std::uint64_t size = find_safetensors_type(array_type(array))->bits / 8;
    for (const SavedImage::Parameter& at : image.parameters) {
      for (std::uint64_t i = 0; i < at.numel; ++i) {
        const std::uint64_t element = at.first + i;
        const std::uint64_t first = image.first + done;
        if (element < first || element >= first + length / size) continue;
        put(lease.data() + (element - first) * size, array, step, at.parameter, i);
      }
    }
    snapshot.set_sum(block.number, snapshot.sum(block.number, {0, length}, lease.data()));
    snapshot.write(block.number, std::move(lease));
  }

  static std::string_view array_type(SavedArray array) {
    return array == SavedArray::Weight ? "BF16" : format_of(array).dtype;
  }

  void put(std::byte* to, SavedArray array, std::uint64_t step, std::uint32_t parameter,
           std::uint64_t i) const {
    const float value = master(step, parameter, i);
    const auto split = kernels::split_master(value, exp_avg_sq(step, parameter, i));
    const auto store = [&](auto element) { std::memcpy(to, &element, sizeof element); };
    switch (array) {
      case SavedArray::Master: return store(value);
      case SavedArray::MasterHigh: return store(split.high);
      case SavedArray::MasterLow: return store(split.low);
      case SavedArray::ExpAvg: return store(exp_avg(step, parameter, i));
      case SavedArray::ExpAvgSq: return store(exp_avg_sq(step, parameter, i));
      case SavedArray::ExpAvgSqSigned: return store(split.exp_avg_sq);
      case SavedArray::Weight:
        return store(frozen_ == DType::Float16 ? float_to_fp16(value) : float_to_bf16(value));
      default: break;  // of other optimizers
    }
  }

  std::uint32_t ranks_;
  DType frozen_;
  std::vector<ParameterSpec> parameters_;
  std::vector<StateForm> form_;  // by parameter
  std::vector<SavedImage> images_;
};

/// Options for a saver on CrashFiles.
inline SaverOptions options_on(test_support::CrashFiles& files, std::uint32_t keep) {
  SaverOptions options;
  options.directory = "/disk/checkpoints";
  options.run_id = 11;
  options.keep = keep;
  options.stall_seconds = 60.0;
  options.make_engine = [&files]() -> Result<std::unique_ptr<aio::Engine>> {
    return std::unique_ptr<aio::Engine>(
        std::make_unique<test_support::CrashEngine>(aio::EngineOptions{.queue_depth = 4}, files));
  };
  return options;
}

}  // namespace artesian::zero3
