// Of Gloo, which is inside of LibTorch and whose headers its package lacks: no more than what
// LibTorch's ProcessGroupGloo.hpp asks for, and only ever declared (zero3/torch/gloo_group.cpp).
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
