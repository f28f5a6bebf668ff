// Proves the messages that users see: faulty configs with the exact text, one line for each fault.
#include <gtest/gtest.h>

#include "zero3/config/config.h"

namespace artesian::zero3 {
namespace {

struct Case {
  const char* text;
  const char* message;
};

ConfigArguments no_arguments() {
  return {};
}

void expect(const Case& test, ErrorCode code, const ConfigArguments& arguments = no_arguments()) {
  const Result<Config> config = parse_config(test.text, "ds.json", arguments);
  ASSERT_FALSE(config.has_value()) << test.text;
  EXPECT_EQ(config.error().message, test.message) << test.text;
  EXPECT_EQ(config.error().code, code) << test.text;
}

const Case syntax[] = {
    {"",
     "ds.json: line 1, column 1: syntax error while parsing value - unexpected end of input; "
     "expected '[', '{', or a literal"},
    {"{\n  \"a\": 1\n  \"b\": 2\n}",
     "ds.json: line 3, column 3: syntax error while parsing object "
     "- unexpected string literal; expected '}'; is there a comma missing before it?"},
    {"{\"fp16\": {\"enabled\": true}",
     "ds.json: line 1, column 27: syntax error while parsing "
     "object - unexpected end of input; expected '}'"},
    {"{\"gradient_clipping\": 1,,}",
     "ds.json: line 1, column 25: syntax error while parsing object "
     "key - unexpected ','; expected string literal"},
    {"{,}",
     "ds.json: line 1, column 2: syntax error while parsing object key - unexpected ','; "
     "expected string literal"},
    {"{'a': 1}",
     "ds.json: line 1, column 2: a single quotation mark; JSON wants double quotes: \" (of a "
     "Python dict, json.dumps makes JSON)"},
    {"{\"gradient_clipping\": True}",
     "ds.json: line 1, column 23: a word of Python's; JSON wants true"},
    {"{\"gradient_clipping\": False}",
     "ds.json: line 1, column 23: a word of Python's; JSON wants false"},
    {"{\"scheduler\": None}", "ds.json: line 1, column 15: a word of Python's; JSON wants null"},
    {"{\"gradient_clipping\": NaN}", "gradient_clipping: got NaN, allowed a number of at least 0"},
    {"{\"gradient_clipping\": -Infinity}",
     "gradient_clipping: got -Infinity, allowed a number of at least 0"},
    {"{\xE2\x80\x9C"
     "fp16\xE2\x80\x9D: {}}",
     "ds.json: line 1, column 2: a typographic quotation mark; use \""},
    {"{ /* never closed }", "ds.json: line 1, column 3: a comment opened by /* is never closed"},
    {"{} {}",
     "ds.json: line 1, column 4: syntax error while parsing value - unexpected '{'; "
     "expected end of input"},
    {"{\"gradient_clipping\": 1e999}",
     "gradient_clipping: got 1e999, allowed a number of at least 0"},
    {"{\"gradient_clipping\": 1e308}",
     "gradient_clipping: got 1e308, allowed a number of at least 0; at most 1e38, which fp32 can "
     "hold"},
    {"{\"steps_per_print\": 1e999}",
     "steps_per_print: got 1e999, allowed an integer of at least 1, or Infinity"},
    {"{NaN: 1}",
     "ds.json: line 1, column 2: syntax error while parsing object key - unexpected number "
     "literal; expected string literal"},
    {"{\"gradient_clipping\": 01e999}",
     "ds.json: line 1, column 24: syntax error while parsing object - unexpected number literal; "
     "expected '}'"},
    {"[]", "ds.json: got [], allowed an object {...}"},
    {"true", "ds.json: got true, allowed an object {...}"},
};

const Case single[] = {
    // unknown keys
    {R"({"zero_optimization": {"stge": 3}})",
     "zero_optimization.stge: unknown key; did you mean \"stage\"?"},
    {R"({"train_batchsize": 3})",
     "train_batchsize: unknown key; did you mean \"train_batch_size\"?"},
    {R"({"zero_optimisation": {"stage": 3}})",
     "zero_optimisation: unknown key; did you mean \"zero_optimization\"?"},
    {R"({"aio": {"blocksize": 4096}})", "aio.blocksize: unknown key; did you mean \"block_size\"?"},
    {R"({"qqqqqqqqqqqq": 1})", "qqqqqqqqqqqq: unknown key; the keys are listed in docs/config.md"},
    {R"({"stage": 3})", "stage: unknown key here; it belongs at zero_optimization.stage"},
    {R"({"optimizer": {"type": "Adam", "lr": 0.1}})",
     "optimizer.lr: unknown key here; it belongs at optimizer.params.lr"},
    {R"({"zero_optimization": {"gradient_clipping": 1}})",
     "zero_optimization.gradient_clipping: unknown key here; it belongs at top level"},
    {R"({"zero_optimization": {"offload_optimizer": {"buffer_size": 1}}})",
     "zero_optimization.offload_optimizer.buffer_size: unknown key here; it belongs at "
     "zero_optimization.offload_param.buffer_size"},
    {R"({"zero_optimization": {"offload_param": {"pipeline_read": true}}})",
     "zero_optimization.offload_param.pipeline_read: unknown key here; it belongs at "
     "zero_optimization.offload_optimizer.pipeline_read"},
    {R"({"zero_optimization.reduce_bucket_size": 1})",
     "zero_optimization.reduce_bucket_size: unknown key; write it as \"zero_optimization\": "
     "{\"reduce_bucket_size\": ...}"},
    {R"({"zero_optimization.stage3_prefetch_bucket_size": 1})",
     "zero_optimization.stage3_prefetch_bucket_size: unknown key; write it as "
     "\"zero_optimization\": {\"stage3_prefetch_bucket_size\": ...}"},
    {R"({"artesian": {"devicememory": 1}})",
     "artesian.devicememory: unknown key; did you mean \"device_memory\"?"},
    {R"({"zero_optimization": {"device": "cpu"}})",
     "zero_optimization.device: unknown key here; it belongs at "
     "zero_optimization.offload_param.device or zero_optimization.offload_optimizer.device"},
    {R"({"zero_optimization": {"enabled": true}})",
     "zero_optimization.enabled: unknown key; the keys are listed in docs/config.md"},
    {R"({"": 1})", "\"\": unknown key; the keys are listed in docs/config.md"},
    {R"({"a\nb": 1})", "\"a\\nb\": unknown key; the keys are listed in docs/config.md"},
    {R"({"fp16": {"opt_level": "O2"}})",
     "fp16.opt_level: unknown key; did you mean \"log_level\"?"},

    // given twice
    {R"({"fp16": {}, "fp16": {}})", "fp16: given twice; keep one"},
    {R"({"a\nb": 1, "a\nb": 1})", "\"a\\nb\": given twice; keep one"},
    {"{\"a\x7F\": 1}", "\"a\\u007f\": unknown key; the keys are listed in docs/config.md"},
    {R"({"fp16": {"enabled": true, "enabled": false}})", "fp16.enabled: given twice; keep one"},
    {R"({"elasticity": {"a": [{"b": 1, "b": 2}]}})", "elasticity.a.b: given twice; keep one"},
    {R"({"zero_optimization": {"prefetch_bucket_size": 1, "stage3_prefetch_bucket_size": 1}})",
     "zero_optimization.stage3_prefetch_bucket_size: the same key as "
     "zero_optimization.prefetch_bucket_size; keep one"},
    {R"({"bf16": {}, "bfloat16": {}})", "bfloat16: the same key as bf16; keep one"},
    {R"({"aio": {}, "zero_optimization": {"aio": {}}})",
     "zero_optimization.aio: the same key as aio; keep one"},
    {R"({"aio": {"thread_count": 1, "num_threads": 1}})",
     "aio.num_threads: the same key as aio.thread_count; keep one"},
    {R"({"aio": {"intra_op_parallelism": 1, "thread_count": 2}})",
     "aio.thread_count: the same key as aio.intra_op_parallelism; keep one"},
    {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},
        "cpu_offload_param": true}})",
     "zero_optimization.cpu_offload_param: the old name of zero_optimization.offload_param; keep "
     "one"},
    {R"({"zero_optimization": {"stage": 3, "cpu_offload": false, "offload_optimizer": {}}})",
     "zero_optimization.cpu_offload: the old name of zero_optimization.offload_optimizer; keep "
     "one"},

    // types
    {R"({"zero_optimization": {"stage": "three"}})",
     "zero_optimization.stage: got \"three\", allowed an integer from 0 to 3"},
    {R"({"zero_optimization": {"stage": "3"}})",
     "zero_optimization.stage: got \"3\", allowed an integer from 0 to 3; remove the quotes"},
    {R"({"zero_optimization": {"stage": true}})",
     "zero_optimization.stage: got true, allowed an integer from 0 to 3"},
    {R"({"zero_optimization": 3})", "zero_optimization: got 3, allowed an object {...} or true"},
    {R"({"zero_optimization": {"overlap_comm": "true"}})",
     "zero_optimization.overlap_comm: got \"true\", allowed true or false; remove the quotes"},
    {R"({"fp16": true})", "fp16: got true, allowed an object {...}"},
    {R"({"fp16": {"enabled": 1}})", "fp16.enabled: got 1, allowed true or false"},
    {R"({"fp16": {"loss_scale": "dynamic"}})",
     "fp16.loss_scale: got \"dynamic\", allowed a number of at least 0"},
    {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})",
     "optimizer.params.betas: got [0.9], allowed two numbers from 0 to below 1"},
    {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}})",
     "optimizer.params.betas: got [0.9, 1], allowed two numbers from 0 to below 1"},
    {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.99999998]}}})",
     "optimizer.params.betas: got [0.9, 0.99999998], allowed two numbers from 0 to below 1; as "
     "fp32, in which the update computes, one of them is 1; the largest that is not is 0.99999994"},
    {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.99999999999, 0.999]}}})",
     "optimizer.params.betas: got [0.99999999999, 0.999], allowed two numbers from 0 to below 1; "
     "as fp32, in which the update computes, one of them is 1; the largest that is not is "
     "0.99999994"},
    {R"({"optimizer": {"type": "Adam", "params": {"betas": 0.9}}})",
     "optimizer.params.betas: got 0.9, allowed two numbers from 0 to below 1"},
    {R"({"optimizer": {"type": "Adam", "params": {"lr": "1e-3"}}})",
     "optimizer.params.lr: got \"1e-3\", allowed a number of at least 0; remove the quotes"},
    {R"({"optimizer": {"type": "Adam", "params": {"lr": null}}})",
     "optimizer.params.lr: got null, allowed a number of at least 0"},
    {R"({"scheduler": {"params": {"warmup_num_steps": 1}}})",
     "scheduler.type: missing, allowed WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest or "
     "OneCycle"},
    {R"({"scheduler": {}})",
     "scheduler.type: missing, allowed WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest or "
     "OneCycle"},
    {R"({"zero_optimization": {"offload_param": "cpu"}})",
     "zero_optimization.offload_param: got \"cpu\", allowed an object {...}"},
    {R"({"artesian": {"host_memory": "4 GX"}})",
     "artesian.host_memory: got \"4 GX\", allowed a size in bytes such as 4096, \"512MiB\" or "
     "\"2GB\""},
    {R"({"artesian": {"host_memory": -1}})",
     "artesian.host_memory: got -1, allowed a size in bytes such as 4096, \"512MiB\" or \"2GB\""},
    {R"({"artesian": {"host_memory": 0.5}})",
     "artesian.host_memory: got 0.5, allowed a size in bytes such as 4096, \"512MiB\" or \"2GB\""},

    // ranges
    {R"({"zero_optimization": {"stage": 4}})",
     "zero_optimization.stage: got 4, allowed an integer from 0 to 3"},
    {R"({"zero_optimization": {"sub_group_size": 3774873.6}})",
     "zero_optimization.sub_group_size: got 3774873.6, allowed an integer of at least 0; an "
     "integer "
     "such as 3774874"},
    {R"({"zero_optimization": {"sub_group_size": -1}})",
     "zero_optimization.sub_group_size: got -1, allowed an integer of at least 0"},
    {R"({"zero_optimization": {"sub_group_size": 1e300}})",
     "zero_optimization.sub_group_size: got 1e300, allowed an integer of at least 0; at most "
     "9223372036854775807"},
    {R"({"zero_optimization": {"sub_group_size": 18446744073709551615}})",
     "zero_optimization.sub_group_size: got 18446744073709551615, allowed an integer of at least "
     "0; at most 9223372036854775807"},
    {R"({"zero_optimization": {"max_live_parameters": Infinity}})",
     "zero_optimization.max_live_parameters: got Infinity, allowed an integer of at least 0"},
    {R"({"train_batch_size": 0})",
     "train_batch_size: got 0, allowed an integer from 1 to 2147483647"},
    {R"({"train_micro_batch_size_per_gpu": 1e12})",
     "train_micro_batch_size_per_gpu: got 1e12, allowed an integer from 1 to 2147483647"},
    {R"({"gradient_clipping": -1})", "gradient_clipping: got -1, allowed a number of at least 0"},
    {R"({"gradient_clipping": Infinity})",
     "gradient_clipping: got Infinity, allowed a number of at least 0"},
    {R"({"steps_per_print": 0})",
     "steps_per_print: got 0, allowed an integer of at least 1, or Infinity"},
    {R"({"aio": {"block_size": 1000}})",
     "aio.block_size: got 1000, allowed a multiple of 4096 from 4096 to 1073741824"},
    {R"({"aio": {"block_size": "1M"}})",
     "aio.block_size: got \"1M\", allowed a multiple of 4096 from 4096 to 1073741824; "
     "write it out, such as 1048576 for 1Mi"},
    {R"({"aio": {"queue_depth": 0}})", "aio.queue_depth: got 0, allowed an integer from 1 to 4096"},
    {R"({"aio": {"queue_depth": 4097}})",
     "aio.queue_depth: got 4097, allowed an integer from 1 to 4096"},
    {R"({"aio": {"thread_count": 0}})", "aio.thread_count: got 0, allowed an integer from 1 to 64"},
    {R"({"aio": {"intra_op_parallelism": 65}})",
     "aio.intra_op_parallelism: got 65, allowed an integer from 1 to 64"},
    {R"({"fp16": {"min_loss_scale": 0}})", "fp16.min_loss_scale: got 0, allowed a number above 0"},
    {R"({"fp16": {"hysteresis": 0}})",
     "fp16.hysteresis: got 0, allowed an integer from 1 to 2147483647"},
    {R"({"fp16": {"loss_scale_window": 0}})",
     "fp16.loss_scale_window: got 0, allowed an integer of at least 1"},
    {R"({"fp16": {"initial_scale_power": 128}})",
     "fp16.initial_scale_power: got 128, allowed an integer from 0 to 127"},
    {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}})",
     "scheduler.params.warmup_num_steps: got 0, allowed an integer of at least 1"},
    {R"({"zero_optimization": {"offload_optimizer": {"ratio": 1.5}}})",
     "zero_optimization.offload_optimizer.ratio: got 1.5, allowed a number from 0 to 1"},

    // choices
    {R"({"zero_optimization": {"offload_param": {"device": "nvmee"}}})",
     "zero_optimization.offload_param.device: got \"nvmee\", allowed none, cpu or nvme; did you "
     "mean \"nvme\"?"},
    {R"({"zero_optimization": {"offload_param": {"device": "disk"}}})",
     "zero_optimization.offload_param.device: got \"disk\", allowed none, cpu or nvme"},
    {R"({"zero_optimization": {"offload_optimizer": {"device": "CPU"}}})",
     "zero_optimization.offload_optimizer.device: got \"CPU\", allowed none, cpu or nvme; did you "
     "mean \"cpu\"?"},
    {R"({"artesian": {"moments": "bf16"}, "fp16": {"enabled": true}})",
     "artesian.moments: got \"bf16\", allowed \"fp32\" while fp16.enabled is true; train in bf16 "
     "or "
     "fp32"},
    {R"({"optimizer": {"type": "Adam", "params": {"max_coeff": 10}}})",
     "optimizer.params.max_coeff: no parameter of Adam; remove it"},
    {R"({"optimizer": {"type": "Lamb", "params": {"min_coeff": 0.5, "max_coeff": 0.1}}})",
     "optimizer.params.min_coeff: got 0.5, allowed at most optimizer.params.max_coeff, which is "
     "0.1"},
    {R"({"optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.999]}}})",
     "optimizer.params.betas: no parameter of SGD; remove it"},
    {R"({"optimizer": {"params": {"momentum": 0.9}}})",
     "optimizer.params.momentum: no parameter of AdamW; remove it"},
    {R"({"optimizer": {"type": "sgd", "params": {"nesterov": true}}})",
     "optimizer.params.nesterov: got true, allowed with a momentum above 0 and no dampening; set "
     "momentum"},
    {R"({"optimizer": {"type": "AdmW"}})",
     "optimizer.type: got \"AdmW\", allowed Adam, AdamW, SGD, Adagrad, RMSprop, Lion, Lamb or "
     "Muon; did "
     "you mean \"AdamW\"?"},
    {R"({"scheduler": {"type": "warmuplr"}})",
     "scheduler.type: got \"warmuplr\", allowed WarmupLR, WarmupDecayLR, WarmupCosineLR, "
     "LRRangeTest or OneCycle; did you "
     "mean \"WarmupLR\"?"},
    {R"({"artesian": {"verify": "none"}})",
     "artesian.verify: got \"none\", allowed full, sample or off"},
    {R"({"data_types": {"grad_accum_dtype": "fp8"}})",
     "data_types.grad_accum_dtype: got \"fp8\", allowed fp32, fp16, bf16, float32, float16 or "
     "bfloat16"},

    {R"({"zero_optimization": {"offload_param": {"nvme_path": "/a\u0000b"}}})",
     "zero_optimization.offload_param.nvme_path: got \"/a\\u0000b\", allowed a folder or a list "
     "of folders; remove the NUL"},
    {R"({"zero_optimization": {"offload_param": {"nvme_path": "/a,,/b"}}})",
     "zero_optimization.offload_param.nvme_path: got \"/a,,/b\", allowed a folder or a list of "
     "folders; name a folder on each side of a comma"},
    {R"({"zero_optimization": {"offload_param": {"nvme_path": ["/a", ""]}}})",
     "zero_optimization.offload_param.nvme_path: got [\"/a\", \"\"], allowed a folder or a list of "
     "folders; remove the empty one"},
    {R"({"zero_optimization": {"offload_param": {"nvme_path": ["/a", "/b\u0000"]}}})",
     "zero_optimization.offload_param.nvme_path: got [\"/a\", \"/b\\u0000\"], allowed a folder or "
     "a "
     "list of folders; remove the NUL"},
    {R"({"zero_optimization": {"offload_optimizer": {"nvme_path": ["/a", 1]}}})",
     "zero_optimization.offload_optimizer.nvme_path: got [\"/a\", 1], allowed a folder or a list "
     "of "
     "folders"},
    {R"({"zero_optimization": {"stage": 3, "offload_param":
        {"device": "nvme", "nvme_path": "/a, /b,/a"}}})",
     "zero_optimization.offload_param.nvme_path: got \"/a\" twice, allowed each folder once; "
     "remove "
     "one"},
    {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": []}}})",
     "zero_optimization.offload_param.nvme_path: got [], allowed a folder while device is "
     "\"nvme\"; set it"},

    // combinations
    {R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})",
     "bf16.enabled: got true, allowed false while fp16.enabled is true; enable one of the two"},
    {R"({"fp16": {"enabled": true}, "bfloat16": {"enabled": true}})",
     "bfloat16.enabled: got true, allowed false while fp16.enabled is true; enable one of the two"},
    {R"({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})",
     "zero_optimization.offload_param.device: got \"cpu\", allowed none at zero_optimization.stage "
     "2; set the stage to 3"},
    {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})",
     "zero_optimization.offload_optimizer.device: got \"cpu\", allowed none at "
     "zero_optimization.stage 0; set the stage to 1"},
    {R"({"zero_optimization": {"stage": 0, "offload_optimizer":
        {"device": "nvme", "nvme_path": "/x"}}})",
     "zero_optimization.offload_optimizer.device: got \"nvme\", allowed none at "
     "zero_optimization.stage 0; set the stage to 1"},
    {R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})",
     "zero_optimization.offload_param.nvme_path: missing, allowed a folder while device is "
     "\"nvme\"; set it"},
    {R"({"zero_optimization": {"stage": 3, "offload_optimizer":
        {"device": "nvme", "nvme_path": ""}}})",
     "zero_optimization.offload_optimizer.nvme_path: got \"\", allowed a folder while device is "
     "\"nvme\"; set it"},
    {R"({"zero_optimization": {"stage": 3, "offload_optimizer":
        {"device": "nvme", "nvme_path": null}}})",
     "zero_optimization.offload_optimizer.nvme_path: missing, allowed a folder while device is "
     "\"nvme\"; set it"},
    {R"({"zero_optimization": {"stage": 2, "cpu_offload_param": true}})",
     "zero_optimization.cpu_offload_param: got true, allowed false at zero_optimization.stage 2; "
     "set the stage to 3"},
    {R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2})",
     "train_batch_size: got 10, allowed train_micro_batch_size_per_gpu 4 x "
     "gradient_accumulation_steps 2 x world size 1 = 8; change one of them"},
    {R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})",
     "train_batch_size: got 10, allowed a multiple of train_micro_batch_size_per_gpu 4; change one "
     "of them"},
    {R"({"train_batch_size": 2, "gradient_accumulation_steps": 4})",
     "train_batch_size: got 2, allowed a multiple of gradient_accumulation_steps 4; change one of "
     "them"},
    {R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}})",
     "optimizer.params.max_grad_norm: not allowed; use gradient_clipping at top level"},
    {R"({"scheduler": {"type": "WarmupDecayLR"}})",
     "scheduler.params.total_num_steps: missing for WarmupDecayLR, allowed an integer of at least "
     "1; set it or give --steps"},
    {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": "auto"}}})",
     "scheduler.params.total_num_steps: got \"auto\" for WarmupCosineLR, allowed an integer of at "
     "least 1; set it or give --steps"},
    {R"({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 10}}})",
     "scheduler.params.total_num_steps: no parameter of WarmupLR; remove it"},
    {R"({"scheduler": {"type": "WarmupCosineLR",
        "params": {"total_num_steps": 10, "warmup_max_lr": 1}}})",
     "scheduler.params.warmup_max_lr: no parameter of WarmupCosineLR; remove it"},
    {R"({"scheduler": {"type": "WarmupLR", "params": {"cycle_max_lr": 1}}})",
     "scheduler.params.cycle_max_lr: no parameter of WarmupLR; remove it"},
    {R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0}}})",
     "scheduler.params.cycle_max_lr: missing for OneCycle, allowed a number of at least 0"},
    {R"({"scheduler": {"type": "WarmupLR", "params": {"cos_min_ratio": 0.1}}})",
     "scheduler.params.cos_min_ratio: no parameter of WarmupLR; remove it"},
};

#define ARTESIAN_REMOVED "DeepSpeed 0.19.8 has removed this feature, and Artesian does not have it"

const Case unsupported[] = {
    {R"({"optimizer": {"type": "Lamb", "params": {"eps_inside_sqrt": true}}})",
     "not supported yet: optimizer.params.eps_inside_sqrt: got true, allowed false"},
    {R"({"optimizer": {"type": "Muon", "params": {"per_head_muon": true}}})",
     "not supported yet: optimizer.params.per_head_muon: got true, allowed false"},
    {R"({"optimizer": {"type": "onebitadam", "params": {"freeze_step": 10}}})",
     "optimizer.type: got \"onebitadam\", allowed Adam, AdamW, SGD, Adagrad, RMSprop, "
     "Lion, Lamb or Muon; " ARTESIAN_REMOVED},
    {R"({"optimizer": {"type": "RMSprop", "params": {"centered": true}}})",
     "not supported yet: optimizer.params.centered: got true, allowed false"},
    {R"({"optimizer": {"type": "Adam", "params": {"amsgrad": true}}})",
     "not supported yet: optimizer.params.amsgrad: got true, allowed false"},
    {R"({"scheduler": {"type": "StepLR", "params": {}}})",
     "not supported yet: scheduler.type: got \"StepLR\", allowed WarmupLR, WarmupDecayLR, "
     "WarmupCosineLR, LRRangeTest or OneCycle"},
    {R"({"zero_optimization": {"zero_hpz_partition_size": 8}})",
     "not supported yet: zero_optimization.zero_hpz_partition_size: got 8, allowed 1 or 0"},
    {R"({"zero_optimization": {"zero_quantized_weights": true}})",
     "not supported yet: zero_optimization.zero_quantized_weights: got true, allowed false"},
    {R"({"zero_optimization": {"mics_shard_size": 4}})",
     "zero_optimization.mics_shard_size: got 4, allowed -1 or 0; " ARTESIAN_REMOVED},
    {R"({"sparse_gradients": true})",
     "sparse_gradients: got true, allowed false; " ARTESIAN_REMOVED},
    {R"({"zero_optimization": {"zenflow": {}}})", "not supported yet: zero_optimization.zenflow"},
    {R"({"zero_optimization": {"offload_optimizer": {"ratio": 0.3}}})",
     "not supported yet: zero_optimization.offload_optimizer.ratio: got 0.3, allowed 1"},
    {R"({"zero_optimization": {"offload_optimizer": {"super_offload": true}}})",
     "not supported yet: zero_optimization.offload_optimizer.super_offload: got true, allowed "
     "false"},
    {R"({"amp": {"enabled": true, "opt_level": "O1"}})",
     "amp.enabled: got true, allowed false; " ARTESIAN_REMOVED},
    {R"({"torch_autocast": {"enabled": true}})",
     "not supported yet: torch_autocast.enabled: got true, allowed false"},
    {R"({"fp16": {"fp16_master_weights_and_grads": true}})",
     "not supported yet: fp16.fp16_master_weights_and_grads: got true, allowed false"},
    {R"({"gradient_allreduce_op": "sum"})",
     "not supported yet: gradient_allreduce_op: got \"sum\", allowed mean"},
    {R"({"elasticity": {"enabled": true}})", "elasticity.enabled: " ARTESIAN_REMOVED},
    {R"({"compression_training": {"sparse_pruning": {"shared_parameters": {"enabled": true}}}})",
     "compression_training.sparse_pruning.shared_parameters.enabled: " ARTESIAN_REMOVED},
    {R"({"sparse_attention": {"mode": "fixed"}})", "sparse_attention: " ARTESIAN_REMOVED},
    {R"({"tensor_parallel": {"autotp_size": 4}})",
     "not supported yet: tensor_parallel.autotp_size: got 4, allowed 0 or 1"},
    {R"({"pipeline": {"stages": 2}})", "not supported yet: pipeline.stages: got 2, allowed 1 or 0"},
    {R"({"sequence_parallel_size": 2})",
     "not supported yet: sequence_parallel_size: got 2, allowed 1"},
    {R"({"aio": {"use_gds": true}})", "not supported yet: aio.use_gds: got true, allowed false"},
    {R"({"artesian": {"durable": true}})",
     "not supported yet: artesian.durable: got true, allowed false"},
    {R"({"data_types": {"grad_accum_dtype": "bf16"}, "fp16": {"enabled": true}})",
     "not supported yet: data_types.grad_accum_dtype: got \"bf16\", allowed fp32 or the "
     "parameters' type"},
};

TEST(ConfigFaults, Syntax) {
  for (const Case& test : syntax) expect(test, ErrorCode::Invalid);
}

TEST(ConfigFaults, OneFault) {
  static_assert(std::size(syntax) + std::size(single) + std::size(unsupported) >= 120);
  for (const Case& test : single) expect(test, ErrorCode::Invalid);
}

TEST(ConfigFaults, NotSupportedYet) {
  for (const Case& test : unsupported) expect(test, ErrorCode::Unsupported);
}

TEST(ConfigFaults, AllFaultsComeAtOnceUpToFiveLines) {
  expect(
      {R"({"fp16": {"enabled": 1}, "stge": 2, "aio": {"use_gds": true},
              "train_batch_size": 10, "train_micro_batch_size_per_gpu": 3})",
       "fp16.enabled: got 1, allowed true or false\n"
       "stge: unknown key; did you mean \"zero_optimization.stage\"?\n"
       "not supported yet: aio.use_gds: got true, allowed false\n"
       "train_batch_size: got 10, allowed a multiple of train_micro_batch_size_per_gpu 3; change "
       "one of them"},
      ErrorCode::Invalid);
  expect({R"({"a1": 0, "b1": 0, "c1": 0, "d1": 0, "e1": 0, "f1": 0, "g1": 0})",
          "a1: unknown key; the keys are listed in docs/config.md\n"
          "b1: unknown key; the keys are listed in docs/config.md\n"
          "c1: unknown key; the keys are listed in docs/config.md\n"
          "d1: unknown key; the keys are listed in docs/config.md\n"
          "e1: unknown key; the keys are listed in docs/config.md ... and 2 more"},
         ErrorCode::Invalid);
}

TEST(ConfigFaults, ABrokenValueCausesNoSecondComplaint) {
  expect({R"({"zero_optimization": {"stage": 7, "offload_param": {"device": "cpu"}}})",
          "zero_optimization.stage: got 7, allowed an integer from 0 to 3"},
         ErrorCode::Invalid);
  expect({R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": "4"})",
          "train_micro_batch_size_per_gpu: got \"4\", allowed an integer from 1 to 2147483647; "
          "remove the quotes"},
         ErrorCode::Invalid);
  expect({R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 0}}})",
          "scheduler.params.total_num_steps: got 0, allowed an integer of at least 1"},
         ErrorCode::Invalid);
}

TEST(ConfigFaults, ContradictionsOfTheCommandLineComeInOneLine) {
  ConfigArguments arguments;
  arguments.micro_batch_size = 4;
  arguments.accumulation_steps = 2;
  arguments.lr = 1e-4;
  arguments.steps = 50;
  expect({R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
              "optimizer": {"type": "AdamW", "params": {"lr": 3e-5}},
              "scheduler": {"type": "WarmupDecayLR",
                            "params": {"warmup_max_lr": 3e-5, "total_num_steps": 40}}})",
          "the command line contradicts the config: --micro-batch 4 and "
          "train_micro_batch_size_per_gpu 2, --lr 1e-04 and optimizer.params.lr 3e-5, --lr 1e-04 "
          "and scheduler.params.warmup_max_lr 3e-5, --steps 50 and "
          "scheduler.params.total_num_steps 40; leave out one of each, or write \"auto\" in the "
          "config"},
         ErrorCode::Invalid, arguments);
  expect({R"({"train_batch_size": 10})",
          "train_batch_size: got 10, allowed --micro-batch 4 x --accumulation 2 x world size 1 = "
          "8; change one of them"},
         ErrorCode::Invalid, arguments);
}

TEST(ConfigFaults, ArgumentsHaveRangesToo) {
  ConfigArguments arguments;
  arguments.micro_batch_size = 0;
  arguments.accumulation_steps = 0;
  arguments.steps = 0;
  arguments.lr = -1.0;
  expect({R"({"train_batch_size": 10})",
          "--micro-batch: got 0, allowed an integer from 1 to 2147483647\n"
          "--accumulation: got 0, allowed an integer from 1 to 2147483647\n"
          "--steps: got 0, allowed an integer from 1 to 2147483647\n"
          "--lr: got -1, allowed a number of at least 0"},
         ErrorCode::Invalid, arguments);
}

TEST(ConfigFaults, BatchArithmeticNamesTheWorldSizeAndDoesNotOverflow) {
  ConfigArguments arguments;
  arguments.world_size = 3;
  expect({R"({"train_batch_size": 16})",
          "train_batch_size: got 16, allowed a multiple of world size 3; change one of them"},
         ErrorCode::Invalid, arguments);
  arguments.micro_batch_size = 3;
  expect({R"({"train_batch_size": 12})",
          "train_batch_size: got 12, allowed a multiple of --micro-batch 3 x world size 3; change "
          "one of them"},
         ErrorCode::Invalid, arguments);
  arguments.micro_batch_size.reset();
  arguments.world_size = 1 << 20;
  expect({R"({"train_batch_size": 5, "train_micro_batch_size_per_gpu": 2147483647,
              "gradient_accumulation_steps": 2147483647})",
          "train_batch_size: got 5, allowed train_micro_batch_size_per_gpu 2147483647 x "
          "gradient_accumulation_steps 2147483647 x world size 1048576; change one of them"},
         ErrorCode::Invalid, arguments);
}

}  // namespace
}  // namespace artesian::zero3
