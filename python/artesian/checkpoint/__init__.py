"""Checkpoints without an engine: fp32 weights of one, and the way from and to other programs.

Each of these is a program: `python -m artesian.checkpoint.NAME --help`.

    zero_to_fp32       weights for Hugging Face; also lies beside each checkpoint, and runs alone
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
    """The model's state dict in fp32, as torch tensors, as DeepSpeed's function of this name.

    Raises zero_to_fp32.Refused where there is no such checkpoint, zero_to_fp32.Damaged.
    """
    from artesian.checkpoint import exports, zero_to_fp32

    checkpoint = zero_to_fp32.Checkpoint(checkpoint_dir, tag)
    state = {}
    for output in zero_to_fp32.fp32_outputs(checkpoint, exclude_frozen_parameters):
        data = exports.gathered(output.pieces(), output.bytes)
        state[output.name] = zero_to_fp32.torch_tensor(data, output.dtype, output.shape)
    return state
