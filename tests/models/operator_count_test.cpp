// Proves how many operators of LibTorch the stages of a model call. On a GPU each is at least one
// launch, 5 to 10 us of the host's time. A block's forward calls less than 20, a head's forward and
// backward less than 200, for any number of tokens and any vocabulary. None of them is known to
// lack a deterministic kernel on a GPU, where that would be an error. An operator counts if it
// calls no other one and is no view or allocation. Our own kernels do not count: four in a forward
// block of Llama. The plan's figures for a step on a GPU are compared with the counts: products,
// bytes read and written, and launches.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <map>
#include <set>
#include <string>

#include "models/device_work.h"
#include "models/registry.h"

namespace artesian::models {
namespace {

const std::set<std::string> no_work = {"aten::alias",
                                       "aten::as_strided",
                                       "aten::detach",
                                       "aten::empty",
                                       "aten::empty_like",
                                       "aten::empty_strided",
                                       "aten::expand",
                                       "aten::narrow",
                                       "aten::permute",
                                       "aten::reshape",
                                       "aten::result_type",
                                       "aten::select",
                                       "aten::slice",
                                       "aten::split",
                                       "aten::squeeze",
                                       "aten::t",
                                       "aten::transpose",
                                       "aten::unsqueeze",
                                       "aten::view",
                                       "aten::_unsafe_view",
                                       "aten::item",
                                       "aten::resolve_conj",
                                       "aten::is_nonzero",
                                       "detach",
                                       "aten::_local_scalar_dense"};

/// Operators that throw on CUDA under torch.use_deterministic_algorithms() and that a language
/// model could call.
const std::set<std::string> not_deterministic = {
    "aten::_embedding_bag", "aten::bincount",       "aten::cumsum",         "aten::cumsum_",
    "aten::histc",          "aten::kthvalue",       "aten::median",         "aten::nll_loss2d",
    "aten::put_",           "aten::scatter_reduce", "aten::scatter_reduce_"};

/// Operators that a GPU runs as well, and that only read and write their arguments.
const std::set<std::string> passes = {"aten::add",  "aten::add_",
                                      "aten::gelu", "aten::gelu_backward",
                                      "aten::mul",  "aten::native_layer_norm",
                                      "aten::mul_", "aten::native_layer_norm_backward"};

/// Bytes of the tensors among these values.
template <typename Values>
double bytes_of(const Values& values) {
  double bytes = 0.0;
  for (const c10::IValue& value : values) {
    if (value.isTensorList()) {
      for (const at::Tensor& each : value.toTensorVector())
        bytes += static_cast<double>(each.nbytes());
    } else if (value.isTensor() && value.toTensor().defined()) {
      bytes += static_cast<double>(value.toTensor().nbytes());
    }
  }
  return bytes;
}

/// Counts what this thread calls, and what autograd calls for it.
class OperatorCounts {
 public:
  OperatorCounts() {
    current() = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(begin, end)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION})
            .needsInputs(true)
            .needsOutputs(true));
  }
  ~OperatorCounts() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  OperatorCounts(const OperatorCounts&) = delete;
  OperatorCounts& operator=(const OperatorCounts&) = delete;

  int launches() const {
    int sum = 0;
    for (const auto& [name, count] : counts_) {
      const bool works = no_work.count(name) == 0 && !name.starts_with("autograd::");
      sum += works ? count : 0;
    }
    return sum;
  }
  std::string describe() const {
    std::string text;
    for (const auto& [name, count] : counts_) {
      if (no_work.count(name) == 0) text += name + " " + std::to_string(count) + "  ";
    }
    return text;
  }
  const std::set<std::string>& names() const { return names_; }
  double product_flops() const { return product_flops_; }
  double pass_bytes() const { return pass_bytes_; }

 private:
  struct Call : at::ObserverContext {
    bool leaf = true;
    Call* parent = nullptr;
    bool moves = false;
    double input_bytes = 0.0;
  };
  static OperatorCounts*& current() {
    static OperatorCounts* counts = nullptr;
    return counts;
  }
  static Call*& innermost() {
    thread_local Call* call = nullptr;
    return call;
  }
  static bool is(const at::RecordFunction& function, std::string_view name) {
    return function.name() == name;
  }
  static bool moves(const at::RecordFunction& function) {
    const auto rank = [&] {
      const c10::IValue& first = function.inputs()[0];
      return first.isTensorList() ? first.toTensorVector()[0].dim() : first.toTensor().dim();
    };
    // Matrices that are not contiguous are joined here; in a unit they are contiguous.
    if (is(function, "aten::cat")) return rank() == 3;
    // A GPU's attention needs no copies of keys and values that several queries share.
    if (is(function, "aten::sum")) return rank() <= 3;
    return passes.count(function.name()) != 0;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    auto call = std::make_unique<Call>();
    call->parent = innermost();
    const bool works = no_work.count(function.name()) == 0;
    if (call->parent != nullptr && works) call->parent->leaf = false;
    innermost() = call.get();
    const bool biased = is(function, "aten::addmm");
    if (biased || is(function, "aten::mm")) {
      const auto factors = function.inputs().slice(biased ? 1 : 0, 2);
      current()->product_flops_ += 2.0 * static_cast<double>(factors[0].toTensor().numel()) *
                                   static_cast<double>(factors[1].toTensor().size(1));
    }
    call->moves = moves(function);
    if (call->moves) call->input_bytes = bytes_of(function.inputs());
    return call;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto* call = static_cast<Call*>(context);
    innermost() = call->parent;
    current()->names_.insert(function.name());
    const bool autograd = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
    if (call->leaf && !autograd) ++current()->counts_[function.name()];
    if (call->moves) {
      current()->pass_bytes_ += call->input_bytes + bytes_of(function.outputs());
    }
  }

  at::CallbackHandle handle_ = 0;
  std::map<std::string, int> counts_;
  std::set<std::string> names_;
  double product_flops_ = 0.0;
  double pass_bytes_ = 0.0;
};

constexpr const char* llama = R"({"model_type": "llama", "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6})";
constexpr const char* gpt2 = R"({"model_type": "gpt2", "vocab_size": 1000, "n_positions": 512,
    "n_embd": 64, "n_layer": 1, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})";

constexpr const char* qwen2 = R"({"model_type": "qwen2", "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6})";
constexpr const char* qwen3 = R"({"model_type": "qwen3", "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6})";

/// Our kernels in a stage: their number, and the elements of a token that they read and write.
struct Own {
  int kernels = 0;
  double elements = 0.0;
};

class Operators : public testing::TestWithParam<const char*> {
 protected:
  Operators()
      : config_(parse_model_config(GetParam(), "config.json").value()),
        module_(make_module(config_)),
        ids_(at::zeros({2, length}, at::kLong)) {}

  std::vector<at::Tensor> parameters(std::size_t stage) const {
    std::vector<at::Tensor> made;
    for (const std::uint32_t parameter : module_->stages()[stage].parameters) {
      if (module_->stages()[stage].lookup == parameter) continue;
      const auto& shape = module_->parameters()[parameter].shape;
      made.push_back(at::full(shape, 0.02, at::kBFloat16).requires_grad_());
    }
    return made;
  }
  at::Tensor input() const { return at::ones({2, length, 64}, at::kBFloat16).requires_grad_(); }
  at::Tensor forward(std::size_t stage, const at::Tensor& input,
                     const std::vector<at::Tensor>& given) const {
    return module_->forward(stage, input, given, {ids_, ids_});
  }

  /// Compares a stage's work with the counts. There are enough tokens that work done once a
  /// micro-batch, such as norms' weight gradients, is small beside the rest.
  void expect_work(const char* what, const OperatorCounts& counted, const Own& own,
                   const StageWork& work) const {
    SCOPED_TRACE(what);
    constexpr double tokens = 2.0 * length;
    EXPECT_EQ(counted.product_flops(), tokens * work.products);
    const double bytes = counted.pass_bytes() + tokens * 2 * own.elements;
    const double launches = counted.launches() + own.kernels;
    EXPECT_NEAR(tokens * work.bytes, bytes, 0.02 * bytes);
    EXPECT_LE(work.launches, 1.2 * launches);
    EXPECT_GE(work.launches, 0.6 * launches);  // the CPU joins matrices, and copies more
  }
  /// Norms, rotary embeddings of queries and keys, and silu(gate) * up. Qwen's queries and keys are
  /// rotated one by one, and Qwen3's have norms.
  Own own_forward() const {
    if (!config_.is_llama()) return {};
    return {.kernels = 2 + head_norms() + turns() + 1,
            .elements = 2 * 2 * 64 + (2.0 + head_norms()) * (64 + 32) + 3 * 160};
  }
  /// The same in backward, where a norm's weight needs another kernel.
  Own own_backward() const {
    if (!config_.is_llama()) return {};
    return {.kernels = 2 * (2 + head_norms()) + turns() + 1,
            .elements = 2 * 3 * 64 + (2 + head_norms() * 1.5) * (64 + 32) + 5 * 160};
  }
  int head_norms() const { return config_.llama.head_norms ? 2 : 0; }
  int turns() const { return joins_heads(config_.llama) ? 1 : 2; }
  /// The kernel of the logits, and a norm.
  Own own_head() const {
    if (!config_.is_llama()) return {.kernels = 1, .elements = 2 * 1000};
    return {.kernels = 3, .elements = 2 * 1000 + (2 + 3) * 64};
  }
  DeviceWork work() const { return device_work(config_, length, DType::BFloat16); }

  static constexpr std::int64_t length = 256;
  ModelConfig config_;
  std::unique_ptr<zero3::Module> module_;
  at::Tensor ids_;
};

TEST_P(Operators, ABlocksForwardTakesLessThan20AndItsBackwardLessThan60) {
  const std::size_t block = module_->stages().size() - 2;
  const auto given = parameters(block);
  const at::Tensor x = input();
  forward(block, x, given);  // tables of positions are made once
  at::Tensor output;
  {
    const OperatorCounts counts;
    output = forward(block, x, given);
    EXPECT_LT(counts.launches(), 20) << counts.describe();
    EXPECT_GE(counts.launches(), 8) << counts.describe();
    RecordProperty("forward", counts.launches());
    expect_work("forward", counts, own_forward(), work().block_forward);
    for (const auto& name : counts.names()) EXPECT_EQ(not_deterministic.count(name), 0u) << name;
  }
  std::vector<at::Tensor> sources = given;
  sources.push_back(x);
  const at::Tensor gradient = at::ones_like(output);
  const OperatorCounts counts;
  torch::autograd::grad({output}, sources, {gradient});
  EXPECT_LT(counts.launches(), 60) << counts.describe();
  EXPECT_GT(counts.launches(), 20) << counts.describe();
  RecordProperty("backward", counts.launches());
  expect_work("backward", counts, own_backward(), work().block_backward);
  for (const auto& name : counts.names()) EXPECT_EQ(not_deterministic.count(name), 0u) << name;
}

TEST_P(Operators, AHeadTakesLessThan200WhateverItsRows) {
  const std::size_t head = module_->stages().size() - 1;
  const auto given = parameters(head);
  const at::Tensor x = input();
  std::vector<at::Tensor> sources = given;
  sources.push_back(x);
  const OperatorCounts counts;
  const at::Tensor loss = forward(head, x, given);
  torch::autograd::grad({loss}, sources);
  EXPECT_LT(counts.launches(), 200) << counts.describe();
  EXPECT_GT(counts.launches(), 5) << counts.describe();
  RecordProperty("head", counts.launches());
  const DeviceWork work = this->work();
  const auto both = [&](double StageWork::*part) {
    return work.head_forward.*part + work.head_backward.*part;
  };
  expect_work("head", counts, own_head(),
              {.products = both(&StageWork::products),
               .bytes = both(&StageWork::bytes),
               .launches = both(&StageWork::launches)});
  for (const auto& name : counts.names()) EXPECT_EQ(not_deterministic.count(name), 0u) << name;
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  constexpr std::array names{"Llama", "Gpt2", "Qwen2", "Qwen3"};
  return names[info.index];
}
INSTANTIATE_TEST_SUITE_P(Models, Operators, testing::Values(llama, gpt2, qwen2, qwen3), name_of);

}  // namespace
}  // namespace artesian::models
