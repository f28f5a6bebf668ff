"""Checkpoints without an engine: extraction of fp32 weights, and conversion from and to other
formats.

Each of these is a program: `python -m artesian.checkpoint.NAME --help`.

    zero_to_fp32       weights for Hugging Face; also stored as a script beside each checkpoint
    import_deepspeed   from ZeRO-1, 2, 3 and universal checkpoints of DeepSpeed
    import_dcp         from torch.distributed.checkpoint
    export_universal   to a universal checkpoint of DeepSpeed
    export_dcp         to torch.distributed.checkpoint
"""

import os
from typing import Any


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | os.PathLike[str],
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> dict[str, Any]:
    """The model's state dict in fp32, as torch tensors, like DeepSpeed's function of this name.

    Raises zero_to_fp32.Refused if there is no such checkpoint, zero_to_fp32.Damaged if it is
    damaged.
    """
    from artesian.checkpoint import exports, zero_to_fp32

    checkpoint = zero_to_fp32.Checkpoint(checkpoint_dir, tag)
    state = {}
    for output in zero_to_fp32.fp32_outputs(checkpoint, exclude_frozen_parameters):
        data = exports.gathered(output.pieces(), output.bytes)
        state[output.name] = zero_to_fp32.torch_tensor(data, output.dtype, output.shape)
    return state
