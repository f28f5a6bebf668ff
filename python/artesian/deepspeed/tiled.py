"""deepspeed.zero.TiledLinear: a linear layer made of several, so that not all of its weight must be
in memory at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from artesian.errors import InvalidError
from artesian.zero import GatheredParameters


def partition_uniform(num_items: int, num_parts: int) -> list[int]:
    """The boundaries of the parts, including the end of the last. Sizes differ by at most one,
    larger parts first."""
    size, larger = divmod(num_items, num_parts)
    return [part * size + min(part, larger) for part in range(num_parts + 1)]


def check_splits(name: str, splits: int, features: int) -> None:
    if not 1 <= splits <= features:
        raise InvalidError(f"TiledLinear: {name}: got {splits}, allowed 1 to {features}")


def tiles_of(row: nn.Module) -> list[Any]:
    return list(row.children())


class TiledLinear(nn.Module):
    """Tile `linears[i][j]` computes output part i from input part j. The last tile of each row has
    the row's bias."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        in_splits: int = 1,
        out_splits: int = 1,
        input_is_already_split: bool = False,
        combine_out_splits: bool = True,
        linear_cls: Callable[..., nn.Module] = nn.Linear,
        init_linear: nn.Linear | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        check_splits("in_splits", in_splits, in_features)
        check_splits("out_splits", out_splits, out_features)
        self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
        self.in_splits, self.out_splits = in_splits, out_splits
        self.input_is_already_split = input_is_already_split
        self.combine_out_splits = combine_out_splits
        self.in_parts = partition_uniform(in_features, in_splits)
        self.out_parts = partition_uniform(out_features, out_splits)

        def tile(row: int, column: int) -> nn.Module:
            return linear_cls(
                self.in_parts[column + 1] - self.in_parts[column],
                self.out_parts[row + 1] - self.out_parts[row],
                bias=bias and column == in_splits - 1,
                **kwargs,
            )

        self.linears = nn.ModuleList(
            nn.ModuleList(tile(row, column) for column in range(in_splits))
            for row in range(out_splits)
        )
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def _inputs(self, input_: Any) -> Sequence[Any]:
        if self.in_splits == 1:
            return [input_]
        if not self.input_is_already_split:
            parts = partition_uniform(input_.shape[-1], self.in_splits)
            sizes = [end - begin for begin, end in itertools.pairwise(parts)]
            return self._split_global_input(input_, sizes)
        if len(input_) != self.in_splits:
            raise InvalidError(
                f"TiledLinear: got {len(input_)} parts of the input, allowed {self.in_splits}"
            )
        given: Sequence[Any] = input_
        return given

    def forward(self, input_: Any) -> Any:
        inputs = self._inputs(input_)
        outputs: list[Any] = []
        for out_id, row in enumerate(self.linears):
            sum_of_row = None
            for in_id, tile in enumerate(tiles_of(row)):
                sum_of_row = self._reduce_local_output(
                    in_id=in_id, out_id=out_id, current_out=sum_of_row, new_out=tile(inputs[in_id])
                )
            outputs.append(sum_of_row)
        return self._combine_output_splits(outputs) if self.combine_out_splits else outputs

    # Subclasses may override these methods.

    def _split_global_input(self, input: Any, split_sizes: list[int]) -> Sequence[Any]:
        return torch.split(input, split_sizes, dim=-1)

    def _reduce_local_output(self, in_id: int, out_id: int, current_out: Any, new_out: Any) -> Any:
        return new_out if current_out is None else current_out + new_out

    def _combine_output_splits(self, outputs: list[Any]) -> Any:
        return torch.cat(outputs, dim=-1)

    @torch.no_grad()
    def copy_params_from(self, other: nn.Linear) -> None:
        """Copies the linear layer's weights into the tiles."""
        shape = (self.out_features, self.in_features)
        if tuple(other.weight.shape) != shape or (other.bias is not None) != self.use_bias:
            raise InvalidError(
                f"TiledLinear.copy_params_from: got {other}, allowed a weight of the shape {shape}"
                f"{' and a bias' if self.use_bias else ', without a bias'}"
            )
        for i, row in enumerate(self.linears):
            rows = slice(self.out_parts[i], self.out_parts[i + 1])
            for j, tile in enumerate(tiles_of(row)):
                columns = slice(self.in_parts[j], self.in_parts[j + 1])
                with GatheredParameters(tile.parameters(), modifier_rank=0):
                    tile.weight.copy_(other.weight[rows, columns])
                    if tile.bias is not None:
                        tile.bias.copy_(other.bias[rows])


class TiledLinearReturnBias(TiledLinear):
    """For tiles that return their bias beside the output, as in Megatron-LM."""

    def _reduce_local_output(self, in_id: int, out_id: int, current_out: Any, new_out: Any) -> Any:
        values, bias = new_out
        if current_out is None:
            return values, bias
        return current_out[0] + values, current_out[1] if bias is None else bias

    def _combine_output_splits(self, outputs: list[Any]) -> Any:
        biases = [bias for _, bias in outputs if bias is not None]
        values = torch.cat([value for value, _ in outputs], dim=-1)
        return values, torch.cat(biases, dim=-1) if biases else None
