"""Converts a DeepSpeed checkpoint (ZeRO-1, 2 or 3, or universal) to an Artesian checkpoint.

    python -m artesian.checkpoint.import_deepspeed SOURCE OUT

SOURCE is the folder with DeepSpeed's `latest`, or the folder of a single checkpoint. The new
checkpoint in OUT has the same tag. Needs numpy; neither torch nor DeepSpeed. No code in the files
is run. Exit codes: 0 done; 2 cannot be imported; 1 damage, or a disk error.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from artesian.checkpoint.deepspeed_files import find_checkpoint, read_deepspeed
from artesian.checkpoint.writer import SavedState, write_checkpoint
from artesian.checkpoint.zero_to_fp32 import Damaged, Refused


def describe(state: SavedState) -> str:
    numel = sum(parameter.numel for parameter in state.parameters)
    frozen = sum(not parameter.trainable for parameter in state.parameters)
    return (
        f"step {state.step}, {len(state.parameters)} parameters ({frozen} of them frozen) with "
        f"{numel} elements, {len(state.buffers)} buffers, {len(state.aliases)} other names"
    )


def run(program: str, work: Callable[[], str]) -> int:
    """Prints the result, or the error in one line; returns the exit code."""
    try:
        print(work())
    except (Refused, Damaged, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2 if isinstance(error, Refused) else 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="import_deepspeed", description="Makes a checkpoint of ours of one of DeepSpeed's."
    )
    parser.add_argument("source", type=Path, help="the folder with `latest`, or a checkpoint's own")
    parser.add_argument("out", type=Path, help="the folder of checkpoints to write into")
    parser.add_argument("-t", "--tag", help="of the checkpoint; unless given, what `latest` says")
    parser.add_argument("--out-tag", help="its tag in OUT; unless given, the same")
    options = parser.parse_args(arguments)

    def work() -> str:
        folder = find_checkpoint(options.source, options.tag)
        state = read_deepspeed(folder)
        tag = options.out_tag or folder.resolve().name
        write_checkpoint(options.out, tag, state, "DeepSpeed")
        return f"{options.out / tag}: {describe(state)}"

    return run("import_deepspeed", work)


if __name__ == "__main__":
    sys.exit(main())
