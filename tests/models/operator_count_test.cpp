// Proves how many operators of LibTorch the stages of a model take, each of which is at least one
// launch on a GPU, 5 to 10 us of the host's: a block's forward less than 20, a head's forward and
// backward less than 200, however many tokens there are and however large the vocabulary is; and
// that none of them is known to have no deterministic kernel on a GPU, where it would be an error.
// An operator counts if it calls no other one and is no view or allocation. Our own kernels do not:
// in a block of Llama five forward.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <set>
#include <string>

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
/// model could take.
const std::set<std::string> not_deterministic = {
    "aten::_embedding_bag", "aten::bincount",       "aten::cumsum",         "aten::cumsum_",
    "aten::histc",          "aten::kthvalue",       "aten::median",         "aten::nll_loss2d",
    "aten::put_",           "aten::scatter_reduce", "aten::scatter_reduce_"};

/// Counts what this thread calls, and what autograd calls for it.
class OperatorCounts {
 public:
  OperatorCounts() {
    current() = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(begin, end)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~OperatorCounts() {
    at::removeCallback(handle_);
    current() = nullptr;
  }
  OperatorCounts(const OperatorCounts&) = delete;
  OperatorCounts& operator=(const OperatorCounts&) = delete;

  int launches() const {
    int sum = 0;
    for (const auto& [name, count] : counts_) sum += no_work.count(name) == 0 ? count : 0;
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

 private:
  struct Call : at::ObserverContext {
    bool leaf = true;
    Call* parent = nullptr;
  };
  static OperatorCounts*& current() {
    static OperatorCounts* counts = nullptr;
    return counts;
  }
  static Call*& innermost() {
    thread_local Call* call = nullptr;
    return call;
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    auto call = std::make_unique<Call>();
    call->parent = innermost();
    const bool works = no_work.count(function.name()) == 0;
    if (call->parent != nullptr && works) call->parent->leaf = false;
    innermost() = call.get();
    return call;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto* call = static_cast<Call*>(context);
    innermost() = call->parent;
    current()->names_.insert(function.name());
    const bool autograd = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
    if (call->leaf && !autograd) ++current()->counts_[function.name()];
  }

  at::CallbackHandle handle_ = 0;
  std::map<std::string, int> counts_;
  std::set<std::string> names_;
};

constexpr const char* llama = R"({"model_type": "llama", "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6})";
constexpr const char* gpt2 = R"({"model_type": "gpt2", "vocab_size": 1000, "n_positions": 512,
    "n_embd": 64, "n_layer": 1, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})";

class Operators : public testing::TestWithParam<const char*> {
 protected:
  Operators()
      : module_(make_module(parse_model_config(GetParam(), "config.json").value())),
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

  static constexpr std::int64_t length = 256;
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
  for (const auto& name : counts.names()) EXPECT_EQ(not_deterministic.count(name), 0u) << name;
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  return info.index == 0 ? "Llama" : "Gpt2";
}
INSTANTIATE_TEST_SUITE_P(Models, Operators, testing::Values(llama, gpt2), name_of);

}  // namespace
}  // namespace artesian::models
