"""Limits of the machine, for programs under test: functions for `preexec_fn`, and a prefix that
makes a command another user's."""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import resource
import struct
import subprocess

import pytest
from memory_group import memory_group

libc = ctypes.CDLL(None, use_errno=True)

# Runs a command as uid 65534, which may read everywhere (the environment may lie in root's home)
# but has no other right.
AS_NOBODY = [
    "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search", "--",
]  # fmt: skip


def can_become_nobody():
    if os.geteuid() != 0:
        return False
    try:
        return subprocess.run([*AS_NOBODY, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_root = pytest.mark.skipif(not can_become_nobody(), reason="cannot become another user here")


def give(folder):
    """Makes the folder and all in it belong to AS_NOBODY."""
    for path in [pathlib.Path(folder), *pathlib.Path(folder).rglob("*")]:
        os.chown(path, 65534, 65534)


def limited(kind, value):
    return lambda: resource.setrlimit(kind, (value, value))


def lockable(size):
    return limited(resource.RLIMIT_MEMLOCK, size)


def descriptors(count):
    return limited(resource.RLIMIT_NOFILE, count)


def file_size(size):
    return limited(resource.RLIMIT_FSIZE, size)


@contextlib.contextmanager
def small_disk(path, size):
    """A file system in memory of this size at the folder; skips where none can be mounted."""
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
    if subprocess.run(["mount", *options], capture_output=True).returncode != 0:
        pytest.skip("cannot mount here")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def fill(path):
    """Writes the file until the disk takes no more."""
    with open(path, "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass


def full_stdout(command, error, **options):
    """Runs a command whose stdout accepts no byte; its only output must be the error."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(list(map(str, command)), stdout=full, stderr=subprocess.PIPE,
                              text=True, timeout=600, **options)  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if ": error: " in line]
    assert (done.returncode, lines) == (1, [f"{error}: No space left on device"]), done.stderr


def filter_calls(instructions):
    """Installs a seccomp filter for this process and its children; exits with 77 if that is
    refused."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line)
                                                for line in instructions))  # fmt: skip
    program = ctypes.create_string_buffer(
        struct.pack("@HP", len(instructions), ctypes.addressof(code)))  # fmt: skip
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
        os._exit(77)


LOAD, JUMP_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
REFUSE, ALLOW = 0x50000, 0x7FFF0000


def refuse_io_uring():
    """Refuses io_uring_setup with EPERM from now on, as containers do."""
    filter_calls([(LOAD, 0, 0, 0), (JUMP_EQUAL, 0, 1, 425), (RETURN, 0, 0, REFUSE | 1),
                  (RETURN, 0, 0, ALLOW)])  # fmt: skip


def no_huge_pages():
    """Switches huge pages off for the process, as some container runtimes and batch systems do."""
    if libc.prctl(41, 1, 0, 0, 0) != 0:  # PR_SET_THP_DISABLE
        os._exit(77)


def no_huge_pages_for_ever():
    """Does the same so that a program cannot undo it."""
    no_huge_pages()
    filter_calls([(LOAD, 0, 0, 0), (JUMP_EQUAL, 0, 3, 157),  # prctl's number, x86-64 only
                  (LOAD, 0, 0, 16), (JUMP_EQUAL, 0, 1, 41), (RETURN, 0, 0, REFUSE | 1),
                  (RETURN, 0, 0, ALLOW)])  # fmt: skip


def huge_pages_are_off():
    """True if huge pages are off in the whole system."""
    try:
        return "[never]" in pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except FileNotFoundError:
        return True


needs_huge_pages = pytest.mark.skipif(huge_pages_are_off(), reason="no huge pages in this system")


def refuse_unnamed_files():
    """Refuses O_TMPFILE and fallocate with EOPNOTSUPP from now on, as NFS does; x86-64 only."""
    filter_calls([(LOAD, 0, 0, 0), (JUMP_EQUAL, 3, 0, 285), (JUMP_EQUAL, 0, 3, 257),
                  (LOAD, 0, 0, 16 + 8 * 2), (JUMP_ANY_BIT, 0, 1, os.O_TMPFILE & ~os.O_DIRECTORY),
                  (RETURN, 0, 0, REFUSE | 95), (RETURN, 0, 0, ALLOW)])  # fmt: skip


def refuse_direct():
    """Refuses O_DIRECT with EINVAL in open and fcntl from now on; x86-64 only."""
    direct, argument_1, argument_2 = os.O_DIRECT, 16 + 8, 16 + 8 * 2
    filter_calls([(LOAD, 0, 0, 0),
                  (JUMP_EQUAL, 0, 2, 72),  # fcntl(descriptor, command, flags)
                  (LOAD, 0, 0, argument_1), (JUMP_EQUAL, 1, 4, fcntl.F_SETFL),
                  (JUMP_EQUAL, 0, 3, 257),  # openat(directory, path, flags)
                  (LOAD, 0, 0, argument_2), (JUMP_ANY_BIT, 0, 1, direct),
                  (RETURN, 0, 0, REFUSE | 22), (RETURN, 0, 0, ALLOW)])  # fmt: skip


@contextlib.contextmanager
def control_group(size, name=""):
    """Returns memory_group() of dev/; skips the test if no group can be made."""
    with memory_group(size, name) as enter:
        if enter is None:
            pytest.skip("no memory control group can be made here")
        yield enter


def refuse_calls(calls, refusal):
    """Refuses these calls with this errno from now on; x86-64 only. `calls`: each a number, or
    (number, argument, bits), refused only if the argument has one of the bits; fcntl is refused for
    F_SETFL only."""
    instructions = [(LOAD, 0, 0, 0)]
    for call in calls:
        number, argument, bits = call if isinstance(call, tuple) else (call, 0, 0)
        end = [(RETURN, 0, 0, REFUSE | refusal), (LOAD, 0, 0, 0)]
        if bits != 0:
            end = [(LOAD, 0, 0, 16 + 8 * argument), (JUMP_ANY_BIT, 0, 1, bits), *end]
        if number == 72:
            end = [(LOAD, 0, 0, 16 + 8), (JUMP_EQUAL, 0, 3, fcntl.F_SETFL), *end]
        instructions += [(JUMP_EQUAL, 0, len(end), number), *end]
    filter_calls([*instructions, (RETURN, 0, 0, ALLOW)])
