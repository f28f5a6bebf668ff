"""make_first_calls(): for Python programs whose results are compared with ours.

oneMKL chooses the kernel of a vector function (exp, log, ...) in its first call. Up to oneMKL
2024.2, which torch 2.11 contains, threads that make this first call simultaneously may get a less
accurate kernel for that call (pytorch issue 188792): one process in a hundred then computes its
first step with other bits. On a single element only one thread makes the call.
zero3/torch/first_calls.h does the same."""

import torch

# The functions that torch's ATen/cpu/vml.h passes to oneMKL.
FUNCTIONS = [
    torch.acos, torch.asin, torch.atan, torch.cos, torch.erf, torch.erfc, torch.erfinv, torch.exp,
    torch.log, torch.log10, torch.log2, torch.sin, torch.sqrt, torch.tan, torch.tanh, torch.trunc,
]  # fmt: skip


def make_first_calls():
    for dtype in [torch.float32, torch.float64]:
        one_element = torch.full((1,), 0.5, dtype=dtype)
        for function in FUNCTIONS:
            function(one_element)
