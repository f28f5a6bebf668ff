"""The machines that train together: reads DeepSpeed's hostfile format, and starts PyTorch's
torchrun on them by ssh or pdsh, or the script itself by mpirun or srun."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence

from artesian.run import torchrun

PREFIXES = ("ARTESIAN", "GLOO", "MLFLOW", "MV2", "NCCL", "OMP_NUM_THREADS", "PYTHON", "UCX")
ENVIRONMENT_FILE = ".deepspeed_env"
LAUNCHERS = ("ssh", "pdsh", "openmpi", "slurm")
ENDING_S = 10.0  # seconds that other machines have to end after a failure


class Refusal(Exception):
    """The command line asks for something that is not possible."""


@dataclasses.dataclass(frozen=True)
class Start:
    """What to start. `command`: run by each process; `variables`: set for all processes."""

    hosts: dict[str, int]  # number of processes on each host, in order
    command: list[str]
    variables: dict[str, str]
    address: str  # address of the first host
    port: int
    arguments: list[str]  # flags of the launcher

    @property
    def processes(self) -> int:
        return sum(self.hosts.values())


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


def slots_in(nodes: str) -> dict[str, set[str]]:
    """Parses `--include` and `--exclude`, HOST:0,1@HOST: hosts and their slots; no slots: all of
    the host's."""
    return {
        host: set(slots.split(",")) if slots else set()
        for host, _, slots in (node.partition(":") for node in nodes.split("@"))
    }


def choose(hosts: dict[str, int], include: str, exclude: str) -> dict[str, int]:
    """The number of processes on each host."""
    flag, chosen = ("--include", include) if include else ("--exclude", exclude)
    named = slots_in(chosen) if chosen else {}
    for host, slots in named.items():
        if host not in hosts:
            raise Refusal(f"{flag}: got the host {host}, allowed {', '.join(hosts)}")
        wrong = [slot for slot in slots if not slot.isdigit() or int(slot) >= hosts[host]]
        if wrong:
            raise Refusal(
                f"{flag}: got the slot {wrong[0]} of {host}, allowed 0 to {hosts[host] - 1}"
            )
    if include:
        return {host: len(slots) or hosts[host] for host, slots in named.items()}
    left = {
        host: count - (len(named[host]) or count) if host in named else count
        for host, count in hosts.items()
    }
    return {host: count for host, count in left.items() if count > 0}


def variables_for_hosts() -> dict[str, str]:
    """Variables from this environment and from DeepSpeed's file of lines NAME=VALUE."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    named = os.environ.get("DS_ENV_FILE")
    files = [named] if named else [
        os.path.join(os.path.expanduser("~"), ENVIRONMENT_FILE), ENVIRONMENT_FILE
    ]  # fmt: skip
    for file in files:
        if not os.path.isfile(file):
            if file == named:
                raise Refusal(f"DS_ENV_FILE: got {file}, which is no file")
            continue
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                name, is_there, value = line.strip().partition("=")
                if is_there:
                    chosen[name] = value
    return chosen


def torchrun_on(start: Start, node: int | str, processes: int) -> list[str]:
    return torchrun(start.command, len(start.hosts), node, processes, start.address, start.port)


def shell_line(start: Start, command: list[str]) -> str:
    """The line that a shell on another machine runs, in the same folder as here."""
    exports = [f"export {name}={shlex.quote(value)};" for name, value in start.variables.items()]
    return " ".join([f"cd {shlex.quote(os.getcwd())};", *exports, "exec", shlex.join(command)])


def commands_of(start: Start, launcher: str, ssh_port: int | None) -> list[list[str]]:
    """The commands to run here: one for each host with ssh, otherwise one for all hosts."""
    equal = len(set(start.hosts.values())) == 1
    if launcher == "ssh":
        port = [] if ssh_port is None else ["-p", str(ssh_port)]
        return [
            # -tt: the remote processes get a terminal and end when this ssh ends.
            ["ssh", "-tt", "-o", "BatchMode=yes", *port, *start.arguments, host,
             shell_line(start, torchrun_on(start, node, count))]
            for node, (host, count) in enumerate(start.hosts.items())
        ]  # fmt: skip
    if not equal:
        raise Refusal(
            f"--launcher {launcher}: got different numbers of slots, allowed equal ones; "
            "--launcher ssh takes them"
        )
    count = next(iter(start.hosts.values()))
    if launcher == "pdsh":
        line = shell_line(start, torchrun_on(start, "%n", count))
        # Some builds of pdsh use rsh by default.
        shell = [] if "PDSH_RCMD_TYPE" in os.environ else ["-R", "ssh"]
        return [["pdsh", *shell, "-S", "-f", "1024", "-w", ",".join(start.hosts),
                 *start.arguments, line]]  # fmt: skip
    both = {**start.variables, "MASTER_ADDR": start.address, "MASTER_PORT": str(start.port)}
    if launcher == "openmpi":
        hosts = ",".join(f"{host}:{slots}" for host, slots in start.hosts.items())
        exports = [word for name, value in both.items() for word in ("-x", f"{name}={value}")]
        return [["mpirun", "-n", str(start.processes), "--host", hosts, *start.arguments, *exports,
                 *start.command]]  # fmt: skip
    return [
        ["srun", "-n", str(start.processes), "--nodelist", ",".join(start.hosts),
         f"--ntasks-per-node={count}", *start.arguments, "env",
         *(f"{name}={value}" for name, value in both.items()), *start.command]
    ]  # fmt: skip


def launcher_for(asked: str | None) -> str:
    """DeepSpeed's default is pdsh; ssh does the same if it is not installed."""
    if asked is None:
        return "pdsh" if shutil.which("pdsh") else "ssh"
    if asked.lower() not in LAUNCHERS:
        raise Refusal(f"--launcher: got {asked}, allowed {', '.join(LAUNCHERS)}")
    return asked.lower()


def run(commands: Sequence[Sequence[str]]) -> int:
    """Runs the commands in parallel; a failing command or a signal ends the others. Returns the
    exit code of the first failure, or 0."""
    running: list[subprocess.Popen[bytes]] = []
    caught: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: caught.append(received))
    code = 0
    try:
        running += [subprocess.Popen(command, stdin=subprocess.DEVNULL) for command in commands]
        left = list(running)
        while left and not code and not caught:
            time.sleep(0.05)
            for process in [each for each in left if each.poll() is not None]:
                left.remove(process)
                code = code or process.returncode
    finally:
        for process in running:
            process.terminate()
        deadline = time.monotonic() + ENDING_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
    if caught:
        return 128 + caught[0]
    return code if code >= 0 else 128 - code
