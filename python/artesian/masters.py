"""Master weights that outlive a swap of weights: copies are taken in 16 bits, others are written in
their place, an average that is evaluated, say, and the copies are written back. They alone do not
have the masters' digits. So the first write to a parameter since the last step saves its masters,
and a later one restores those of the elements that it makes what the saved ones round to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from artesian.errors import NoSpaceError
from artesian.state import SMALL, empty_in_file

if TYPE_CHECKING:
    from artesian.engine import Engine


class SavedMasters:
    """Of one engine, 4 bytes for each element; in mapped files without names, where it has a folder
    on NVMe."""

    def __init__(self, folder: str | None, dtype: torch.dtype) -> None:
        self.folder = folder
        self.dtype = dtype  # that the engine stores parameters in
        self.tensors: dict[int, torch.Tensor] = {}  # by the parameter's number
        self.taken: dict[int, torch.Tensor] = {}  # room for those of the write under way

    def clear(self) -> None:
        """The weights go on from what they are."""
        self.tensors.clear()

    def forget(self, number: int) -> None:
        self.tensors.pop(number, None)

    def take_room(self, engine: Engine, parameters: list[nn.Parameter]) -> None:
        """For the masters of all parameters that are to be written, before the first is."""
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
        """The parameter's values, in its dtype, become these. Elements that are so already keep
        their masters, and those that are again what they were at the first write since the last
        step have the saved ones."""
        number = engine._number(parameter)
        room = self.taken.pop(number, None)
        saved = self.tensors.get(number)
        master = engine._read_master(number, room)
        # What is resident has been rounded before the caller sees it.
        before = master.to(self.dtype) if engine.resident else master
        changed = before.to(values.dtype) != values
        if not changed.any():
            return
        if room is not None:
            self.tensors[number] = room
        if saved is not None:
            # In the dtype that the caller sees, or that copies of the whole model have.
            again = (saved.to(values.dtype) == values) | (saved.to(self.dtype).float() == values)
            values = torch.where(again, saved, values.float())
            changed |= again
        engine._write_master(number, torch.where(changed, values.float(), master))
