// Proves that the data file of a checkpoint is a valid safetensors file in which every element of
// every parameter of every array has its unit's place, that sub-groups are whole blocks at
// multiples of 4096, over random models, forms and shares of ranks, and that the shares of several
// ranks have each element once.
#include "zero3/plan/checkpoint_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "base/units.h"
#include "zero3/plan/layout.h"

namespace artesian::zero3 {
namespace {

struct Model {
  std::vector<ParameterSpec> parameters;
  std::vector<SavedImage> images;  // whole
};

Model random_model(std::mt19937_64& random) {
  Model model;
  const std::size_t units = 1 + random() % 4;
  const bool large = random() % 4 == 0;  // sub-groups of several blocks
  for (std::size_t unit = 0; unit < units; ++unit) {
    SavedImage image;
    const std::size_t count = 1 + random() % 4;
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < count; ++i) {
      ParameterSpec parameter;
      parameter.name = "h." + std::to_string(unit) + ".w" + std::to_string(i);
      const auto rows = static_cast<std::int64_t>(1 + random() % 200);
      const auto columns = static_cast<std::int64_t>(1 + random() % 50);
      parameter.shape = {rows, columns * (large ? 100 : 1)};
      const std::uint64_t first = round_up(end, parameter_alignment);
      image.parameters.push_back({.parameter = static_cast<std::uint32_t>(model.parameters.size()),
                                  .first = first,
                                  .numel = parameter.numel()});
      end = first + parameter.numel();
      model.parameters.push_back(std::move(parameter));
    }
    image.count = round_up(end, image_alignment);
    // 128: in 16 bits half a block, in 32 a whole one.
    const std::uint64_t whole_blocks = 128 * (1 + random() % 3);
    image.sub_group = image_alignment * (!large              ? 1 + random() % 5
                                         : random() % 2 == 0 ? whole_blocks
                                                             : 1 + random() % 400);
    image.form = static_cast<StateForm>(random() % 3);
    image.frozen_dtype = static_cast<DType>(random() % 3);
    image.moment_dtype = random() % 3 == 0 ? DType::BFloat16 : DType::Float32;
    image.moments = optimizer_forms()[random() % optimizer_forms().size()].moments;
    model.images.push_back(std::move(image));
  }
  return model;
}

std::vector<SafetensorsTensor> tensors_of(const CheckpointLayout& layout) {
  std::uint64_t length = 0;
  std::memcpy(&length, layout.head().data(), sizeof length);
  EXPECT_EQ(length + safetensors_prefix_size, layout.head().size());
  EXPECT_EQ(layout.head().size() % 4096, 0u);
  const auto tensors =
      parse_safetensors_header(std::string_view(layout.head()).substr(safetensors_prefix_size),
                               layout.file_bytes() - layout.head().size());
  EXPECT_TRUE(tensors.has_value());
  return *tensors;
}

void expect_blocks(const CheckpointLayout& layout, const std::vector<SavedImage>& images) {
  std::uint64_t offset = layout.head().size();
  for (const CheckpointBlock& block : layout.blocks()) {
    ASSERT_EQ(block.offset, offset);
    ASSERT_TRUE(block.length % 4096 == 0 && block.length > 0);
    ASSERT_LE(block.length, CheckpointBlock::bytes_max);
    offset += block.length;
  }
  std::uint64_t next = 0;
  for (std::size_t image = 0; image < images.size(); ++image) {
    for (const SavedArray array : arrays_of(images[image])) {
      for (std::uint64_t done = 0; done < images[image].count; done += images[image].sub_group) {
        const BlockRange range = layout.blocks_of(image, array, done / images[image].sub_group);
        ASSERT_EQ(range.first, next);
        next += range.count;
        std::uint64_t bytes = 0;
        for (std::uint64_t block = range.first; block < next; ++block) {
          bytes += layout.blocks()[block].length;
        }
        const std::uint64_t elements =
            std::min(images[image].sub_group, images[image].count - done);
        ASSERT_TRUE(bytes == elements * 4 || bytes == elements * 2);
      }
    }
  }
  EXPECT_EQ(next, layout.buffer_blocks().first);
}

/// Finds an element's place in the file by the blocks; the table must agree.
void expect_parts(const CheckpointLayout& layout, const Model& model,
                  const std::vector<SavedImage>& images) {
  std::size_t at = 0;
  for (std::size_t index = 0; index < images.size(); ++index) {
    const SavedImage& image = images[index];
    for (const SavedArray array : arrays_of(image)) {
      if (image.count == 0) continue;
      const std::uint64_t begin = layout.blocks()[layout.blocks_of(index, array, 0).first].offset;
      for (const SavedImage::Parameter& parameter : image.parameters) {
        const std::uint64_t from = std::max(parameter.first, image.first);
        const std::uint64_t to =
            std::min(parameter.first + parameter.numel, image.first + image.count);
        if (from >= to) continue;
        ASSERT_LT(at, layout.parts().size());
        const SavedPart& part = layout.parts()[at++];
        EXPECT_EQ(part.array, array);
        EXPECT_EQ(part.parameter, parameter.parameter);
        EXPECT_EQ(part.first, from - parameter.first);
        EXPECT_EQ(part.count, to - from);
        EXPECT_EQ(part.offset, begin + (from - image.first) * part.type->bits / 8);
      }
    }
  }
  EXPECT_EQ(at, layout.parts().size());
  EXPECT_FALSE(model.parameters.empty());
}

TEST(CheckpointLayout, IsASafetensorsFileOfImages) {
  std::mt19937_64 random(1);
  for (int run = 0; run < 300; ++run) {
    const Model model = random_model(random);
    const std::vector<SavedBuffer> buffers{
        {"scale", find_safetensors_type("F64"), {3}},
        {"none", find_safetensors_type("I8"), {0, 2}},
        {"mask", find_safetensors_type("BOOL"), {random() % 5000}}};
    const auto layout = make_checkpoint_layout(model.parameters, model.images, buffers, 0);
    ASSERT_TRUE(layout.has_value());
    expect_blocks(*layout, model.images);
    expect_parts(*layout, model, model.images);
    std::map<std::string, SafetensorsTensor> by_name;
    for (const SafetensorsTensor& tensor : tensors_of(*layout)) by_name[tensor.name] = tensor;
    for (const SavedPart& part : layout->parts()) {
      const ParameterSpec& parameter = model.parameters[part.parameter];
      const std::string name = std::string(format_of(part.array).name) + "/" + parameter.name;
      ASSERT_TRUE(by_name.contains(name)) << name;
      const SafetensorsTensor& tensor = by_name[name];
      EXPECT_EQ(tensor.begin + layout->head().size(), part.offset);
      EXPECT_EQ(tensor.type, part.type);
      EXPECT_EQ(tensor.shape.size(), 2u);
    }
    ASSERT_EQ(layout->buffers().size(), 3u);
    for (const SavedBufferPlace& place : layout->buffers()) {
      EXPECT_EQ(by_name["buffer/" + place.buffer.name].begin + layout->head().size(), place.offset);
    }
    EXPECT_EQ(checkpoint_data_bytes(model.images) + layout->head().size(),
              layout->blocks()[layout->buffer_blocks().first].offset);
  }
}

TEST(CheckpointLayout, SharesOfRanksHaveEachElementOnce) {
  std::mt19937_64 random(2);
  for (int run = 0; run < 200; ++run) {
    const Model model = random_model(random);
    const std::uint64_t ranks = 2 + random() % 3;
    std::map<std::pair<std::uint32_t, SavedArray>, std::vector<int>> seen;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      std::vector<SavedImage> images = model.images;
      for (SavedImage& image : images) {
        const std::uint64_t share = round_up((image.count + ranks - 1) / ranks, image_alignment);
        image.first = std::min(share * rank, image.count);
        image.count = std::min(share, image.count - image.first);
      }
      const auto layout =
          make_checkpoint_layout(model.parameters, images, {}, static_cast<std::uint32_t>(rank));
      ASSERT_TRUE(layout.has_value());
      expect_blocks(*layout, images);
      expect_parts(*layout, model, images);
      tensors_of(*layout);
      for (const SavedPart& part : layout->parts()) {
        EXPECT_EQ(part.file, rank);
        auto& counts = seen[{part.parameter, part.array}];
        counts.resize(model.parameters[part.parameter].numel());
        for (std::uint64_t i = 0; i < part.count; ++i) ++counts[part.first + i];
      }
    }
    for (const auto& [key, counts] : seen) {
      for (const int count : counts) ASSERT_EQ(count, 1);
    }
  }
}

TEST(CheckpointLayout, NamesThatClashAreToldApartAndBadOnesRefused) {
  ParameterSpec whole{.name = "w@2048", .shape = {2048}};
  ParameterSpec cut{.name = "w", .shape = {4096}};
  SavedImage first{.parameters = {{0, 0, 2048}}, .count = 2048, .sub_group = 2048};
  SavedImage second{.parameters = {{1, 0, 4096}}, .first = 2048, .count = 2048, .sub_group = 2048};
  const auto layout = make_checkpoint_layout({whole, cut}, {first, second}, {}, 0);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(tensors_of(*layout).size(), 6u);
  ParameterSpec third{.name = "w@2048'", .shape = {2048}};  // the name that tells them apart
  SavedImage last{.parameters = {{2, 0, 2048}}, .count = 2048, .sub_group = 2048};
  const auto three = make_checkpoint_layout({whole, cut, third}, {last, first, second}, {}, 0);
  ASSERT_TRUE(three.has_value());
  std::set<std::string> names;
  for (const SafetensorsTensor& tensor : tensors_of(*three)) names.insert(tensor.name);
  EXPECT_EQ(names.size(), 9u);
  for (const std::string& name :
       {std::string("\xff"), std::string("\xed\xa0\x80"), std::string("a\xc3")}) {
    whole.name = name;
    const auto refused = make_checkpoint_layout({whole, cut}, {first, second}, {}, 0);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::Invalid);
  }
  whole.name = "a\"b\nc\\~0/\xf0\x9f\x98\x80";
  EXPECT_TRUE(make_checkpoint_layout({whole, cut}, {first, second}, {}, 0).has_value());
}

TEST(CheckpointLayout, ArraysOfAnotherKindAreRefusedByName) {
  ASSERT_TRUE(find_saved_array("exp_avg", "exp_avg", "plain", "F32").has_value());
  for (const auto& [name, role, encoding, dtype] :
       std::vector<std::array<const char*, 4>>{{"exp_avg", "exp_avg", "plain", "F16"},
                                               {"exp_avg", "exp_avg", "int8", "F32"},
                                               {"momentum", "momentum", "plain", "F32"},
                                               {"fp32", "weight", "plain", "F32"},
                                               {"weight", "weight", "plain", "I32"}}) {
    const auto refused = find_saved_array(name, role, encoding, dtype);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::Unsupported);
    EXPECT_NE(refused.error().message.find(name), std::string::npos);
  }
}

}  // namespace
}  // namespace artesian::zero3
