"""Runs a script that imports DeepSpeed, with Artesian in its place:

    python -m artesian.run script.py ARGUMENTS
    python -m artesian.run -m module ARGUMENTS

The script and its child processes get Artesian when they import deepspeed; nothing else changes.
"""

from __future__ import annotations

import argparse
import os
import runpy
import site
import sys
from typing import NoReturn

from artesian.errors import UnsupportedError


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="artesian run", description=__doc__.splitlines()[0])
    parser.add_argument("--num_gpus", type=int, default=1, help="processes that train together")
    parser.add_argument("--num_nodes", type=int, default=1, help="1; torchrun starts several")
    parser.add_argument("-m", action="store_true", dest="module", help="SCRIPT is a module's name")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def torchrun(
    command: list[str], nodes: int, node: int | str, processes: int, address: str, port: int
) -> list[str]:
    """The torchrun command that starts `command` several times on one of `nodes` machines, each
    with the variables of its rank. torchrun ends the others if one fails, and forwards signals."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"),
        *(f"--node-rank={node}", f"--nproc-per-node={processes}"),
        *(f"--master-addr={address}", f"--master-port={port}"),
        *("--no-python", *command),
    ]


def start_together(processes: int, port: int, command: list[str], **variables: str) -> NoReturn:
    """Replaces this process by torchrun, on this machine only."""
    of_one = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    environment = {name: value for name, value in os.environ.items() if name not in of_one}
    sys.stdout.flush()
    words = torchrun(command, 1, 0, processes, "127.0.0.1", port)
    os.execve(sys.executable, words, {**environment, **variables})


def children_see_us() -> bool:
    """True if Python reads our .pth file when it starts."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return any(os.path.exists(os.path.join(folder, "artesian.pth")) for folder in folders)


def main(arguments: list[str] | None = None) -> None:
    given = parse(arguments)
    if given.num_nodes > 1:
        raise UnsupportedError(
            f"artesian run: got --num_nodes {given.num_nodes}, allowed 1; start torchrun on each "
            "machine (docs/distributed.md)"
        )
    if given.num_gpus > 1:
        module = ["-m"] if given.module else []
        words = [sys.executable, "-u", "-m", "artesian.run", *module, given.script]
        start_together(given.num_gpus, 29500, [*words, *given.arguments])
    import artesian.deepspeed  # noqa: F401

    if not children_see_us():
        print(
            "artesian run: note: artesian is not installed in a site folder, so processes that the "
            "script starts do not find it as deepspeed; install the wheel",
            file=sys.stderr,
        )
    sys.argv = [given.script, *given.arguments]
    if given.module:
        runpy.run_module(given.script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(given.script))
        runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    main()
