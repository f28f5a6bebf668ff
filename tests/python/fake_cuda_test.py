"""Proves with LibTorch's fake tensors on "cuda", which have shapes and dtypes and no values, that
the operators of our models' stages take bf16 tensors there as the models give them: dtypes and
shapes of what comes out, and what attention's fused kernel asks of its inputs (last stride 1, rows
that begin at 16 bytes, heads of a multiple of 8), of which its backward gives gradients of the same
shapes. Needs no GPU, but for autograd's engine, which would ask the driver: a backward is called by
name."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

SAMPLES, LENGTH, HEADS, KEY_HEADS, HEAD, INNER, WORDS = 2, 256, 8, 2, 64, 1024, 128256
HIDDEN = HEADS * HEAD

@pytest.fixture(autouse=True)
def fake():
    with FakeTensorMode(), torch.no_grad():
        yield


def on_cuda(*shape):
    return torch.empty(*shape, dtype=torch.bfloat16, device="cuda")


def split_heads(joined, heads):
    return joined.view(SAMPLES, LENGTH, heads, HEAD).transpose(1, 2)


def test_attention_is_given_what_a_fused_kernel_takes():
    x = on_cuda(SAMPLES, LENGTH, HIDDEN)
    query, key, value = (
        split_heads(functional.linear(x, on_cuda(heads * HEAD, HIDDEN)), heads)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    )
    for one in (query, key, value):
        assert one.dtype == torch.bfloat16 and one.stride(-1) == 1 and one.size(-1) % 8 == 0
        assert one.stride(-2) % 8 == 0  # elements of 2 bytes
    mixed = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    assert mixed.shape == query.shape and mixed.dtype == torch.bfloat16 and mixed.is_cuda
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    mixed, sums, *state, seed, offset, _ = flash(query, key, value, 0.0, True, False)
    assert mixed.shape == query.shape and mixed.dtype == torch.bfloat16
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    inputs = (query, query, key, value)  # the first stands for a gradient of the output
    gradients = backward(*inputs, mixed, sums, *state, 0.0, True, seed, offset)
    for gradient, one in zip(gradients, inputs[1:]):
        assert gradient.shape == one.shape and gradient.dtype == torch.bfloat16


def test_a_llama_block_stays_in_bf16():
    """Its norms, rotary embeddings and silu(gate) * up are kernels of ours: what comes out of one
    has the dtype and shape of what goes in."""
    x = on_cuda(SAMPLES, LENGTH, HIDDEN)
    normed = torch.empty_like(x)
    query, key = (
        split_heads(functional.linear(normed, on_cuda(heads * HEAD, HIDDEN)), heads)
        for heads in (HEADS, KEY_HEADS)
    )
    assert query.stride(-1) == key.stride(-1) == 1
    mixed = functional.scaled_dot_product_attention(
        query, key, key, is_causal=True, enable_gqa=True
    )
    joined = mixed.transpose(1, 2).reshape(SAMPLES, LENGTH, HIDDEN)
    attended = x + functional.linear(joined, on_cuda(HIDDEN, HIDDEN))
    gate, up = (functional.linear(attended, on_cuda(INNER, HIDDEN)) for _ in range(2))
    assert gate.dtype == up.dtype == torch.bfloat16 and gate.is_contiguous()
    output = attended + functional.linear(torch.empty_like(up), on_cuda(HIDDEN, INNER))
    assert output.dtype == torch.bfloat16 and output.shape == x.shape and output.is_cuda


def test_a_head_multiplies_in_bf16():
    """models/linear_cross_entropy.cpp: the kernel in between is ours."""
    tokens = SAMPLES * LENGTH
    x, weight = on_cuda(tokens, HIDDEN), on_cuda(WORDS, HIDDEN)
    logits = torch.mm(x, weight.t())
    assert logits.dtype == torch.bfloat16 and logits.is_contiguous()
    ratio = torch.ones((), device="cuda").div(1024.0)
    of_input = torch.mm(logits, weight).mul_(ratio)
    factor = x * ratio
    of_weight = torch.mm(logits.t(), factor)
    assert of_input.dtype == factor.dtype == of_weight.dtype == torch.bfloat16
    assert of_input.shape == x.shape and of_weight.shape == weight.shape
