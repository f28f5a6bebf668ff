// Proves that a directory that we write is read back equal, single or sharded. The target is
// complete or absent, whatever fails, and needs no free byte at the end. A checkpoint's tensors are
// matched with the model's by name and shape, with a line for each fault. Random weights do not
// depend on how they are cut.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "models/checkpoint_weights.h"
#include "models/checkpoint_writer.h"
#include "tests/support/temporary_directory.h"

namespace artesian::models {
namespace {

using test_support::TemporaryDirectory;

const char* const tiny_config =
    R"({"model_type": "gpt2", "vocab_size": 11, "n_positions": 6, "n_embd": 4, "n_layer": 2,
        "n_head": 2, "embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0,
        "torch_dtype": "float64"})";

std::size_t entries_in(const std::string& path) {
  const std::filesystem::directory_iterator entries(path);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

/// A folder with a model directory "source" and a place for "target".
struct Workplace {
  Workplace() {
    folder.write("source/config.json", tiny_config);
    config = std::move(read_model_config(source())).value();
    parameters = model_parameters(config);
  }
  std::string source() const { return folder.path() + "/source"; }
  std::string target() const { return folder.path() + "/target"; }
  std::vector<ModelFile> files() const { return read_model_files(source()).value(); }

  std::vector<TensorDeclaration> declarations() const {
    std::vector<TensorDeclaration> declared;
    for (const auto& parameter : parameters) {
      declared.push_back({saved_name(config, parameter.name), parameter.shape});
    }
    return declared;
  }

  /// Value of element i of parameter p.
  static float value(std::size_t p, std::size_t i) { return static_cast<float>(p * 1000 + i); }

  /// Appends all tensors in pieces of `piece` elements.
  Result<void> append_all(CheckpointWriter& writer, std::size_t piece) const {
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      std::vector<float> values(parameters[p].numel());
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(p, i);
      for (std::size_t first = 0; first < values.size(); first += piece) {
        const auto part = std::span(values).subspan(first, std::min(piece, values.size() - first));
        ARTESIAN_TRY_VOID(writer.append(p, std::as_bytes(part)));
      }
    }
    return {};
  }

  Result<void> save(std::uint64_t shard_size_max, std::size_t piece = 7) const {
    ARTESIAN_TRY(files, read_model_files(source()));
    ARTESIAN_TRY(writer, CheckpointWriter::create({.target = target(),
                                                   .files = std::move(files),
                                                   .dtype = DType::Float32,
                                                   .shard_size_max = shard_size_max},
                                                  declarations()));
    ARTESIAN_TRY_VOID(append_all(writer, piece));
    return writer.commit();
  }

  TemporaryDirectory folder;
  ModelConfig config;
  std::vector<zero3::ParameterSpec> parameters;
};

void expect_values(const Workplace& place, const std::string& directory) {
  auto weights = CheckpointWeights::open(directory, place.config);
  ASSERT_TRUE(weights.has_value()) << weights.error().to_string();
  for (std::uint32_t p = 0; p < place.parameters.size(); ++p) {
    std::vector<float> got(place.parameters[p].numel());
    ASSERT_TRUE(weights->read(p, 0, got).has_value());
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], Workplace::value(p, i));
  }
}

TEST(CheckpointWriter, WhatIsWrittenIsReadBackSingleOrSharded) {
  for (const std::uint64_t shard_size_max :
       {std::uint64_t{1} << 40, std::uint64_t{1000}, std::uint64_t{300}, std::uint64_t{1}}) {
    const Workplace place;
    const auto saved = place.save(shard_size_max);
    ASSERT_TRUE(saved.has_value()) << saved.error().to_string();
    expect_values(place, place.target());
    EXPECT_TRUE(has_checkpoint(place.target()));
    const bool sharded = shard_size_max <= 1000;
    const std::size_t files = entries_in(place.target());
    EXPECT_EQ(files == 2, !sharded) << files;        // config.json and model.safetensors
    EXPECT_EQ(entries_in(place.folder.path()), 2u);  // nothing beside source and target
    if (shard_size_max == 1) {
      EXPECT_EQ(files, place.parameters.size() + 2);
    }
  }
}

TEST(CheckpointWriter, ConfigSaysTheNewDtypeAndTheTokenizerIsCopied) {
  const Workplace place;
  place.folder.write("source/tokenizer.json", "{\"version\": \"1.0\"}");
  ASSERT_TRUE(place.save(1 << 20).has_value());
  const auto config = nlohmann::json::parse(place.folder.read("target/config.json"));
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["n_embd"], 4);
  EXPECT_FALSE(config.contains("dtype"));
  EXPECT_EQ(place.folder.read("target/tokenizer.json"), "{\"version\": \"1.0\"}");
}

TEST(CheckpointWriter, TheModelsFolderMayBeGoneByTheEnd) {
  const Workplace place;
  place.folder.write("source/tokenizer.json", "{}");
  auto files = read_model_files(place.source());
  ASSERT_TRUE(files.has_value()) << files.error().to_string();
  std::filesystem::remove_all(place.source());
  auto writer = CheckpointWriter::create(
      {.target = place.target(), .files = std::move(files).value()}, place.declarations());
  ASSERT_TRUE(writer.has_value()) << writer.error().to_string();
  ASSERT_TRUE(place.append_all(*writer, 100).has_value());
  ASSERT_TRUE(writer->commit().has_value());
  expect_values(place, place.target());
  EXPECT_EQ(place.folder.read("target/tokenizer.json"), "{}");
  EXPECT_TRUE(read_model_config(place.target()).has_value());
}

TEST(CheckpointWriter, WhatCannotBeReadIsNamedBeforeTraining) {
  const Workplace place;
  std::filesystem::create_directory(place.source() + "/tokenizer.json");
  const auto files = read_model_files(place.source());
  ASSERT_FALSE(files.has_value());
  EXPECT_NE(files.error().to_string().find("tokenizer.json"), std::string::npos);
  EXPECT_EQ(read_model_files(place.folder.path() + "/none").error().code, ErrorCode::Io);
}

TEST(CheckpointWriter, DataStartsAtAMultipleOf64AndTheFormatIsNamed) {
  const Workplace place;
  ASSERT_TRUE(place.save(1 << 20).has_value());
  const std::string bytes = place.folder.read("target/model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ((8 + length) % 64, 0u);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["format"], "pt");
  EXPECT_TRUE(header.contains("transformer.wte.weight"));
}

TEST(CheckpointWriter, AnExistingTargetIsRefusedBeforeAnythingIsWritten) {
  const Workplace place;
  place.folder.write("target/precious", "kept");
  const auto saved = place.save(1 << 20);
  ASSERT_FALSE(saved.has_value());
  EXPECT_EQ(saved.error().code, ErrorCode::Invalid);
  EXPECT_NE(saved.error().to_string().find("exists already"), std::string::npos);
  EXPECT_EQ(entries_in(place.folder.path()), 2u);
  EXPECT_EQ(place.folder.read("target/precious"), "kept");
}

TEST(CheckpointWriter, ATargetThatAppearsMeanwhileIsNotReplaced) {
  const Workplace place;
  {
    auto writer = CheckpointWriter::create({.target = place.target() + "/", .files = place.files()},
                                           place.declarations());
    ASSERT_TRUE(writer.has_value());
    ASSERT_TRUE(place.append_all(*writer, 100).has_value());
    std::filesystem::create_directory(place.target());
    const auto committed = writer->commit();
    ASSERT_FALSE(committed.has_value());
    EXPECT_NE(committed.error().to_string().find("meanwhile; all is in "), std::string::npos);
  }
  EXPECT_EQ(entries_in(place.target()), 0u);
  const std::string kept = place.target() + ".partial-" + std::to_string(::getpid());
  expect_values(place, kept);
  EXPECT_EQ(entries_in(place.folder.path()), 3u);  // and what it would replace, and source
}

std::uint64_t free_in(const std::string& folder) {
  return std::filesystem::space(folder).free;
}

/// A file system in memory of this size at `path`, if we may mount one.
class SmallDisk {
 public:
  SmallDisk(const std::string& path, const char* size) : path_(path) {
    std::filesystem::create_directory(path);
    const std::string options = std::string("size=") + size;
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

TEST(CheckpointWriter, ADiskThatFillsMeanwhileTakesNothingFromIt) {
  const Workplace place;
  place.folder.write("source/tokenizer.json", std::string(50'000, ' '));
  for (const std::uint64_t shard_size_max : {1 << 20, 300}) {
    const std::string disk = place.folder.path() + "/disk" + std::to_string(shard_size_max);
    const SmallDisk small(disk, "1M");
    if (!small.mounted()) GTEST_SKIP() << "cannot mount here";
    auto writer = CheckpointWriter::create(
        {.target = disk + "/target", .files = place.files(), .shard_size_max = shard_size_max},
        place.declarations());
    ASSERT_TRUE(writer.has_value()) << writer.error().to_string();
    EXPECT_EQ(entries_in(disk), 0u);  // nobody sees it, and it ends with the process
    auto other = OutputFile::create(disk + "/other");
    const std::array<char, 4096> bytes{};
    while (other->append(bytes.data(), bytes.size()).has_value()) {
    }
    ASSERT_EQ(free_in(disk), 0u);
    const auto appended = place.append_all(*writer, 100);
    ASSERT_TRUE(appended.has_value()) << appended.error().to_string();
    const auto committed = writer->commit();
    ASSERT_TRUE(committed.has_value()) << committed.error().to_string();
    expect_values(place, disk + "/target");
  }
}

TEST(CheckpointWriter, ATargetTooLargeForItsDiskIsRefusedBeforeTraining) {
  const Workplace place;
  const std::string disk = place.folder.path() + "/disk";
  const SmallDisk small(disk, "8k");  // the tensors would fit, the files do not
  if (!small.mounted()) GTEST_SKIP() << "cannot mount here";
  const auto writer = CheckpointWriter::create({.target = disk + "/target", .files = place.files()},
                                               place.declarations());
  ASSERT_FALSE(writer.has_value());
  EXPECT_EQ(writer.error().code, ErrorCode::NoSpace);
  EXPECT_EQ(entries_in(disk), 0u);
}

TEST(CheckpointWriter, AnUnfinishedWriterLeavesNothing) {
  const Workplace place;
  {
    auto writer = CheckpointWriter::create({.target = place.target(), .files = place.files()},
                                           place.declarations());
    ASSERT_TRUE(writer.has_value());
    CheckpointWriter moved = std::move(*writer);
    ASSERT_TRUE(moved.append(0, std::array<std::byte, 16>{}).has_value());
    EXPECT_EQ(entries_in(place.folder.path()), 2u);
  }
  EXPECT_EQ(entries_in(place.folder.path()), 1u);
}

/// While it lives, no file may exceed this size.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t size) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const struct rlimit small { size, before_.rlim_max };
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  struct rlimit before_ {};
};

TEST(CheckpointWriter, AWriteThatFailsIsReportedAndLeavesNothing) {
  const Workplace place;
  {
    auto writer = CheckpointWriter::create({.target = place.target(), .files = place.files()},
                                           place.declarations());
    ASSERT_TRUE(writer.has_value());
    const FileSizeLimit limit(2048);
    const auto appended = place.append_all(*writer, 100);
    ASSERT_FALSE(appended.has_value());
    EXPECT_EQ(appended.error().code, ErrorCode::Io);
    EXPECT_NE(appended.error().to_string().find("model.safetensors"), std::string::npos);
  }
  EXPECT_EQ(entries_in(place.folder.path()), 1u);
  const FileSizeLimit limit(2048);  // one that begins so shows it at once
  const auto saved = place.save(1 << 20);
  ASSERT_FALSE(saved.has_value());
  EXPECT_NE(saved.error().to_string().find("cannot reserve"), std::string::npos);
  EXPECT_EQ(entries_in(place.folder.path()), 1u);
}

TEST(CheckpointWriter, TargetsThatCannotWorkAreRefusedBeforeTraining) {
  const TemporaryDirectory folder;
  folder.write("file", "");
  const auto code = [](const Result<void>& result) { return result.error().code; };
  EXPECT_TRUE(check_checkpoint_target(folder.path() + "/new", 1000).has_value());
  EXPECT_EQ(code(check_checkpoint_target(folder.path(), 0)), ErrorCode::Invalid);
  EXPECT_EQ(code(check_checkpoint_target(folder.path() + "/no/new", 0)), ErrorCode::Invalid);
  EXPECT_EQ(code(check_checkpoint_target(folder.path() + "/file/new", 0)), ErrorCode::Invalid);
  EXPECT_EQ(code(check_checkpoint_target(folder.path() + "/new", std::uint64_t{1} << 62)),
            ErrorCode::NoSpace);
}

std::string safetensors_of(const nlohmann::ordered_json& header, std::size_t data_size) {
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + text + std::string(data_size, '\0');
}

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype = "F32";
};

std::vector<Tensor> tensors_of(const Workplace& place) {
  std::vector<Tensor> tensors;
  for (const auto& parameter : place.parameters)
    tensors.push_back({parameter.name, parameter.shape});
  return tensors;
}

std::string file_with(const std::vector<Tensor>& tensors) {
  nlohmann::ordered_json header;
  std::size_t offset = 0;
  for (const Tensor& tensor : tensors) {
    std::size_t size = tensor.dtype == "F32" ? 4 : 1;
    for (const std::int64_t extent : tensor.shape) size *= static_cast<std::size_t>(extent);
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  return safetensors_of(header, offset);
}

std::string open_error(const Workplace& place) {
  const auto weights = CheckpointWeights::open(place.source(), place.config);
  return weights.has_value() ? "" : weights.error().to_string();
}

TEST(CheckpointWeights, OldBuffersTiedHeadsAndPrefixesAreTolerated) {
  const Workplace place;
  auto tensors = tensors_of(place);
  for (Tensor& tensor : tensors) tensor.name = "transformer." + tensor.name;
  tensors.push_back({"transformer.h.0.attn.bias", {1, 1, 6, 6}, "BOOL"});
  tensors.push_back({"h.1.attn.masked_bias", {}});
  tensors.push_back({"lm_head.weight", {11, 4}});
  place.folder.write("source/model.safetensors", file_with(tensors));
  EXPECT_EQ(open_error(place), "");
}

/// Writes a tied table with values of its own, 11 x 4, at the end of a file, under this name.
std::string with_head(std::vector<Tensor> tensors, const std::string& name) {
  tensors.push_back({name, {11, 4}});
  std::string file = file_with(tensors);
  for (std::size_t i = 0; i < 44; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(file.data() + file.size() - 176 + 4 * i, &value, 4);
  }
  return file;
}

TEST(CheckpointWeights, ATiedHeadThatDiffersIsRefused) {
  const Workplace place;
  auto tensors = tensors_of(place);
  std::rotate(tensors.begin(), tensors.begin() + 1, tensors.end());  // wte.weight is the last
  tensors.pop_back();
  std::string file = with_head(tensors, "transformer.wte.weight");
  const std::string table = file.substr(file.size() - 176);
  tensors.push_back({"transformer.wte.weight", {11, 4}});
  file = with_head(tensors, "lm_head.weight");
  file.replace(file.size() - 352, 176, table);
  place.folder.write("source/model.safetensors", file);
  EXPECT_EQ(open_error(place), "");
  for (const std::size_t at : {1u, 100u, 176u}) {  // from the end: any byte of it
    std::string other = file;
    other[other.size() - at] ^= 1;
    place.folder.write("source/model.safetensors", other);
    EXPECT_EQ(open_error(place),
              "model weights: " + place.source() +
                  ": tie_word_embeddings: got true, but \"lm_head.weight\" is not equal to "
                  "\"transformer.wte.weight\", allowed equal ones; write \"tie_word_embeddings\": "
                  "false into config.json to train both, or remove the one that is not meant");
  }
}

TEST(CheckpointWeights, ATiedWeightMayHaveTheNameOfTheHeadAlone) {
  const Workplace place;
  auto tensors = tensors_of(place);
  tensors.erase(tensors.begin());
  place.folder.write("source/model.safetensors", with_head(tensors, "lm_head.weight"));
  auto weights = CheckpointWeights::open(place.source(), place.config);
  ASSERT_TRUE(weights.has_value()) << weights.error().to_string();
  std::array<float, 44> table{};
  ASSERT_TRUE(weights->read(0, 0, table).has_value());
  for (std::size_t i = 0; i < table.size(); ++i) EXPECT_EQ(table[i], static_cast<float>(i));
}

TEST(CheckpointWeights, EachFaultIsNamed) {
  const Workplace place;
  const auto expect = [&](const std::vector<Tensor>& tensors, const std::string& message) {
    place.folder.write("source/model.safetensors", file_with(tensors));
    const std::string text = open_error(place);
    EXPECT_NE(text.find(message), std::string::npos) << text;
    EXPECT_NE(text.find(place.source()), std::string::npos) << text;
  };
  auto tensors = tensors_of(place);
  tensors.erase(tensors.begin() + 3);
  expect(tensors, "missing: h.0.ln_1.bias");
  tensors.erase(tensors.begin() + 3, tensors.begin() + 10);
  expect(tensors,
         "missing: h.0.ln_1.bias, h.0.attn.c_attn.weight, h.0.attn.c_attn.bias and 5 more");
  tensors = tensors_of(place);
  tensors.push_back({"h.2.ln_1.weight", {4}});
  expect(tensors, "not in this model: \"h.2.ln_1.weight\"");
  tensors = tensors_of(place);
  tensors.push_back({"transformer.wte.weight", {11, 4}});
  expect(tensors, "twice: \"transformer.wte.weight\"");
  tensors = tensors_of(place);
  tensors[0].shape = {4, 11};
  expect(tensors, "of another shape: wte.weight (got [4, 11], allowed [11, 4])");
  tensors = tensors_of(place);
  tensors[1].dtype = "I8";
  expect(tensors, "not F32, F16, BF16 or F64: wpe.weight (I8)");
  tensors = tensors_of(place);
  tensors.push_back({"lm_head.weight", {11, 5}});
  expect(tensors, "of another shape: lm_head.weight (got [11, 5], allowed [11, 4])");
}

TEST(CheckpointWeights, AnIndexMayNotLeaveTheFolderOrLie) {
  const Workplace place;
  const auto expect = [&](const std::string& index, const std::string& message) {
    place.folder.write("source/model.safetensors.index.json", index);
    const std::string text = open_error(place);
    EXPECT_NE(text.find(message), std::string::npos) << text;
    EXPECT_NE(text.find(place.source()), std::string::npos) << text;
  };
  expect("{", "not a JSON object");
  expect("[]", "not a JSON object");
  expect("{}", "weight_map: missing");
  expect(R"({"weight_map": {"a": 1}})", "got 1, allowed the name of a file");
  for (const char* name : {"../x", "/etc/passwd", "..", "", "a/b", "a\\u0000b"}) {
    expect(std::string(R"({"weight_map": {"a": ")") + name + "\"}}", "allowed the name of a file");
  }
  expect(R"({"weight_map": {"a": "none.safetensors"}})", "No such file");
  place.folder.write("source/x.safetensors", file_with(tensors_of(place)));
  expect(R"({"weight_map": {"a": "x.safetensors"}})", "x.safetensors has no tensor of this name");
  place.folder.write("source/model.safetensors.index.json",
                     R"({"weight_map": {"wte.weight": "x.safetensors"}})");
  EXPECT_EQ(open_error(place), "");
}

TEST(CheckpointWeights, AFolderWithoutWeightsSaysSo) {
  const Workplace place;
  EXPECT_FALSE(has_checkpoint(place.source()));
  EXPECT_NE(open_error(place).find("model.safetensors"), std::string::npos);
}

TEST(CheckpointWeights, OtherWeightsAreNamedAndOtherFilesAreNone) {
  const Workplace place;
  const auto error = [&] {
    const auto none = check_no_other_weights(place.source());
    return none.has_value() ? "" : none.error().to_string();
  };
  for (const char* name : {"tokenizer.json", "data.bin", "training_args.bin", "optimizer.pt",
                           ".model.safetensors", "pytorch_model.md"}) {
    place.folder.write(std::string("source/") + name, "x");
  }
  EXPECT_EQ(error(), "");
  for (const std::string name :
       {"pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json",
        "model-00001-of-00002.safetensors", "model.fp16.safetensors", "tf_model.h5",
        "flax_model.msgpack", "consolidated.00.pth", "tiny.gguf"}) {
    const std::string file = place.folder.write("source/" + name, "x");
    EXPECT_FALSE(has_checkpoint(place.source())) << name;
    EXPECT_NE(
        error().find(place.source() + ": got \"" + name + "\", allowed model.safetensors, or "),
        std::string::npos)
        << error();
    std::filesystem::remove(file);
  }
  for (const std::string name : {"model.safetensors", "model.safetensors.index.json"}) {
    const std::string link = place.source() + "/" + name;
    std::filesystem::create_symlink("nowhere", link);
    EXPECT_FALSE(has_checkpoint(place.source()));
    EXPECT_NE(error().find("\"" + name + "\", a link that leads nowhere, allowed"),
              std::string::npos)
        << error();
    std::filesystem::remove(link);
  }
  const auto missing = check_no_other_weights(place.folder.path() + "/none");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().system_error, ENOENT);
}

TEST(RandomWeights, ThePaddingRowIsZeroWhateverTheSlices) {
  ModelConfig config =
      std::move(parse_model_config(R"({"model_type": "llama", "vocab_size": 9, "hidden_size": 6,
          "num_attention_heads": 1, "num_hidden_layers": 1, "pad_token_id": 2})",
                                   "config.json"))
          .value();
  const auto parameters = model_parameters(config);
  ASSERT_EQ(parameters[0].zero_row, 2u);
  zero3::RandomWeights weights(parameters, 42);
  for (const std::size_t size : {1u, 5u, 6u, 7u, 54u}) {
    std::vector<float> whole(54);
    for (std::size_t first = 0; first < whole.size(); first += size) {
      const auto part = std::span(whole).subspan(first, std::min(size, whole.size() - first));
      ASSERT_TRUE(weights.read(0, first, part).has_value());
    }
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i] == 0, i / 6 == 2) << i;
  }
}

TEST(RandomWeights, FollowTheRuleAndDoNotDependOnTheSlices) {
  ModelConfig config;
  config.model_type = "gpt2";
  config.gpt2.hidden = 64;
  config.gpt2.inner = 256;
  config.gpt2.layers = 8;
  config.gpt2.vocab_size = 1000;
  config.gpt2.initializer_range = 0.1;
  const auto parameters = model_parameters(config);
  zero3::RandomWeights weights(parameters, 42);
  zero3::RandomWeights other(parameters, 43);
  for (std::uint32_t p = 0; p < parameters.size(); ++p) {
    const std::string& name = parameters[p].name;
    std::vector<float> whole(parameters[p].numel());
    std::vector<float> pieces(whole.size());
    ASSERT_TRUE(weights.read(p, 0, whole).has_value());
    for (std::size_t first = 0; first < pieces.size(); first += 61) {
      const auto part =
          std::span(pieces).subspan(first, std::min<std::size_t>(61, pieces.size() - first));
      ASSERT_TRUE(weights.read(p, first, part).has_value());
    }
    EXPECT_EQ(whole, pieces) << name;
    double sum = 0, squares = 0;
    for (const float x : whole) sum += x, squares += static_cast<double>(x) * x;
    const auto count = static_cast<double>(whole.size());
    const bool norm = name.find("ln_") != std::string::npos;
    if (name.ends_with("bias") || norm) {
      EXPECT_EQ(sum, name.ends_with("bias") ? 0.0 : count) << name;
      continue;
    }
    const double deviation = name.ends_with("c_proj.weight") ? 0.1 / 4.0 : 0.1;  // sqrt(2 * 8)
    EXPECT_NEAR(std::sqrt(squares / count), deviation, 5 * deviation / std::sqrt(2 * count))
        << name;
    EXPECT_NEAR(sum / count, 0.0, 5 * deviation / std::sqrt(count)) << name;
    ASSERT_TRUE(other.read(p, 0, pieces).has_value());
    EXPECT_NE(whole, pieces) << name;
  }
}

}  // namespace
}  // namespace artesian::models
