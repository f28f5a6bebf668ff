"""The command `deepspeed`, which starts a script as DeepSpeed's launcher does, with Artesian in
DeepSpeed's place; and `ds_report`. Scripts of the wheel artesian-deepspeed. One process, or several
on this machine, which PyTorch's torchrun starts."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

from artesian.deepspeed import gpus, surface
from artesian.run import children_see_us, start_together

HOSTFILE = "/job/hostfile"  # DeepSpeed's; read where it is there
SWITCH = "ARTESIAN_AS_DEEPSPEED"
# Flags that concern other processes or nodes, with whether they take a value.
WITHOUT_EFFECT = {
    "--min_elastic_nodes": True,
    "--max_elastic_nodes": True,
    "--node_rank": True,
    "--launcher": True,
    "--launcher_args": True,
    "--no_ssh": False,
    "--no_ssh_check": False,
    "--save_pid": False,
    "--enable_each_rank_log": True,
    "--bind_cores_to_rank": False,
    "--bind_core_list": True,
    "--ssh_port": True,
    "--venv_script": True,
}
LEVELS = ("debug", "info", "warning", "error", "critical")


class Refusal(Exception):
    """What the command line asks for and does not get."""


def parser_of_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepspeed",
        description="Starts a script with Artesian in DeepSpeed's place, on this machine.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-H", "--hostfile", help=f"hosts and slots; {HOSTFILE} where that is there")
    add("-i", "--include", default="", help="hosts and slots to use: localhost:0")
    add("-e", "--exclude", default="", help="hosts and slots not to use")
    add("--num_nodes", type=int, default=-1, help="1; torchrun starts several")
    add("--num_gpus", "--num_accelerators", type=int, default=-1, help="processes; 1 unless given")
    add("--master_port", type=int, default=29500, help="the script's MASTER_PORT")
    add("--master_addr", default="127.0.0.1", help="the script's MASTER_ADDR")
    add("--module", action="store_true", help="SCRIPT is a module's name")
    add("--no_python", action="store_true", help="SCRIPT is a program")
    add("--no_local_rank", action="store_true", help="without --local_rank=N before ARGUMENTS")
    add("--force_multi", action="store_true", help=argparse.SUPPRESS)
    add("--autotuning", choices=("tune", "run"), help=argparse.SUPPRESS)
    add("--elastic_training", action="store_true", help=argparse.SUPPRESS)
    for flag, valued in WITHOUT_EFFECT.items():
        add(flag, help=argparse.SUPPRESS, action="store" if valued else "store_true")
    add("--log_level", choices=LEVELS, default="info", help="error: without notes")
    add("-q", "--quiet", action="store_true", help="as --log_level error")
    add("script", metavar="SCRIPT")
    add("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    return parser


def read_hostfile(path: str) -> dict[str, int]:
    """Hosts and their slots: lines `NAME slots=N`, in their order."""
    hosts: dict[str, int] = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#")[0].strip()
            if not words:
                continue
            match = re.fullmatch(r"(\S+)\s+slots=(\d+)", words)
            if match is None or match[1] in hosts:
                allowed = "a line for each host" if match else "NAME slots=N"
                raise Refusal(f'--hostfile {path}, line {number}: got "{words}", allowed {allowed}')
            hosts[match[1]] = int(match[2])
    if not hosts:
        raise Refusal(f"--hostfile {path}: got no host, allowed one, as NAME slots=N")
    return hosts


def slots_of(nodes: str) -> dict[str, set[str]]:
    """Of `--include` and `--exclude`: hosts and their slots; none named: all."""
    return {
        host: set(slots.split(",")) if slots else set()
        for host, _, slots in (node.partition(":") for node in nodes.split("@"))
    }


def processes_of(given: argparse.Namespace) -> int:
    """How many to start. Refuses what asks for several machines, or for what there is not."""
    if given.autotuning:
        raise Refusal(
            f"--autotuning {given.autotuning}: not supported; `artesian plan` says what a config "
            "takes, and `artesian aio_bench --tune` sets its aio section"
        )
    if given.elastic_training:
        raise Refusal("--elastic_training: not supported; DeepSpeed 0.19.8 does not have it either")
    chosen = bool(given.include) + bool(given.exclude)
    if chosen == 2:
        raise Refusal("--include, --exclude: got both, allowed one of them")
    if chosen and (given.num_nodes > 0 or given.num_gpus > 0):
        raise Refusal(
            "--include, --exclude: got one of them and --num_nodes or --num_gpus, allowed one way "
            "to choose"
        )
    path = given.hostfile or (HOSTFILE if os.path.isfile(HOSTFILE) else None)
    hosts: dict[str, int] = {"localhost": max(given.num_gpus, 1)}
    if path is not None:
        if not os.path.isfile(path):
            raise Refusal(f"--hostfile {path}: there is no such file")
        hosts = read_hostfile(path)
    if given.num_nodes > 0 and path is not None:
        hosts = dict(list(hosts.items())[: given.num_nodes])
    included = slots_of(given.include) if given.include else {}
    if included:
        hosts = {host: len(slots) or hosts.get(host, 1) for host, slots in included.items()}
    for host, slots in (slots_of(given.exclude) if given.exclude else {}).items():
        left = hosts.pop(host, 0) - len(slots)
        if slots and left > 0:
            hosts[host] = left
    several = [f"{len(hosts)} hosts: {', '.join(hosts)}"] if len(hosts) != 1 else []
    if given.num_nodes > len(hosts):
        several.append(f"--num_nodes {given.num_nodes}")
    if given.force_multi:
        several.append("--force_multi")
    if several:
        raise Refusal(
            f"got {'; '.join(several)}; allowed one host so far: start torchrun on each machine "
            "(docs/distributed.md)"
        )
    asked: int = given.num_gpus
    there = next(iter(hosts.values()))
    return min(asked, there) if asked > 0 and path is not None else there


def note_without_effect(given: argparse.Namespace) -> None:
    flags = [flag for flag in WITHOUT_EFFECT if getattr(given, flag[2:]) not in (None, False)]
    if flags and not given.quiet and LEVELS.index(given.log_level) < LEVELS.index("warning"):
        print(f"deepspeed: note: {', '.join(flags)}: no effect on one machine", file=sys.stderr)


def command_of(given: argparse.Namespace, processes: int) -> list[str]:
    """Of each process. Among several the shell puts in which one it is."""
    before = []
    if not given.no_python:
        before = [sys.executable, "-u"]
        if not children_see_us():  # a package that is found by PYTHONPATH alone
            before += ["-m", "artesian.run"]
        before += ["-m"] if given.module else []
    before.append(given.script)
    if given.no_local_rank:
        return [*before, *given.arguments]
    if processes == 1:
        return [*before, "--local_rank=0", *given.arguments]
    script = f'exec {shlex.join(before)} "--local_rank=$LOCAL_RANK" "$@"'
    return ["sh", "-c", script, "sh", *given.arguments]


def variables_of(processes: int) -> dict[str, str]:
    """What DeepSpeed's launcher sets for all of them alike."""
    return {SWITCH: "1", "LOCAL_SIZE": str(processes), "CROSS_RANK": "0", "CROSS_SIZE": "1"}


def environment_of(given: argparse.Namespace) -> dict[str, str]:
    """Of one process."""
    return {
        **os.environ,
        **variables_of(1),
        "MASTER_ADDR": given.master_addr,
        "MASTER_PORT": str(given.master_port),
        "WORLD_SIZE": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
    }


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """`deepspeed`: becomes the script, so that signals and the exit code are its own; or torchrun,
    which starts several of it."""
    given = parser_of_arguments().parse_args(arguments)
    try:
        if given.module and given.no_python:
            raise Refusal("--module, --no_python: got both, allowed one of them")
        processes = processes_of(given)
        note_without_effect(given)
        command = command_of(given, processes)
        if processes > 1:
            start_together(processes, given.master_port, command, **variables_of(processes))
        sys.stdout.flush()
        os.execvpe(command[0], command, environment_of(given))
    except Refusal as refusal:
        print(f"deepspeed: error: {refusal}", file=sys.stderr)
    except OSError as error:
        print(f"deepspeed: error: {given.script}: {error.strerror}", file=sys.stderr)
    sys.exit(2)


def installed_deepspeed() -> importlib.metadata.Distribution | None:
    """A DeepSpeed of files, which Artesian answers for."""
    finder = importlib.metadata.MetadataPathFinder
    return next(iter(finder.find_distributions(importlib.metadata.DistributionFinder.Context(
        name="deepspeed"))), None)  # fmt: skip


def report() -> None:
    """`ds_report`: what answers for DeepSpeed here."""
    from artesian.build_facts import VERSION

    other = installed_deepspeed()
    count = gpus.installed()
    rows = {
        "artesian": f"{VERSION}, {os.path.dirname(__file__)}",
        "answers for": f"DeepSpeed {surface.VERSION}",
        "installed deepspeed": "none"
        if other is None
        else f"{other.version}, {other.locate_file('')}: not used",
        "torch": f"{importlib.metadata.version('torch')}",
        "python": f"{sys.version.split()[0]}, {sys.executable}",
        "child processes": "see Artesian"
        if children_see_us()
        else "do not see Artesian: it is not installed in a site folder; install the wheel",
        "GPUs": f"{count}, not used: Python does not train on GPUs yet" if count else "none",
    }
    for name, value in rows.items():
        print(f"{name:.<21} {value}")
    print("Disks, memory and limits: `artesian doctor FOLDER`")


if __name__ == "__main__":
    main()
