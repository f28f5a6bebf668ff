// The `artesian` program: subcommands and flags. What a flag means is in docs and --help.
#include <CLI/CLI.hpp>

#include <cstdio>

#include "tools/command_line.h"
#include "tools/process_setup.h"
#include "tools/report_error.h"
#include "tools/train.h"
#include "zero3/engine.h"

namespace {

using artesian::tools::TrainOptions;

constexpr const char* program = "artesian";

void add_train_flags(CLI::App& app, TrainOptions& options, std::string& order, std::string& device,
                     std::string& save_dtype) {
  app.add_option("--model", options.model,
                 "Hugging Face directory: config.json, optionally weights and tokenizer.json")
      ->type_name("DIR");
  app.add_option("--data", options.data, "Token ids (.bin), or a text file or folder")
      ->type_name("PATH");
  app.add_option("--config", options.config, "DeepSpeed JSON config")->type_name("FILE");
  app.add_option("--steps", options.steps, "Optimizer steps")->check(CLI::PositiveNumber);
  app.add_option("--epochs", options.epochs, "Passes over the data (default: 1)")
      ->check(CLI::PositiveNumber);
  app.add_option("--seq-len", options.length, "Tokens of a sample")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Seed of weights and sample order (default: 0)");
  app.add_option("--order", order, "Sample order: shuffled (default) or sequential")
      ->check(CLI::IsMember({"shuffled", "sequential"}));
  app.add_option("--device", device, "cpu (default)");
  app.add_flag("--init", options.random_weights,
               "Random weights, also where the directory has some");
  app.add_option("--micro-batch", options.micro_batch, "Samples of one forward")
      ->check(CLI::PositiveNumber);
  app.add_option("--accumulation", options.accumulation, "Micro-batches of one step")
      ->check(CLI::PositiveNumber);
  app.add_option("--lr", options.lr, "Learning rate")->check(CLI::NonNegativeNumber);
  app.add_option("--save", options.save, "Write a Hugging Face directory at the end")
      ->type_name("DIR");
  app.add_option("--save-dtype", save_dtype, "model (default: the training precision) or fp32")
      ->check(CLI::IsMember({"model", "fp32"}));
  app.add_option("--log-jsonl", options.log_jsonl, "One JSON object per step")->type_name("FILE");
  app.add_option("--trace", options.trace, "Timeline for Perfetto")->type_name("FILE");
  app.add_flag("--quiet", options.quiet, "No progress, no end table");
}

/// Flags of the interface that a later release brings: refused by name.
void add_later_flags(CLI::App& app, std::string& resume, std::string& checkpoint_every) {
  app.add_option("--resume", resume)->group("");
  app.add_option("--checkpoint-every", checkpoint_every)->group("");
}

int fail(const std::string& message) {
  return artesian::tools::report_error(program, message, 2);
}

int run_train(TrainOptions& options, const std::string& order, const std::string& device,
              const std::string& save_dtype, const std::string& resume,
              const std::string& checkpoint_every) {
  if (!resume.empty()) return fail("not supported yet: --resume");
  if (!checkpoint_every.empty()) return fail("not supported yet: --checkpoint-every");
  if (device.starts_with("cuda")) return fail("not supported yet: --device " + device);
  if (device != "cpu") {
    return fail("--device: got \"" + device + "\", allowed cpu");
  }
  if (options.steps.has_value() && options.epochs.has_value()) {
    return fail("--epochs: got both --steps and --epochs, allowed one of them; drop one");
  }
  for (const auto& [flag, value] :
       {std::pair{"--model", &options.model}, std::pair{"--data", &options.data},
        std::pair{"--config", &options.config}}) {
    if (value->empty())
      return fail(std::string(flag) + ": got nothing, allowed a path; it is required");
  }
  options.shuffled = order == "shuffled";
  options.save_fp32 = save_dtype == "fp32";
  artesian::zero3::track_activations();
  return artesian::tools::train(options);
}

}  // namespace

int main(int argc, char** argv) {
  artesian::tools::set_up_process();
  CLI::App app{"Artesian trains models whose state is larger than memory.", program};
  app.set_version_flag("--version", std::string(ARTESIAN_VERSION));
  app.require_subcommand(0, 1);
  CLI::App* train = app.add_subcommand("train", "Train a model");
  TrainOptions options;
  std::string order = "shuffled", device = "cpu", save_dtype = "model", resume, checkpoint_every;
  add_train_flags(*train, options, order, device, save_dtype);
  add_later_flags(*train, resume, checkpoint_every);
  for (const char* later :
       {"plan", "report", "generate", "doctor", "config", "export", "inspect", "run"}) {
    app.add_subcommand(later, "not supported yet")->group("")->prefix_command();
  }
  const auto exit_code = artesian::tools::parse_command_line(app, program, argc, argv);
  if (exit_code.has_value()) return *exit_code;
  if (*train) return run_train(options, order, device, save_dtype, resume, checkpoint_every);
  for (const CLI::App* chosen : app.get_subcommands()) {
    return fail("not supported yet: " + chosen->get_name());
  }
  std::fputs(app.help().c_str(), stderr);
  return 2;
}
