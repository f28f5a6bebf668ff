// Of Gloo, which is inside of LibTorch and whose headers its package lacks: no more than what
// LibTorch's ProcessGroupGloo.hpp asks for, and only ever declared (zero3/torch/gloo_group.cpp).
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
