"""Shared by the parts: the machine's tools, commands with a time limit, and how a part ends."""

import ctypes
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time


class Failure(Exception):
    """The part failed; the text says why."""


class Skip(Exception):
    """The part cannot run on this machine, which is not a failure."""


def say(text):
    print(f"gpu_check: {text}", file=sys.stderr, flush=True)


def fail(text):
    print(f"gpu_check: error: {text}", file=sys.stderr)
    sys.exit(2)


def sources_digest(root):
    """Digest over names and contents of all built sources and these scripts."""
    digest = hashlib.sha256()
    folders = "base aio comm pinned kernels tiering zero3 models tools tests bench cmake".split()
    for path in sorted(
        [root / "CMakeLists.txt", *(p for f in folders for p in (root / f).rglob("*"))]
    ):
        if path.is_file() and not {"__pycache__", ".pytest_cache"} & set(path.parts):
            digest.update(str(path.relative_to(root)).encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def driver_gpu_count():
    """As counted by the driver; 0 if there is none. Needs neither toolkit nor torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def gpu_seen(devices=pathlib.Path("/dev"), environment=os.environ):
    """Evidence that this machine has a GPU, whatever the driver counts; "" if there is none, or if
    the user hides it."""
    if environment.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return ""
    found = sorted(path.name for path in devices.glob("nvidia[0-9]*"))
    if found:
        return str(devices / found[0])
    smi = cuda_tool("nvidia-smi")
    if not smi:
        return ""
    try:
        done = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "nvidia-smi -L" if done.returncode == 0 and "GPU 0" in done.stdout else ""


def cuda_tool(name):
    """Path of a program of the CUDA toolkit, whose installer does not put it on PATH. None if there
    is none."""
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = [os.environ["PATH"], *(f"{home}/bin" for home in homes if home)]
    return shutil.which(name, path=os.pathsep.join(places))


class Finished:
    def __init__(self, code, output, seconds, timed_out):
        self.code, self.output, self.seconds, self.timed_out = code, output, seconds, timed_out

    def tail(self, lines=12):
        return "\n".join(self.output.strip().splitlines()[-lines:])

    def cause(self):
        """The line that names the problem: the first error message of ours or of a compiler, else
        the last line of a Python traceback, else the last line."""
        if self.timed_out:
            return f"stopped after {self.seconds:.0f} s"
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        ours = [line for line in lines if re.search(r"(^|: )(fatal )?error: ", line)]
        python = [line for line in lines if re.match(r"\w[\w.]*(Error|Exception)\b", line)]
        return (ours[:1] + python[-1:] + lines[-1:] + [f"exit code {self.code} without a word"])[0]


class Context:
    def __init__(self, root, options, digest):
        self.root, self.options, self.digest = root, options, digest
        self.prefix = options.prefix.resolve() if options.prefix else None
        self.work = options.work.resolve()
        self.disk = (options.disk or self.work / "disk").resolve()
        self.gpu_count = driver_gpu_count()
        self.gpu_seen = "" if self.gpu_count else gpu_seen()
        self.deadline = 0.0
        self.logs = []  # of the current part

    def start_part(self):
        self.deadline = time.monotonic() + self.options.part_seconds
        self.logs = []

    def limit(self, seconds):
        """Returns the shorter of `seconds` and the current part's remaining time."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def need_gpu(self):
        if self.gpu_seen:
            raise Failure(
                f"there is a GPU ({self.gpu_seen}), but the driver counts none: see that"
                " libcuda.so.1 is found, and of this kernel's driver"
            )
        if not self.gpu_count:
            raise Skip("no GPU")

    def seconds_left(self):
        return self.deadline - time.monotonic()

    def program(self, name):
        path = self.work / name
        if not path.exists():
            raise Failure(f"{path} is not there: run the part build first")
        return str(path)

    def run(self, command, seconds=None, log=None, environment=None, folder=None):
        """Runs a command within the part's remaining time; after that, kills it and all its
        children."""
        limit = min(seconds or float("inf"), max(self.seconds_left(), 0.1))
        start = time.monotonic()
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder or self.root,
            env=dict(os.environ, **(environment or {})),
            start_new_session=True,
        )
        timed_out = False
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            timed_out = True
            output = end_group(process)
        text = output.decode(errors="replace")
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(text)
            self.logs.append(log)
        return Finished(process.returncode, text, time.monotonic() - start, timed_out)


def end_group(process):
    """Sends a request first, so that a run can remove its files."""
    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass  # it ended between the two calls
        try:
            return process.communicate(timeout=patience)[0]
        except subprocess.TimeoutExpired:
            continue
    return b""


def read_text(path):
    """Content of the file, or "" if it cannot be read, as facts are optional."""
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
