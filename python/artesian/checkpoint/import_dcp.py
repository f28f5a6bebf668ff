"""Converts a torch.distributed.checkpoint (DCP) to an Artesian checkpoint.

    python -m artesian.checkpoint.import_dcp SOURCE OUT

SOURCE is the folder with `.metadata`. Names are those of torch's get_state_dict: `model.NAME`,
`optim.state.NAME.exp_avg`; or, for a model without optimizer state, bare names; moments are then
zero. Needs numpy, not torch. No code in the files is run. Exit codes as for import_deepspeed.
"""

import argparse
import sys
from pathlib import Path

from artesian.checkpoint.dcp_files import read_dcp
from artesian.checkpoint.import_deepspeed import describe, run
from artesian.checkpoint.writer import write_checkpoint
from artesian.checkpoint.zero_to_fp32 import Refused


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="import_dcp",
        description="Makes a checkpoint of ours of one of torch.distributed.checkpoint.",
    )
    parser.add_argument("source", type=Path, help="the folder with .metadata")
    parser.add_argument("out", type=Path, help="the folder of checkpoints to write into")
    parser.add_argument("--out-tag", help="its tag in OUT; unless given, global_stepN")
    options = parser.parse_args(arguments)

    def work() -> str:
        if not (options.source / ".metadata").exists():
            raise Refused(f"{options.source / '.metadata'}: no such file")
        state = read_dcp(options.source)
        tag = options.out_tag or f"global_step{state.step}"
        write_checkpoint(options.out, tag, state, "DCP")
        return f"{options.out / tag}: {describe(state)}"

    return run("import_dcp", work)


if __name__ == "__main__":
    sys.exit(main())
