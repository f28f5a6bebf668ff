// Proves that a manifest is read as it was written, that every flipped byte is refused, and that
// impossible values under a right checksum are refused by name.
#include "zero3/checkpoint/checkpoint_manifest.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "zero3/plan/checkpoint_names.h"

namespace artesian::zero3 {
namespace {

using Json = nlohmann::ordered_json;

CheckpointManifest full_manifest() {
  CheckpointManifest manifest;
  manifest.link = {.id = ~std::uint64_t{0}, .parent = 2, .lineage = 3, .serial = 4};
  manifest.run_id = 5;
  manifest.created = "2026-01-01";
  manifest.state = {
      .step = 9,
      .updates = 8,
      .parameter_steps = {8, 7, 0},
      .skipped_in_a_row = 1,
      .scaler = {.scale = 1.0 / 3, .hysteresis_left = 2, .iteration = 9, .overflow_last = 8},
      .random = {{"cpu", std::string("\0\x7f\xff", 3)}, {"cuda:0", ""}}};
  manifest.parameters = {{"a\"\n\xc3\xa4", {2, 3}, true}, {"w@3", {4}, true}, {"f", {}, false}};
  manifest.groups = {{"adamw", 0.9, 0.999, 1e-8, 0.1, 3e-4, 8, {0}},
                     {"adamw", 0.8, 0.99, 1e-6, 0.0, 1e-5, 7, {1}}};
  const SafetensorsType* f32 = find_safetensors_type("F32");
  manifest.files = {{"rank0.safetensors",
                     0,
                     "host",
                     16384,
                     4096,
                     std::string(32, 'a'),
                     std::string(32, 'b'),
                     {1, 9, 0}},
                    {"frozen.safetensors",
                     0,
                     "",
                     8192,
                     4096,
                     std::string(32, 'c'),
                     std::string(32, 'd'),
                     {7, 1, 0}}};
  const SafetensorsType* bf16 = find_safetensors_type("BF16");
  manifest.parts = {{SavedArray::Master, f32, 0, 0, 6, 0, 4096},
                    {SavedArray::MasterHigh, bf16, 1, 0, 2, 0, 12288},
                    {SavedArray::MasterHigh, bf16, 1, 2, 2, 0, 12352},
                    {SavedArray::ExpAvg, f32, 0, 0, 6, 0, 8192},
                    {SavedArray::Weight, find_safetensors_type("F16"), 2, 0, 1, 1, 4096}};
  manifest.buffers = {{{"running_mean", find_safetensors_type("F64"), {3}}, 0, 12416, 24}};
  manifest.side_files = {{"client-a", 3, std::string(32, 'e')},
                         {"model/config.json", 0, std::string(32, 'f')}};
  manifest.aliases = {{"lm_head", "w@3"}};
  manifest.excluded = {"base"};
  manifest.config = "{}";
  manifest.machine = {{"threads", "2"}};
  manifest.trainer = SavedTrainer{.next_sample = 72,
                                  .seed = ~std::uint64_t{0},
                                  .order = "shuffled",
                                  .sequence_length = 128,
                                  .sources = {{"x.bin", 10, "y"}},
                                  .tokenizer_digest = "z",
                                  .log_line = "{\"step\":9}\n"};
  return manifest;
}

std::string text_of(const CheckpointManifest& manifest) {
  auto text = write_manifest(manifest);
  EXPECT_TRUE(text.has_value());
  return text.has_value() ? *text : "";
}

/// Completes a tree with the right checksum.
std::string closed(Json tree) {
  tree.erase("checksum");
  std::string text = tree.dump();
  text.pop_back();
  text += ",\"checksum\":\"";
  return text + digest_of(text) + "\"}";
}

void expect_equal(const CheckpointManifest& left, const CheckpointManifest& right) {
  EXPECT_EQ(left.link, right.link);
  EXPECT_EQ(left.run_id, right.run_id);
  EXPECT_EQ(left.created, right.created);
  EXPECT_EQ(left.state, right.state);
  EXPECT_EQ(left.parameters, right.parameters);
  EXPECT_EQ(left.groups, right.groups);
  EXPECT_EQ(left.files, right.files);
  EXPECT_EQ(left.side_files, right.side_files);
  EXPECT_EQ(left.aliases, right.aliases);
  EXPECT_EQ(left.excluded, right.excluded);
  EXPECT_EQ(left.config, right.config);
  EXPECT_EQ(left.machine, right.machine);
  EXPECT_EQ(left.trainer, right.trainer);
}

TEST(CheckpointManifest, ComesBackAsItWasWritten) {
  const CheckpointManifest manifest = full_manifest();
  const std::string text = text_of(manifest);
  const auto read = read_manifest(text);
  ASSERT_TRUE(read.has_value()) << read.error().to_string();
  expect_equal(*read, manifest);
  ASSERT_EQ(read->parts.size(), manifest.parts.size());
  for (std::size_t index = 0; index < manifest.parts.size(); ++index) {
    const SavedPart& part = read->parts[index];
    const SavedPart& was = manifest.parts[index];
    EXPECT_EQ(
        std::tie(part.array, part.type, part.parameter, part.first, part.count, part.file,
                 part.offset),
        std::tie(was.array, was.type, was.parameter, was.first, was.count, was.file, was.offset));
  }
  ASSERT_EQ(read->buffers.size(), 1u);
  EXPECT_EQ(read->buffers[0].bytes, 24u);
  EXPECT_EQ(text_of(*read), text);
  EXPECT_TRUE(Json::accept(text));
}

TEST(CheckpointManifest, EveryByteIsCovered) {
  const std::string text = text_of(full_manifest());
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string bad = text;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      const auto read = read_manifest(bad);
      ASSERT_FALSE(read.has_value()) << at;
      EXPECT_EQ(read.error().code, ErrorCode::Corrupt);
    }
    ASSERT_FALSE(read_manifest(text.substr(0, at)).has_value());
  }
}

struct Case {
  const char* where;
  Json value;
  const char* named;
};

std::vector<Case> impossible_cases() {
  return {
      {"/version", 2, "version"},
      {"/id", "0000000000000000", "id"},
      {"/id", "../", "id"},
      {"/parent", 3, "parent"},
      {"/state/step", -1, "step"},
      {"/state/updates", 10, "updates"},
      {"/state/parameter_steps", {1, 2}, "parameter_steps"},
      {"/state/loss_scaler/scale", "x", "scale"},
      {"/state/loss_scaler/overflow_last", 9, "overflow_last"},
      {"/state/loss_scaler/overflow_last", -5, "overflow_last"},
      {"/state/random/cpu", "0g", "random"},
      {"/state/random/cpu", "012", "random"},
      {"/parameters/1/name", "f", "twice"},
      {"/parameters/1/shape", {1ull << 40, 1ull << 40}, "shape"},
      {"/parameters/1/shape", {-1}, "shape"},
      {"/parameters/2/trainable", 1, "trainable"},
      {"/groups/0/parameters", {0, 1}, "groups"},
      {"/groups/0/parameters", {3}, "groups"},
      {"/groups/0/betas", {0.9}, "betas"},
      {"/groups/0/betas", Json::array({0.9, nullptr}), "betas"},
      {"/files/0/name", "../rank0.safetensors", "files"},
      {"/files/0/name", "/etc/passwd", "files"},
      {"/files/1/name", "rank0.safetensors", "twice"},
      {"/files/0/head_bytes", 20000, "head_bytes"},
      {"/files/0/head_bytes", 4097, "rank0"},
      {"/files/0/head_digest", "zz", "head_digest"},
      {"/files/0/sums_of/id", 1, "id"},
      {"/side_files/0/name", "client-../../x", "side_files"},
      {"/side_files/0/name", "manifest.json", "side_files"},
      {"/side_files/1/name", "client-a", "twice"},
      {"/side_files/0/bytes", 1ull << 40, "bytes"},
      {"/arrays/0/array", "fp31", "fp31"},
      {"/arrays/0/role", "weight", "weight"},
      {"/arrays/0/encoding", "zip", "zip"},
      {"/arrays/0/dtype", "F99", "F99"},
      {"/arrays/0/parts/0", {0, 0, 7, 0, 4096}, "fp32"},
      {"/arrays/0/parts/0", {0, 1, ~0ull >> 2, 0, 4096}, "fp32"},
      {"/arrays/0/parts/0", {9, 0, 6, 0, 4096}, "fp32"},
      {"/arrays/0/parts/0", {0, 0, 6, 2, 4096}, "fp32"},
      {"/arrays/0/parts/0", {0, 0, 6, 0, 4095}, "fp32"},
      {"/arrays/0/parts/0", {0, 0, 6, 0, 0}, "fp32"},
      {"/arrays/0/parts/0", {0, 0, 6, 0, 16380}, "fp32"},
      {"/arrays/0/parts/0", {0, 0, 6, 0, 8196}, "share bytes"},
      {"/arrays/0/parts/0", {0, 0, 6, 0}, "five"},
      {"/buffers/0/dtype", "F1", "dtype"},
      {"/buffers/0/shape", {1ull << 61}, "shape"},
      {"/buffers/0/shape", {3000}, "running_mean"},
      {"/buffers/0/offset", 12352, "share bytes"},
      {"/trainer/sources", 3, "sources"},
      {"/machine/threads", 2, "machine"},
      {"/aliases/lm_head", 2, "aliases"},
      {"/excluded", "x", "excluded"},
  };
}

TEST(CheckpointManifest, WhatCannotBeIsRefusedByName) {
  const Json good = Json::parse(text_of(full_manifest()));
  ASSERT_TRUE(read_manifest(closed(good)).has_value());
  for (const Case& each : impossible_cases()) {
    Json bad = good;
    bad[Json::json_pointer(each.where)] = each.value;
    const auto read = read_manifest(closed(bad));
    ASSERT_FALSE(read.has_value()) << each.where << " " << each.value;
    EXPECT_NE(read.error().message.find(each.named), std::string::npos)
        << each.where << ": " << read.error().message;
  }
  for (const auto& [key, value] : good.items()) {
    if (key == "checksum" || key == "parent" || key == "trainer") continue;
    Json bad = good;
    bad.erase(key);
    const auto read = read_manifest(closed(bad));
    ASSERT_FALSE(read.has_value()) << key;
    EXPECT_NE(read.error().message.find(key), std::string::npos) << read.error().message;
  }
}

TEST(CheckpointManifest, ElementsThatTwoPartsHaveAreRefused) {
  CheckpointManifest manifest = full_manifest();
  manifest.parts[2].first = 1;
  const auto read = read_manifest(text_of(manifest));
  ASSERT_FALSE(read.has_value());
  EXPECT_NE(read.error().message.find("share elements"), std::string::npos);
}

TEST(CheckpointManifest, KeysThatComeTwiceAndDepthAreRefused) {
  std::string text = text_of(full_manifest());
  const auto close = [](std::string open) {
    open += ",\"checksum\":\"";
    return open + digest_of(open) + "\"}";
  };
  text.resize(text.rfind(",\"checksum\""));
  ASSERT_TRUE(read_manifest(close(text)).has_value());
  const auto twice = read_manifest(close(text + ",\"version\":1"));
  ASSERT_FALSE(twice.has_value());
  EXPECT_NE(twice.error().message.find("\"version\" comes twice"), std::string::npos);
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const auto nested = read_manifest(close(text + ",\"x\":" + deep));
  ASSERT_FALSE(nested.has_value());
  EXPECT_NE(nested.error().message.find("nested"), std::string::npos);
  EXPECT_TRUE(read_manifest(close(text + ",\"of_a_newer_program\":{\"a\":1}")).has_value());
}

TEST(CheckpointManifest, WhatCannotBeWrittenIsSaid) {
  CheckpointManifest manifest = full_manifest();
  manifest.groups[0].lr = 1.0 / 0.0;
  EXPECT_FALSE(write_manifest(manifest).has_value());
  manifest = full_manifest();
  const auto expect_refused = [&](std::string& text) {
    const std::string good = std::exchange(text, "\xff");
    const auto refused = write_manifest(manifest);
    text = good;
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::Invalid);
  };
  expect_refused(manifest.parameters[0].name);
  expect_refused(manifest.groups[0].optimizer);
  expect_refused(manifest.files[0].node);
  expect_refused(manifest.trainer->order);
  expect_refused(manifest.trainer->sources[0].digest);
  EXPECT_TRUE(write_manifest(manifest).has_value());
}

}  // namespace
}  // namespace artesian::zero3
