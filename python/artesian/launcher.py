"""The commands `deepspeed`, which starts a script like DeepSpeed's launcher but with Artesian in
DeepSpeed's place, and `ds_report`; both are scripts of the wheel artesian-deepspeed. Several
processes are started by PyTorch's torchrun, on this machine or on those of a hostfile."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import NoReturn

from artesian import hosts
from artesian.deepspeed import gpus, surface
from artesian.hosts import Refusal
from artesian.run import children_see_us, start_together

HOSTFILE = "/job/hostfile"  # DeepSpeed's default; read if it exists
SWITCH = "ARTESIAN_AS_DEEPSPEED"
# The variable with the local rank under torchrun, mpirun or srun.
OWN_RANK = "${LOCAL_RANK:-${OMPI_COMM_WORLD_LOCAL_RANK:-$SLURM_LOCALID}}"
# Flags about other processes or nodes that have no effect, and whether they take a value.
WITHOUT_EFFECT = {
    "--min_elastic_nodes": True,
    "--max_elastic_nodes": True,
    "--no_ssh_check": False,
    "--save_pid": False,
    "--enable_each_rank_log": True,
    "--bind_cores_to_rank": False,
    "--bind_core_list": True,
    "--venv_script": True,
}
LEVELS = ("debug", "info", "warning", "error", "critical")


def parser_of_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deepspeed",
        description="Starts a script with Artesian in DeepSpeed's place.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-H", "--hostfile", help=f"hosts and slots; {HOSTFILE} where that is there")
    add("-i", "--include", default="", help="hosts and slots to use: localhost:0")
    add("-e", "--exclude", default="", help="hosts and slots not to use")
    add("--num_nodes", type=int, default=-1, help="the first so many hosts")
    add("--num_gpus", "--num_accelerators", type=int, default=-1, help="processes on each host")
    add("--master_port", type=int, default=29500, help="the script's MASTER_PORT")
    add("--master_addr", default="", help="of the first host, whose name it is unless given")
    add("--module", action="store_true", help="SCRIPT is a module's name")
    add("--no_python", action="store_true", help="SCRIPT is a program")
    add("--no_local_rank", action="store_true", help="without --local_rank=N before ARGUMENTS")
    add("--force_multi", action="store_true", help=argparse.SUPPRESS)
    add("--autotuning", choices=("tune", "run"), help=argparse.SUPPRESS)
    add("--elastic_training", action="store_true", help=argparse.SUPPRESS)
    add("--launcher", help="of several hosts: " + ", ".join(hosts.LAUNCHERS))
    add("--launcher_args", default="", help="more arguments for it")
    add("--ssh_port", type=int, help="ssh's")
    add("--no_ssh", action="store_true", help="this command is started on each host, with")
    add("--node_rank", type=int, default=-1, help="its number, from 0 on")
    for flag, valued in WITHOUT_EFFECT.items():
        add(flag, help=argparse.SUPPRESS, action="store" if valued else "store_true")
    add("--log_level", choices=LEVELS, default="info", help="error: without notes")
    add("-q", "--quiet", action="store_true", help="as --log_level error")
    add("script", metavar="SCRIPT")
    add("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    return parser


def hosts_of(given: argparse.Namespace) -> dict[str, int]:
    """The number of processes to start, by host. Refuses hosts and slots that do not exist."""
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
    if path is None:
        return local_host(given)
    if not os.path.isfile(path):
        raise Refusal(f"--hostfile {path}: there is no such file")
    found = hosts.choose(hosts.read_hostfile(path), given.include, given.exclude)
    if given.num_nodes > len(found):
        raise Refusal(f"--num_nodes: got {given.num_nodes}, allowed {len(found)}, as {path} has")
    if given.num_nodes > 0:
        found = dict(list(found.items())[: given.num_nodes])
    if given.num_gpus > 0:
        found = {host: min(given.num_gpus, slots) for host, slots in found.items()}
    if not found:
        raise Refusal("--exclude: got all hosts, allowed to leave one")
    return found


def local_host(given: argparse.Namespace) -> dict[str, int]:
    """Without a hostfile: only this machine, with as many slots as requested."""
    if given.num_nodes > 1 or given.force_multi or given.no_ssh:
        raise Refusal(
            "--num_nodes, --force_multi, --no_ssh: got no --hostfile, which says which hosts there "
            "are"
        )
    named = hosts.slots_in(given.include or given.exclude or "localhost")
    if set(named) - {"localhost"}:
        raise Refusal(
            f"--include, --exclude: got {', '.join(named)}, allowed localhost: there is no "
            "--hostfile"
        )
    if given.exclude:
        raise Refusal("--exclude: got localhost, allowed where a --hostfile says its slots")
    return {"localhost": len(named["localhost"]) or max(given.num_gpus, 1)}


def note_without_effect(given: argparse.Namespace) -> None:
    flags = [flag for flag in WITHOUT_EFFECT if getattr(given, flag[2:]) not in (None, False)]
    if flags and not given.quiet and LEVELS.index(given.log_level) < LEVELS.index("warning"):
        print(f"deepspeed: note: {', '.join(flags)}: no effect", file=sys.stderr)


def command_of(given: argparse.Namespace, processes: int) -> list[str]:
    """The command of each process. With several processes the shell inserts the local rank."""
    before = []
    if not given.no_python:
        before = [sys.executable, "-u"]
        if not children_see_us():  # the package is found only through PYTHONPATH
            before += ["-m", "artesian.run"]
        before += ["-m"] if given.module else []
    before.append(given.script)
    if given.no_local_rank:
        return [*before, *given.arguments]
    if processes == 1:
        return [*before, "--local_rank=0", *given.arguments]
    script = f'exec {shlex.join(before)} "--local_rank={OWN_RANK}" "$@"'
    return ["sh", "-c", script, "sh", *given.arguments]


def variables_of(processes: int) -> dict[str, str]:
    """Variables that DeepSpeed's launcher sets for all processes alike."""
    return {SWITCH: "1", "LOCAL_SIZE": str(processes), "CROSS_RANK": "0", "CROSS_SIZE": "1"}


def environment_of(given: argparse.Namespace) -> dict[str, str]:
    """The environment of a single process."""
    return {
        **os.environ,
        **variables_of(1),
        "MASTER_ADDR": given.master_addr or "127.0.0.1",
        "MASTER_PORT": str(given.master_port),
        "WORLD_SIZE": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
    }


def start_on(found: dict[str, int], command: list[str], given: argparse.Namespace) -> int:
    """Starts the processes on several hosts. Returns the exit code."""
    start = hosts.Start(
        hosts=found,
        command=command,
        variables={**hosts.variables_for_hosts(), SWITCH: "1"},
        address=given.master_addr or next(iter(found)),
        port=given.master_port,
        arguments=shlex.split(given.launcher_args),
    )
    if given.no_ssh:
        if not 0 <= given.node_rank < len(found):
            raise Refusal(f"--node_rank: got {given.node_rank}, allowed 0 to {len(found) - 1}")
        count = list(found.values())[given.node_rank]
        os.environ.update(start.variables)
        return hosts.run([hosts.torchrun_on(start, given.node_rank, count)])
    launcher = hosts.launcher_for(given.launcher)
    os.environ.setdefault("PDSH_RCMD_TYPE", "ssh")
    commands = hosts.commands_of(start, launcher, given.ssh_port)
    if shutil.which(commands[0][0]) is None:
        raise Refusal(f"--launcher {launcher}: {commands[0][0]} is not installed here")
    return hosts.run(commands)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """`deepspeed`: replaces this process by the script, so that signals and exit code are the
    script's, or by torchrun, which starts it several times."""
    given = parser_of_arguments().parse_args(arguments)
    try:
        if given.module and given.no_python:
            raise Refusal("--module, --no_python: got both, allowed one of them")
        found = hosts_of(given)
        note_without_effect(given)
        processes = sum(found.values())
        command = command_of(given, processes)
        if len(found) > 1 or given.force_multi:
            sys.exit(start_on(found, command, given))
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
    """A real DeepSpeed installation, for which Artesian stands in."""
    finder = importlib.metadata.MetadataPathFinder
    return next(iter(finder.find_distributions(importlib.metadata.DistributionFinder.Context(
        name="deepspeed"))), None)  # fmt: skip


def report() -> None:
    """`ds_report`: prints which package stands in for DeepSpeed here."""
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
