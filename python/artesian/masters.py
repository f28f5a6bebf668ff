"""Preserves master weights while a caller swaps weights: it takes 16-bit copies, writes other
values (such as an average for evaluation), and writes the copies back. The copies lack the masters'
low digits. So the first write to a parameter after a step saves its masters, and a later write
restores the masters of all elements whose new values equal the rounded saved ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from artesian.errors import NoSpaceError
from artesian.state import SMALL, empty_in_file

if TYPE_CHECKING:
    from artesian.engine import Engine


class SavedMasters:
    """The saved master weights of one engine, 4 bytes for each element, in mapped files if the
    engine has a folder on NVMe."""

    def __init__(self, folder: str | None, dtype: torch.dtype) -> None:
        self.folder = folder
        self.dtype = dtype  # dtype in which the engine stores parameters
        self.tensors: dict[int, torch.Tensor] = {}  # by the parameter's number
        self.taken: dict[int, torch.Tensor] = {}  # space for the masters of the current write

    def clear(self) -> None:
        """Drops the saved masters: the weights continue from their present values."""
        self.tensors.clear()

    def forget(self, number: int) -> None:
        self.tensors.pop(number, None)

    def take_room(self, engine: Engine, parameters: list[nn.Parameter]) -> None:
        """Reserves room for the masters of all parameters that a write is about to change, before
        it changes the first one."""
        self.taken.clear()
        for parameter in parameters:
            number = engine._number(parameter)
            finer = parameter.requires_grad and self.dtype != torch.float32
            if not finer or number in self.tensors:
                continue
            if self.folder is None or parameter.numel() * 4 < SMALL:
                self.taken[number] = torch.empty(parameter.shape, dtype=torch.float32)
                continue
            try:
                self.taken[number] = empty_in_file(parameter.shape, torch.float32, self.folder)
            except OSError as error:
                self.taken.clear()
                size = sum(4 * p.numel() for p in parameters)
                raise NoSpaceError(
                    f"GatheredParameters: got no room for the master weights of what is written, "
                    f"{size} bytes until the next step: {error.strerror}; free some, nothing has "
                    "been written"
                ) from None

    def write(self, engine: Engine, parameter: nn.Parameter, values: torch.Tensor) -> None:
        """Sets a parameter to values in its dtype. An element that has its value already keeps its
        master weight; one that returns to its value from before the first write since the last step
        gets the saved master weight."""
        number = engine._number(parameter)
        room = self.taken.pop(number, None)
        saved = self.tensors.get(number)
        master = engine._read_master(number, room)
        values = values.to(master.device)
        # Resident parameters are rounded to the stored dtype, so values that the caller copied
        # from them compare equal to the rounded master weights alone.
        before = master.to(self.dtype) if engine.resident else master
        changed = before.to(values.dtype) != values
        if not changed.any():
            return
        if room is not None:
            self.tensors[number] = room
        if saved is not None:
            # The caller's values may have the dtype that is gathered, or the stored dtype in which
            # copies of the whole model are made.
            again = (saved.to(values.dtype) == values) | (saved.to(self.dtype).float() == values)
            values = torch.where(again, saved, values.float())
            changed |= again
        engine._write_master(number, torch.where(changed, values.float(), master))
