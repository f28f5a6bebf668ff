"""The Python environment in which DeepSpeed runs for comparisons: created once, beside that of the
build.

It contains DeepSpeed and the packages that only DeepSpeed needs (dev/requirements-bench.lock); all
others, such as torch, are found in the build's environment through a .pth file. DeepSpeed compiles
its operators at their first use; this is done here once, into the same folder."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys

from report import ROOT, say

LOCK = ROOT / "dev/requirements-bench.lock"
OPERATORS = ["CPUAdamBuilder", "AsyncIOBuilder", "PinMemoryBuilder", "ShareMemCommBuilder"]
COMPILE = """
from deepspeed.accelerator import get_accelerator
for name in {names}:
    get_accelerator().create_op_builder(name).load()
"""


class Missing(Exception):
    """Why DeepSpeed is not available, as a sentence for the report."""


class Environment:
    def __init__(self, folder):
        self.folder = folder
        self.python = folder / "bin/python3"

    def variables(self):
        """Environment variables of a process that uses DeepSpeed."""
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
            port = server.getsockname()[1]
        programs = [self.python.parent, pathlib.Path(sys.executable).parent]
        return os.environ | {
            "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
            "DS_ACCELERATOR": "cpu",
            "TORCH_EXTENSIONS_DIR": str(self.folder / "operators"),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }


def torch_folder():
    return pathlib.Path(os.environ["ARTESIAN_TORCH_DIR"]).parent


def environment_folder():
    """The folder, named by a hash of everything that determines its content, beside the build's
    environment."""
    main = pathlib.Path(sys.executable).parents[1]
    content = LOCK.read_text() + sys.version + str(main) + str(torch_folder())
    return main.parent / f"bench-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def run(command, log, **options):
    """Runs a command with all output in the log; Missing quotes its last line."""
    with open(log, "a") as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **options
        )
    if done.returncode != 0:
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        raise Missing(f"DeepSpeed could not be installed: {(lines or ['?'])[-1]} (all in {log})")


def install(environment, log):
    folder = environment.folder
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted attempt
    run([sys.executable, "-m", "venv", folder], log)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (main,) = pathlib.Path(sys.executable).parents[1].glob("lib/python3*/site-packages")
    # After DeepSpeed's own packages, so that it only supplies missing ones.
    (packages / "zz_build.pth").write_text(f"{main}\n{torch_folder()}\n")
    names = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    tool = [line for line in names if line.startswith("setuptools==")]
    pip = [environment.python, "-m", "pip", "install", "--no-deps", "--no-compile"]
    say("installing DeepSpeed (half a minute)")
    run([*pip, *tool], log)
    run([*pip, "--no-build-isolation", "-r", LOCK], log, env=environment.variables())
    say("compiling DeepSpeed's operators (4 minutes on two cores; this happens once)")
    program = COMPILE.format(names=OPERATORS)
    run([environment.python, "-c", program], log, env=environment.variables(), cwd="/")
    (folder / "complete").touch()


def prepare():
    """Returns the Environment, created if needed. Raises Missing."""
    environment = Environment(environment_folder())
    folder = environment.folder
    try:
        with open(f"{folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "complete").exists():
                log = pathlib.Path(f"{folder}.log")
                log.write_text("")
                install(environment, log)
    except OSError as error:
        raise Missing(f"DeepSpeed could not be installed: {error}") from error
    return environment


def prepare_if_wanted(report, options):
    """As prepare(); None if DeepSpeed is not wanted, or, with a note in the report, not
    available."""
    if options.without_deepspeed:
        return None
    try:
        return prepare()
    except Missing as missing:
        report.note(str(missing))
        return None
