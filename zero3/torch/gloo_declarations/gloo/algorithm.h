// Declarations of Gloo, which is built into LibTorch but whose headers are not in its package: only
// those that LibTorch's ProcessGroupGloo.hpp needs, and only declarations
// (zero3/torch/gloo_group.cpp).
#pragma once
