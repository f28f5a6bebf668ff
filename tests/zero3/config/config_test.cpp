// Proves what configs resolve to: the published files byte for byte as they are pasted, batch
// sizes, "auto", old names and our own section.
#include "zero3/config/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace artesian::zero3 {
namespace {

const std::string folder = ARTESIAN_SOURCE_DIR "/tests/zero3/config/configs/";

Config parse(std::string_view text, const ConfigArguments& arguments = {}) {
  Result<Config> config = parse_config(text, "ds.json", arguments);
  EXPECT_TRUE(config.has_value()) << text << "\n" << config.error().message;
  return config.has_value() ? std::move(config).value() : Config{};
}

Config read(const std::string& name, const ConfigArguments& arguments = {}) {
  std::ifstream file(folder + name);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Result<Config> config = parse_config(text, folder + name, arguments);
  EXPECT_TRUE(config.has_value()) << name << "\n" << config.error().message;
  return config.has_value() ? std::move(config).value() : Config{};
}

bool notes(const Config& config, const std::string& line) {
  return std::find(config.notes.begin(), config.notes.end(), line) != config.notes.end();
}

ConfigArguments trainer() {
  ConfigArguments arguments;
  arguments.micro_batch_size = 4;
  arguments.accumulation_steps = 2;
  arguments.lr = 1e-4;
  arguments.steps = 500;
  arguments.hidden_size = 768;
  return arguments;
}

ConfigArguments trainer_without_accumulation() {
  ConfigArguments arguments = trainer();
  arguments.accumulation_steps = std::nullopt;
  return arguments;
}

TEST(ConfigFiles, EveryPublishedFileReadsAsItStands) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const Config config = read(entry.path().filename());
    EXPECT_EQ(config.train_batch_size, config.micro_batch_size * config.accumulation_steps);
    EXPECT_GE(config.train_batch_size, 1u);
    for (const std::string& note : config.notes) EXPECT_EQ(note.find('\n'), note.npos);
    ++files;
  }
  EXPECT_EQ(files, 11);
}

TEST(ConfigFiles, BasicZeroTrue) {
  const Config config = read("basic-zero-true.json");
  EXPECT_EQ(config.zero.stage, 1);
  EXPECT_EQ(config.train_batch_size, 16u);
  EXPECT_EQ(config.accumulation_steps, 4u);
  EXPECT_EQ(config.micro_batch_size, 4u);
  EXPECT_EQ(config.param_dtype, DType::Float16);
  EXPECT_EQ(config.grad_accum_dtype, DType::Float16);
  EXPECT_TRUE(config.optimizer.decoupled_decay);
  EXPECT_EQ(config.optimizer.lr, 0.0004);
  EXPECT_EQ(config.optimizer.weight_decay, 0.01);
  EXPECT_EQ(config.gradient_clipping, 1.0);
}

TEST(ConfigFiles, Zero1Pasted) {
  const Config config = read("zero1-pasted-nbsp.json");
  EXPECT_EQ(config.zero.stage, 1);
  EXPECT_EQ(config.micro_batch_size, 2u);
  EXPECT_TRUE(notes(config,
                    "zero_optimization.use_multi_rank_bucket_allreduce: accepted, has no effect "
                    "here (what ranks exchange does not depend on it)"));
}

void expect_zero2(const Config& config) {
  EXPECT_EQ(config.zero.stage, 2);
  EXPECT_EQ(config.zero.offload_optimizer.device, Offload::Cpu);
  EXPECT_EQ(config.zero.offload_param.device, Offload::None);
  EXPECT_EQ(config.optimizer.lr, 3e-5);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.weight_decay, 3e-7);
  EXPECT_EQ(config.scheduler.type, SchedulerConfig::Type::WarmupLR);
  EXPECT_EQ(config.scheduler.warmup_max_lr, 3e-5);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 500u);
  EXPECT_FALSE(config.scheduler.warmup_linear);
  EXPECT_EQ(config.steps_per_print, 2000u);
}

TEST(ConfigFiles, Zero2PlainAndPastedAreTheSame) {
  ConfigArguments arguments;
  arguments.micro_batch_size = 4;
  expect_zero2(read("zero2.json", arguments));
  expect_zero2(read("zero2-pasted-nbsp.json", arguments));
  EXPECT_EQ(read("zero2.json", arguments).train_batch_size, 4u);
}

TEST(ConfigFiles, Zero3) {
  const Config config = read("zero3.json");
  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_EQ(config.zero.offload_param.device, Offload::Cpu);
  EXPECT_EQ(config.zero.sub_group_size, 1000000000u);
  EXPECT_EQ(config.zero.prefetch_bucket_size, 940000u);
  EXPECT_EQ(config.zero.param_persistence_threshold, 10000u);
  EXPECT_EQ(config.zero.max_live_parameters, 1000000000u);
}

TEST(ConfigFiles, WithoutLimitsOfParametersTheBudgetsAloneBoundThem) {
  ConfigArguments arguments;
  arguments.micro_batch_size = 4;
  const Config config = read("zero2.json", arguments);
  EXPECT_EQ(config.zero.max_live_parameters, no_limit);
  EXPECT_EQ(config.zero.max_reuse_distance, no_limit);
  EXPECT_EQ(config.zero.offload_param.max_in_cpu, no_limit);
  EXPECT_EQ(ZeroConfig{}.max_live_parameters, no_limit);  // of a program that makes one, too
  EXPECT_EQ(ZeroConfig{}.max_reuse_distance, no_limit);
  EXPECT_EQ(OffloadConfig{}.max_in_cpu, no_limit);
}

TEST(ConfigFiles, Zero3AutoTakesTheArguments) {
  const Config config = read("zero3-auto.json", trainer());
  EXPECT_EQ(config.micro_batch_size, 4u);
  EXPECT_EQ(config.accumulation_steps, 2u);
  EXPECT_EQ(config.train_batch_size, 8u);
  EXPECT_EQ(config.optimizer.lr, 1e-4);
  EXPECT_EQ(config.optimizer.beta1, 0.9);
  EXPECT_EQ(config.scheduler.warmup_max_lr, 1e-4);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 50u);
  EXPECT_EQ(config.zero.prefetch_bucket_size, 530841u);  // int(0.9 * 768^2)
  EXPECT_EQ(config.zero.param_persistence_threshold, 7680u);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.param_dtype, DType::Float32);
  EXPECT_TRUE(notes(config,
                    "fp16.enabled: \"auto\" is false here: no trainer decides; write true to train "
                    "in this type"));
}

TEST(ConfigFiles, Zero3AutoWithoutArgumentsSaysWhatEachBecame) {
  const Config config = read("zero3-auto.json");
  EXPECT_EQ(config.train_batch_size, 1u);
  EXPECT_EQ(config.zero.prefetch_bucket_size, 50000000u);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 1000u);
  EXPECT_TRUE(notes(
      config,
      "\"auto\": fp16.enabled = false, gradient_accumulation_steps = 1, gradient_clipping = 1.0, "
      "optimizer.params.betas = [0.9, 0.999], optimizer.params.eps = 1e-8, optimizer.params.lr = "
      "0.001, optimizer.params.weight_decay = 0, scheduler.params.warmup_max_lr = 0.001, "
      "scheduler.params.warmup_min_lr = 0, scheduler.params.warmup_num_steps = 1000, "
      "train_batch_size = 1, train_micro_batch_size_per_gpu = 1, "
      "zero_optimization.stage3_param_persistence_threshold = 100000, "
      "zero_optimization.stage3_prefetch_bucket_size = 50000000"));
}

TEST(ConfigNvmePath, IsOneFolderOrSeveral) {
  const auto folders = [](const std::string& value) {
    const std::string offload = R"({"device": "nvme", "nvme_path": )" + value + "}";
    return parse(R"({"zero_optimization": {"stage": 3, "offload_param": )" + offload + "}}")
        .zero.offload_param.nvme_paths;
  };
  using Folders = std::vector<std::string>;
  EXPECT_EQ(folders(R"("/a b")"), (Folders{"/a b"}));
  EXPECT_EQ(folders(R"("/a,/b")"), (Folders{"/a", "/b"}));
  EXPECT_EQ(folders(R"(" /a , b c ")"), (Folders{"/a", "b c"}));
  EXPECT_EQ(folders(R"(["/a", "b"])"), (Folders{"/a", "b"}));
  EXPECT_EQ(folders(R"(["/a,b", " c"])"), (Folders{"/a,b", " c"}));  // in a list, names as they are
}

TEST(ConfigFiles, InfinityNvme) {
  const Config config = read("infinity-nvme-trailing-comma.json");
  EXPECT_EQ(config.zero.offload_param.device, Offload::Nvme);
  EXPECT_EQ(config.zero.offload_param.nvme_paths, std::vector<std::string>{"/local_nvme"});
  EXPECT_EQ(config.zero.offload_param.buffer_count, 5u);
  EXPECT_EQ(config.zero.offload_param.buffer_size, 100000000u);
  EXPECT_EQ(config.zero.offload_param.max_in_cpu, 1000000000u);
  EXPECT_EQ(config.zero.offload_optimizer.device, Offload::Nvme);
  EXPECT_EQ(config.zero.offload_optimizer.buffer_count, 4u);
  EXPECT_EQ(config.aio.block_size, 262144u);
  EXPECT_EQ(config.aio.queue_depth, 32u);
  EXPECT_EQ(config.aio.intra_op_parallelism, 1u);
  EXPECT_FALSE(config.aio.single_submit);
  EXPECT_TRUE(config.aio.overlap_events);
  EXPECT_TRUE(config.optimizer.decoupled_decay);
}

TEST(ConfigFiles, ActivationCheckpointing) {
  const Config config = read("zero3-cpu-activation-checkpointing.json");
  EXPECT_EQ(config.loss_scale.min_loss_scale, 1.0);
  EXPECT_FALSE(config.loss_scale.consecutive_hysteresis);
  EXPECT_TRUE(config.activation_checkpointing);
  EXPECT_TRUE(notes(config,
                    "activation_checkpointing: stages keep their inputs alone, in host memory and "
                    "on NVMe, and run once more in backward"));
  EXPECT_TRUE(config.cpu_checkpointing);
}

TEST(ConfigFiles, OnlyCpuCheckpointingMovesTheInputs) {
  const Config config = parse(R"({"activation_checkpointing": {"partition_activations": true}})");
  EXPECT_TRUE(config.activation_checkpointing);
  EXPECT_FALSE(config.cpu_checkpointing);
  EXPECT_TRUE(notes(config,
                    "activation_checkpointing: stages keep their inputs alone, where they computed "
                    "them, and run once more in backward"));
}

TEST(ConfigFiles, CheckpointingIsOffWhereNothingAsksForIt) {
  for (const char* members :
       {"", R"("number_checkpoints": null)", R"("cpu_checkpointing": false, "profile": true)"}) {
    const std::string text = R"({"activation_checkpointing": {)" + std::string(members) + "}}";
    EXPECT_FALSE(parse(text).activation_checkpointing) << text;
  }
}

TEST(ConfigBatch, IsCompletedAsInDeepSpeed) {
  struct Case {
    const char* text;
    std::uint64_t total, micro, steps;
  };
  const Case cases[] = {
      {R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3,
          "gradient_accumulation_steps": 4})",
       24, 3, 4},
      {R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3})", 24, 3, 4},
      {R"({"train_batch_size": 24, "gradient_accumulation_steps": 4})", 24, 3, 4},
      {R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4})", 24, 3, 4},
      {R"({"train_batch_size": 24})", 24, 12, 1},
      {R"({"train_micro_batch_size_per_gpu": 3})", 6, 3, 1},
      {R"({"gradient_accumulation_steps": 4})", 8, 1, 4},
      {R"({})", 2, 1, 1},
      {R"({"train_batch_size": null, "train_micro_batch_size_per_gpu": "auto"})", 2, 1, 1},
      {R"({"train_batch_size": 2.4e1, "gradient_accumulation_steps": "auto"})", 24, 12, 1},
  };
  ConfigArguments arguments;
  arguments.world_size = 2;
  for (const Case& test : cases) {
    const Config config = parse(test.text, arguments);
    EXPECT_EQ(config.train_batch_size, test.total) << test.text;
    EXPECT_EQ(config.micro_batch_size, test.micro) << test.text;
    EXPECT_EQ(config.accumulation_steps, test.steps) << test.text;
  }
}

TEST(ConfigBatch, ArgumentsFillWhatIsMissing) {
  ConfigArguments arguments;
  arguments.micro_batch_size = 2;
  EXPECT_EQ(parse("{}", arguments).train_batch_size, 2u);
  EXPECT_EQ(parse(R"({"train_batch_size": 16})", arguments).accumulation_steps, 8u);
  arguments.accumulation_steps = 8;
  EXPECT_EQ(parse("{}", arguments).train_batch_size, 16u);
  EXPECT_EQ(parse(R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2})", arguments)
                .accumulation_steps,
            8u);
}

TEST(ConfigValues, OptimizerTypes) {
  EXPECT_TRUE(parse(R"({"optimizer": {"type": "adam"}})").optimizer.decoupled_decay);
  EXPECT_FALSE(parse(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})")
                   .optimizer.decoupled_decay);
  const Config named =
      parse(R"({"optimizer": {"type": "ADAMW", "params": {"adam_w_mode": false}}})");
  EXPECT_TRUE(named.optimizer.decoupled_decay);
  EXPECT_TRUE(
      notes(named,
            "optimizer.params.adam_w_mode: accepted, has no effect here (the type is AdamW; "
            "DeepSpeed does the same)"));
  EXPECT_TRUE(
      notes(parse("{}"),
            "optimizer: absent: AdamW with lr 0.001, betas 0.9 and 0.999, eps 1e-08, weight "
            "decay 0"));
  EXPECT_FALSE(parse(R"({"optimizer": {"type": "Adam", "params": {"bias_correction": false}}})")
                   .optimizer.bias_correction);
  ConfigArguments arguments;
  arguments.lr = 0.5;
  EXPECT_EQ(parse("{}", arguments).optimizer.lr, 0.5);
  EXPECT_EQ(
      parse(R"({"optimizer": {"type": "Adam", "params": {"lr": 0.5}}})", arguments).optimizer.lr,
      0.5);
}

TEST(ConfigValues, AnAutomaticOptimizerIsAdamW) {
  for (const char* text :
       {R"({"optimizer": "auto"})", R"({"optimizer": {"type": "auto", "params": {"lr": "auto"}}})",
        R"({"optimizer": {"params": {}}, "scheduler": "auto"})"}) {
    const Config config = parse(text);
    EXPECT_TRUE(config.optimizer.decoupled_decay) << text;
    EXPECT_EQ(config.optimizer.lr, 1e-3) << text;
    EXPECT_EQ(config.scheduler.type, SchedulerConfig::Type::Constant) << text;
  }
}

TEST(ConfigValues, SchedulesLeadToTheOptimizersRate) {
  const char* optimizer = R"("optimizer": {"type": "Adam", "params": {"lr": 0.25}})";
  const auto with = [&](const std::string& scheduler, const ConfigArguments& arguments = {}) {
    return parse(std::string("{") + optimizer + ", \"scheduler\": " + scheduler + "}", arguments)
        .scheduler;
  };
  EXPECT_EQ(with(R"({"type": "WarmupLR"})").warmup_max_lr, 0.25);
  EXPECT_EQ(with(R"({"type": "WarmupLR", "params": {"warmup_max_lr": null}})").warmup_max_lr, 0.25);
  EXPECT_EQ(with(R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 9}})").warmup_max_lr,
            0.25);
  EXPECT_EQ(with(R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_max_lr":
      "auto"}})")
                .warmup_max_lr,
            0.25);
  ConfigArguments arguments;
  arguments.steps = 77;
  const SchedulerConfig cosine =
      with(R"({"type": "WarmupCosineLR", "params": {"warmup_type": "linear"}})", arguments);
  EXPECT_EQ(cosine.total_num_steps, 77u);
  EXPECT_TRUE(cosine.warmup_linear);
  EXPECT_EQ(cosine.cos_min_ratio, 1e-4);
  EXPECT_EQ(parse("{}").scheduler.type, SchedulerConfig::Type::Constant);
}

/// Notes that speak of the scheduler, of a config whose optimizer has lr 5e-7.
std::vector<std::string> schedule_notes(const std::string& scheduler,
                                        const ConfigArguments& arguments = {}) {
  const Config config = parse(
      R"({"optimizer": {"params": {"lr": 5e-7}}, "scheduler": )" + scheduler + "}", arguments);
  std::vector<std::string> notes;
  for (const std::string& note : config.notes) {
    if (note.starts_with("scheduler.")) notes.push_back(note);
  }
  return notes;
}

TEST(ConfigValues, WhereAScheduleLeavesTheOptimizersRateIsSaidOnce) {
  const std::string decay = R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 4)";
  EXPECT_EQ(schedule_notes(decay + "}}"),
            std::vector<std::string>{"scheduler.params.warmup_max_lr: absent: the optimizer's lr "
                                     "5e-07 (DeepSpeed's default for WarmupDecayLR is 0.001)"});
  EXPECT_EQ(schedule_notes(R"({"type": "WarmupLR"})"), std::vector<std::string>{});
  EXPECT_EQ(schedule_notes(R"({"type": "WarmupLR", "params": {"warmup_max_lr": 5e-7}})"),
            std::vector<std::string>{});
  for (const std::string& schedule :
       {decay + R"(, "warmup_max_lr": 1e-3}})",
        std::string(R"({"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}})")}) {
    EXPECT_EQ(schedule_notes(schedule),
              std::vector<std::string>{
                  "scheduler.params.warmup_max_lr: got 0.001, above the optimizer's lr 5e-07: the "
                  "schedule goes up to it, as in DeepSpeed"});
  }
  EXPECT_EQ(schedule_notes(R"({"type": "WarmupLR", "params": {"warmup_min_lr": 1e-3}})"),
            std::vector<std::string>{"scheduler.params.warmup_min_lr: got 0.001, above the rate "
                                     "that the warm-up leads to, 5e-07"});
}

TEST(ConfigValues, ARunMayBeShorterThanItsSchedule) {
  const std::string schedule = R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 10}})";
  ConfigArguments arguments;
  arguments.steps = 4;
  EXPECT_EQ(schedule_notes(schedule, arguments),
            std::vector<std::string>{"scheduler.params.total_num_steps: the run has 4 of its 10 "
                                     "steps: it ends before the schedule does"});
  EXPECT_EQ(parse(R"({"scheduler": )" + schedule + "}", arguments).scheduler.total_num_steps, 10u);
  arguments.steps = 10;
  EXPECT_EQ(schedule_notes(schedule, arguments), std::vector<std::string>{});
  arguments.steps = {};
  arguments.steps_of_data = 12;
  EXPECT_EQ(schedule_notes(schedule, arguments),
            std::vector<std::string>{"scheduler.params.total_num_steps: the run has 12 steps: "
                                     "those beyond 10 train at the schedule's last rate"});
}

TEST(ConfigValues, Precision) {
  EXPECT_EQ(parse("{}").param_dtype, DType::Float32);
  const Config bf16 = parse(R"({"bfloat16": {"enabled": true, "check_grad_overflow": false}})");
  EXPECT_EQ(bf16.param_dtype, DType::BFloat16);
  EXPECT_EQ(bf16.grad_accum_dtype, DType::BFloat16);
  EXPECT_FALSE(bf16.check_grad_overflow);
  EXPECT_TRUE(parse(R"({"bf16": {"check_grad_overflow": false}})").check_grad_overflow);
  EXPECT_EQ(parse(R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"}})")
                .grad_accum_dtype,
            DType::Float32);
  EXPECT_EQ(
      parse(R"({"fp16": {"enabled": true, "min_loss_scale": 1e-10}})").loss_scale.min_loss_scale,
      1e-10);
  EXPECT_EQ(parse(R"({"fp16": {"enabled": true, "loss_scale": 128}})").loss_scale.loss_scale,
            128.0);
}

TEST(ConfigValues, SumsOfManyGradientsAreInFp32) {
  const auto type = [](const char* text, std::uint64_t micro_batches, std::uint64_t ranks) {
    ConfigArguments arguments;
    arguments.accumulation_steps = micro_batches;
    arguments.world_size = ranks;
    return parse(text, arguments).grad_accum_dtype;
  };
  constexpr const char* bf16 = R"({"bf16": {"enabled": true}})";
  using Terms = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  for (const auto& [micro_batches, ranks] : Terms{{7, 1}, {3, 2}, {2, 3}, {1, 7}}) {
    EXPECT_EQ(type(bf16, micro_batches, ranks), DType::BFloat16) << micro_batches << " " << ranks;
  }
  for (const auto& [micro_batches, ranks] : Terms{{8, 1}, {4, 2}, {3, 3}, {1, 8}}) {
    EXPECT_EQ(type(bf16, micro_batches, ranks), DType::Float32) << micro_batches << " " << ranks;
  }
  EXPECT_EQ(type(R"({"fp16": {"enabled": true}})", 8, 1), DType::Float32);
  constexpr const char* named =
      R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"}})";
  EXPECT_EQ(type(named, 16, 4), DType::BFloat16);
  ConfigArguments arguments;
  arguments.accumulation_steps = 4;
  arguments.world_size = 2;
  const auto notes = parse(bf16, arguments).notes;
  EXPECT_EQ(std::count(notes.begin(), notes.end(),
                       "data_types.grad_accum_dtype: absent: fp32, as a step adds 8 gradients; "
                       "\"bf16\" halves their bytes and rounds each sum"),
            1);
}

TEST(ConfigValues, OffloadByOldNames) {
  const Config config =
      parse(R"({"zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_param": true,
                                      "cpu_offload_use_pin_memory": true}})");
  EXPECT_EQ(config.zero.offload_optimizer.device, Offload::Cpu);
  EXPECT_EQ(config.zero.offload_param.device, Offload::Cpu);
  const Config off = parse(R"({"zero_optimization": {"cpu_offload": false}})");
  EXPECT_EQ(off.zero.offload_optimizer.device, Offload::None);
}

TEST(ConfigValues, SizesUnderBothNames) {
  for (const std::string prefix : {"", "stage3_"}) {
    const Config config = parse(
        "{\"zero_optimization\": {\"" + prefix + "prefetch_bucket_size\": 11, \"" + prefix +
        "param_persistence_threshold\": 12, \"" + prefix + "model_persistence_threshold\": 13, \"" +
        prefix + "max_live_parameters\": 14, \"" + prefix + "max_reuse_distance\": 15}}");
    EXPECT_EQ(config.zero.prefetch_bucket_size, 11u);
    EXPECT_EQ(config.zero.param_persistence_threshold, 12u);
    EXPECT_EQ(config.zero.model_persistence_threshold, 13u);
    EXPECT_EQ(config.zero.max_live_parameters, 14u);
    EXPECT_EQ(config.zero.max_reuse_distance, 15u);
  }
  EXPECT_EQ(parse(R"({"zero_optimization": {"sub_group_size": 0}})").zero.sub_group_size, 1u);
}

TEST(ConfigValues, AioAsTheTunerPrintsIt) {
  const Config config =
      parse(R"({"aio": {"single_submit": "true", "overlap_events": "false", "num_threads": 2,
                        "queue_depth": 32, "block_size": 8388608, "use_gds": "false"}})");
  EXPECT_TRUE(config.aio.single_submit);
  EXPECT_FALSE(config.aio.overlap_events);
  EXPECT_EQ(config.aio.intra_op_parallelism, 2u);
  EXPECT_EQ(config.aio.block_size, 8388608u);
}

TEST(ConfigValues, AioIsLeftToAProfileOnlyWithoutASection) {
  EXPECT_TRUE(parse("{}").aio_from_profile);
  EXPECT_TRUE(parse(R"({"artesian": {"engine": "threads"}})").aio_from_profile);
  EXPECT_FALSE(parse(R"({"aio": {"single_submit": false}})").aio_from_profile);
  EXPECT_FALSE(parse(R"({"aio": {"queue_depth": "auto"}})").aio_from_profile);
  EXPECT_FALSE(parse(R"({"aio": {}})").aio_from_profile);
  EXPECT_FALSE(parse(R"({"zero_optimization": {"aio": {"queue_depth": 8}}})").aio_from_profile);
  EXPECT_FALSE(Config().aio_from_profile);  // made in code: what it says is meant
}

TEST(ConfigValues, WhatAccelerateWrites) {
  const Config config =
      parse(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 3,
      "offload_optimizer": {"device": "none", "nvme_path": null},
      "offload_param": {"device": "none", "nvme_path": null},
      "stage3_gather_16bit_weights_on_model_save": false}, "gradient_clipping": 1.0,
      "steps_per_print": Infinity, "bf16": {"enabled": true}, "fp16": {"enabled": false},
      "zero_allow_untested_optimizer": true})",
            trainer_without_accumulation());
  EXPECT_EQ(config.train_batch_size, 4u);
  EXPECT_EQ(config.param_dtype, DType::BFloat16);
}

TEST(ConfigValues, UnknownKeysMayBeNotedInstead) {
  ConfigArguments arguments;
  arguments.unknown_keys = UnknownKeys::AreNoted;
  const std::string_view text =
      R"({"colour": "blue", "zero_optimization": {"stage": 3, "stagee": 1},
          "train_batch_size": 3})";
  const Config config = parse(text, arguments);
  EXPECT_EQ(config.train_batch_size, 3u);
  EXPECT_TRUE(notes(config, "colour: ignored; unknown key; the keys are listed in docs/config.md"));
  EXPECT_TRUE(
      notes(config, "zero_optimization.stagee: ignored; unknown key; did you mean \"stage\"?"));
  EXPECT_FALSE(parse_config(text, "ds.json", {}).has_value());
}

TEST(ConfigValues, StepsPerPrintOfAccelerateIsNever) {
  EXPECT_FALSE(parse(R"({"steps_per_print": Infinity})").steps_per_print.has_value());
  EXPECT_FALSE(parse(R"({"steps_per_print": null})").steps_per_print.has_value());
  EXPECT_FALSE(parse("{}").steps_per_print.has_value());
  EXPECT_EQ(parse(R"({"steps_per_print": 1e1})").steps_per_print, 10u);
}

TEST(ConfigValues, OurSection) {
  const Config config = parse(R"({"artesian": {"device_memory": "2GiB", "host_memory": 4e9,
      "durable": false, "verify": "sample", "compute_dtype": "fp32", "engine": "libaio",
      "polling": "iopoll", "checkpoint_every": 0}})");
  EXPECT_EQ(config.artesian.device_memory, 2147483648u);
  EXPECT_EQ(config.artesian.host_memory, 4000000000u);
  EXPECT_EQ(config.artesian.verify, VerifyMode::Sample);
  EXPECT_EQ(config.artesian.compute_dtype, DType::Float32);
  EXPECT_EQ(config.artesian.engine, EngineChoice::Libaio);
  EXPECT_EQ(config.artesian.polling, PollingChoice::Completion);
  const Config absent = parse(R"({"artesian": {"compute_dtype": "auto", "engine": "auto"}})");
  EXPECT_FALSE(absent.artesian.device_memory.has_value());
  EXPECT_FALSE(absent.artesian.compute_dtype.has_value());
  EXPECT_EQ(absent.artesian.engine, EngineChoice::Auto);
  EXPECT_EQ(absent.artesian.polling, PollingChoice::Off);
  for (const auto& [word, choice] : {std::pair{"off", PollingChoice::Off},
                                     {"sqpoll", PollingChoice::Submission},
                                     {"both", PollingChoice::Both}}) {
    const std::string text = std::string(R"({"artesian": {"polling": ")") + word + "\"}}";
    EXPECT_EQ(parse(text).artesian.polling, choice);
  }
}

TEST(ConfigValues, FeaturesThatAreOffAreAccepted) {
  const Config config = parse(R"({
      "elasticity": {"enabled": false, "max_train_batch_size": 2000},
      "amp": {"enabled": "auto", "opt_level": "auto"}, "torch_autocast": {"enabled": false},
      "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": false}}},
      "tensor_parallel": {"autotp_size": 1}, "pipeline": {"stages": "auto", "partition": "best"},
      "tensorboard": {"enabled": true, "output_path": "x"}, "sequence_parallel_size": 1,
      "zero_optimization": {"zenflow": null, "zero_hpz_partition_size": 1, "mics_shard_size": -1},
      "optimizer": {"type": "AdamW", "params": {"amsgrad": false, "torch_adam": true}}})");
  const std::vector<TrackerConfig> trackers{
      {.name = "tensorboard", .options = {{"enabled", "true"}, {"output_path", "x"}}}};
  EXPECT_EQ(config.trackers, trackers);
}

TEST(ConfigValues, WhatTheDeviceDoesNotUseIsSaid) {
  const Config config = parse(R"({"zero_optimization": {"stage": 3, "offload_param":
      {"device": "cpu", "nvme_path": "/x", "buffer_count": 9}}})");
  EXPECT_TRUE(notes(config,
                    "zero_optimization.offload_param.nvme_path: accepted, has no effect here "
                    "(offload_param.device is not nvme)"));
  EXPECT_TRUE(notes(config,
                    "zero_optimization.offload_param.buffer_count: accepted, has no effect here "
                    "(offload_param.device is not nvme)"));
}

}  // namespace
}  // namespace artesian::zero3
