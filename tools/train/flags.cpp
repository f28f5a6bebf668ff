#include "tools/train/flags.h"

#include "tools/shell/flag_reader.h"
#include "zero3/torch/compute_device.h"

namespace artesian::tools {
namespace {

CheckpointFlags read_checkpoint_flags(FlagReader& reader) {
  CheckpointFlags flags;
  flags.directory = reader.folder("--checkpoint-dir");
  flags.every = reader.count("--checkpoint-every");
  flags.keep = static_cast<std::uint32_t>(reader.count("--checkpoint-keep").value_or(flags.keep));
  flags.resume = reader.given("--resume");
  if (flags.resume) flags.from = reader.text("--resume");
  flags.grace = reader.number("--grace", 0, 1e6, "30").value_or(flags.grace);
  if (reader.given("--data-position")) flags.data_position = reader.seed("--data-position");
  flags.changed_model = reader.given("--allow-changed-model");
  flags.optional = reader.given("--checkpoint-optional");
  if (!flags.directory.empty()) return flags;
  for (const char* flag : {"--checkpoint-every", "--checkpoint-keep", "--checkpoint-optional"}) {
    if (!reader.given(flag)) continue;
    reader.refuse(flag, "no --checkpoint-dir",
                  "it with a folder to save to; add --checkpoint-dir DIR");
  }
  if (flags.resume && flags.from.empty()) {
    reader.refuse("--resume", "no folder", "one, or --checkpoint-dir; write --resume DIR");
  }
  return flags;
}

/// Checks only the word; whether that GPU exists is checked later.
std::string read_device(FlagReader& reader) {
  if (!reader.given("--device")) return "cpu";
  std::string device = reader.text("--device");
  if (!zero3::device_index(device).has_value()) {
    reader.refuse_text("--device", "cpu, cuda or cuda:i; write one of them");
  }
  return device;
}

}  // namespace

void add_train_flags(CLI::App& train) {
  const auto value = [&](const char* flag, const char* type, const std::string& description) {
    return train.add_option(flag, description)
        ->type_name(type)
        // Repeated values are counted when they are read.
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  const auto flag = [&](const char* name, const std::string& description) {
    train.add_flag(name, description)->disable_flag_override();
  };
  value("--model", "DIR", "Hugging Face directory: config.json, optionally weights and tokenizer");
  value("--data", "PATH",
        "Token ids (.bin), text, JSON lines, or a folder of text; may be repeated: one stream");
  value("--text-field", "NAME", "Field of JSON lines that is the text (default: text)");
  flag("--no-token-cache", "Tokenise anew, and keep no tokens for later runs");
  value("--eval-data", "PATH", "Held-out data, as --data: its loss is told at the end");
  value("--eval-every", "N", "Tell the held-out loss every N steps, too");
  value("--config", "FILE", "DeepSpeed JSON config");
  value("--steps", "N", "Optimizer steps");
  value("--epochs", "N", "Passes over the data (default: 1)");
  value("--seq-len", "L", "Tokens of a sample (default: the model's positions, at most 1024)");
  value("--seed", "S", "Seed of weights and sample order (default: 0)");
  value("--order", "WORD", "Sample order: shuffled (default) or sequential");
  value("--device", "WORD", "cpu (default), cuda or cuda:i: the first or another visible GPU");
  value("--rank-timeout", "S",
        "Seconds that a rank waits for another one that does not answer (default: 600)");
  flag("--init", "Random weights, also where the directory has some");
  value("--micro-batch", "N", "Samples of one forward");
  value("--accumulation", "N", "Micro-batches of one step");
  value("--lr", "X", "Learning rate");
  value("--save", "DIR", "Write a Hugging Face directory at the end");
  value("--save-dtype", "WORD", "model (default: the training precision) or fp32");
  value("--log-jsonl", "FILE", "One JSON object per step; - is stdout");
  value("--trace", "FILE", "Timeline for Perfetto");
  flag("--quiet", "No notes, no progress, no end table");
  value("--checkpoint-dir", "DIR", "Save checkpoints there: at the end, and when asked to stop");
  value("--checkpoint-every", "N", "And every N steps");
  value("--checkpoint-keep", "K", "Keep the newest K (default: 2)");
  flag("--checkpoint-optional", "Go on also where three in a row cannot be saved");
  value("--resume", "DIR[/TAG]",
        "Go on from a checkpoint (default: the last of --checkpoint-dir, if there is one)")
      ->expected(0, 1);
  value("--grace", "S", "Seconds that a stop may take, checkpoint included (default: 30)");
  flag("--allow-changed-model", "Go on also where the model's config.json is not the checkpoint's");
  value("--data-position", "N", "First sample of the next step, where it is not the checkpoint's");
}

Result<TrainOptions> read_train_flags(const CLI::App& train) {
  FlagReader reader(train);
  TrainOptions options;
  reader.expect_single_values({"--data", "--eval-data"});
  options.model = reader.required_path("--model", "name the folder of config.json");
  options.data = reader.paths("--data");
  if (options.data.empty()) {
    reader.refuse("--data", "nothing", "a path; name a text or .bin file, or a folder of text");
  }
  if (reader.given("--text-field")) options.text_field = reader.path("--text-field");
  options.token_cache = !reader.given("--no-token-cache");
  options.eval_data = reader.paths("--eval-data");
  options.eval_every = reader.count("--eval-every");
  if (reader.given("--eval-every") && !reader.given("--eval-data")) {
    reader.refuse("--eval-every", "no --eval-data",
                  "it with the data to evaluate; add --eval-data");
  }
  options.config = reader.required_path("--config", "name a DeepSpeed JSON file");
  options.steps = reader.count("--steps");
  options.epochs = reader.count("--epochs");
  if (reader.given("--steps") && reader.given("--epochs")) {
    reader.refuse("--epochs", "both --steps and --epochs", "one of them; drop one");
  }
  options.length = reader.count("--seq-len");
  options.seed = reader.seed("--seed");
  options.shuffled = !reader.second_word("--order", "shuffled", "sequential");
  options.device = read_device(reader);
  options.rank_timeout =
      reader.number("--rank-timeout", 0, 1e6, "600").value_or(options.rank_timeout);
  options.random_weights = reader.given("--init");
  options.micro_batch = reader.count("--micro-batch");
  options.accumulation = reader.count("--accumulation");
  options.lr = reader.rate("--lr");
  options.save = reader.folder("--save");
  options.save_fp32 = reader.second_word("--save-dtype", "model", "fp32");
  if (reader.given("--save-dtype") && !reader.given("--save")) {
    reader.refuse("--save-dtype", "no --save", "it with a folder to save to; add --save DIR");
  }
  options.log_jsonl = reader.path("--log-jsonl");
  options.trace = reader.path("--trace");
  options.checkpoints = read_checkpoint_flags(reader);
  options.quiet = reader.given("--quiet");
  if (reader.has_faults()) return reader.error();
  return options;
}

}  // namespace artesian::tools
