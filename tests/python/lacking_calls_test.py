"""Proves what becomes of `artesian train` on file systems that lack a call which a save, a prune or
a swap file makes: the run saves all the same, to the bits of one elsewhere, or it is refused before
its first step, with the folder and the reason.

Calls are refused by seccomp filters, with each errno that file systems, kernels and containers
answer. Where mounting is allowed, and Debian's package of it is installed, the same run is made on
file systems of that kind: else that test skips with a line. ARTESIAN_SOAK=1 refuses every call by
itself, with every errno."""

import contextlib
import errno
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import limits
import pytest
from train_checkpoints_test import bits, config_of, expect_clean, whole_run, words
from train_cli_test import errors_of, place, pytestmark  # noqa: F401

SOAK = os.environ.get("ARTESIAN_SOAK") == "1"
REFUSALS = [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM]
NAMES = [errno.errorcode[each] for each in REFUSALS]
# Call numbers of x86-64; (number, argument, bits) is refused only where these flags are set.
WITHOUT = {
    "renameat2": (316, 4, 7), "fallocate": 285, "openat2": 437, "linkat": 265, "fchmod": 91,
    "fchmodat": 268, "chmod": 90, "statx": 332, "direct": (72, 2, os.O_DIRECT),
    "unnamed": (257, 2, os.O_TMPFILE & ~os.O_DIRECTORY), "getrandom": 318,
}  # fmt: skip
NEEDED = {"fsync": 74, "unlinkat": 263, "mkdirat": 258, "renameat": 264, "flock": 73}


def refusing(calls, refusal):
    return functools.partial(limits.refuse_calls, calls, refusal)


def go_on_to_the_bits(place, saved, preexec_fn=None):
    """A run that saves, ends, resumes, prunes and exports its weights; `saved` is on the file
    system under test."""
    whole = whole_run(place, "bf16", 9)
    flags = {"config": config_of(place, "bf16"), "preexec_fn": preexec_fn}
    for steps in [5, 9]:
        given = {**words(place, steps, every=2), "checkpoint_dir": saved}
        result = place.run("--resume", save=saved / f"out{steps}", **flags, **given)
        if result.returncode == 77:
            pytest.skip("no seccomp filters here")
        assert result.returncode == 0, result.stderr
    assert bits(place.steps()) == bits(whole)
    assert place.steps()[-1]["digest"] == whole[-1]["digest"]
    expect_clean(saved)
    assert (saved / "latest").read_text() == "global_step9"
    names = {path.name for path in saved.iterdir()}
    assert names == {".lock", "latest", "zero_to_fp32.py", "global_step8", "global_step9", "out5",
                     "out9"}  # fmt: skip
    assert "model.safetensors" in os.listdir(saved / "out9")
    script = subprocess.run([sys.executable, saved / "zero_to_fp32.py", saved, saved / "fp32",
                             "--safe_serialization"], capture_output=True, text=True)  # fmt: skip
    assert script.returncode == 0, script.stderr


@pytest.mark.parametrize("refusal", REFUSALS, ids=NAMES)
def test_a_run_saves_without_calls_that_have_another_way(place, refusal):
    saved = place.folder / "saved"
    saved.mkdir()
    go_on_to_the_bits(place, saved, refusing(WITHOUT.values(), refusal))


@pytest.mark.skipif(not SOAK, reason="ARTESIAN_SOAK=1")
@pytest.mark.parametrize("call", WITHOUT)
@pytest.mark.parametrize("refusal", REFUSALS, ids=NAMES)
def test_a_run_saves_without_each_of_these_calls(place, call, refusal):
    saved = place.folder / "saved"
    saved.mkdir()
    go_on_to_the_bits(place, saved, refusing([WITHOUT[call]], refusal))


@pytest.mark.parametrize("refusal", REFUSALS, ids=NAMES)
def test_a_stop_saves_without_a_rename_that_has_flags(place, refusal):
    flags = {**words(place, 1000000, every=2), "config": config_of(place, "bf16")}
    place.log.write_text("")
    process = subprocess.Popen(
        place.words("--quiet", **flags), stderr=subprocess.PIPE, text=True, cwd=place.folder,
        preexec_fn=refusing([WITHOUT["renameat2"]], refusal))  # fmt: skip
    while place.log.read_text().count("\n") < 5:
        if process.poll() == 77:
            pytest.skip("no seccomp filters here")
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert (place.folder / "saved" / "latest").read_text() == f"global_step{len(place.steps())}"


@pytest.mark.parametrize("call", NEEDED)
@pytest.mark.parametrize("refusal", REFUSALS, ids=NAMES)
def test_a_run_that_could_not_save_is_refused_before_its_first_step(place, call, refusal):
    if not SOAK and REFUSALS.index(refusal) != list(NEEDED).index(call) % 4:
        pytest.skip("ARTESIAN_SOAK=1")
    saved = place.folder / "saved"
    saved.mkdir()
    flags = {**words(place, 6, every=2), "config": config_of(place, "bf16")}
    place.log.write_text("")
    result = place.run(preexec_fn=refusing([NEEDED[call]], refusal), **flags)
    if result.returncode == 77:
        pytest.skip("no seccomp filters here")
    line = errors_of(result, 2)
    folder = place.nvme if call == "flock" else saved  # the first file that is locked
    assert str(folder) in line and os.strerror(refusal) in line, line
    assert place.log.read_text() == ""
    if call not in ("unlinkat", "flock"):
        expect_clean(saved)
    assert not (saved / "latest").exists()
    for left in place.nvme.iterdir():  # what could not be removed under another name
        assert call in ("unlinkat", "flock"), left
        left.unlink()


def with_image(make, mount, on_loop=False):
    """Mounts an image of 96 MiB, by a loop device or by itself: `make` makes its file system."""

    @contextlib.contextmanager
    def mounted(folder):
        image, at = folder / "image", folder / "mounted"
        at.mkdir()
        with open(image, "wb") as file:
            file.truncate(96 << 20)
        do(*make, image)
        with unmounted_in_the_end(at), loop_device(image) if on_loop else of(image) as source:
            do(*mount, source, at)
            yield at

    return mounted


def of(image):
    return contextlib.nullcontext(image)


@contextlib.contextmanager
def loop_device(image):
    device = do("losetup", "--find", "--show", image).strip()
    try:
        yield device
    finally:
        # after the file system is unmounted
        subprocess.run(["losetup", "--detach", device], check=True)


def over_a_folder(*mount):
    @contextlib.contextmanager
    def mounted(folder):
        below, at = folder / "below", folder / "mounted"
        below.mkdir(), at.mkdir()
        with unmounted_in_the_end(at):
            do(*[str(word).format(below=below, at=at, folder=folder) for word in mount])
            yield at

    return mounted


def do(*command):
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"cannot mount here: {command[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


@contextlib.contextmanager
def unmounted_in_the_end(at):
    try:
        yield
    finally:
        if os.path.ismount(at):
            subprocess.run(["umount", "--lazy", at], check=True)


SFTP = "/usr/lib/openssh/sftp-server"
MOUNTS = {
    "ntfs-3g": with_image(["mkfs.ntfs", "-q", "-F"], ["ntfs-3g"]),
    "exfat": with_image(["mkfs.exfat"], ["mount.exfat-fuse"], on_loop=True),
    "fuse2fs": with_image(["mkfs.ext4", "-q"], ["fuse2fs", "-o", "fakeroot"]),
    "bindfs": over_a_folder("bindfs", "{below}", "{at}"),
    "sshfs": over_a_folder("sshfs", "-o", "ssh_command={folder}/ssh", "none:{below}", "{at}"),
}


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="no mounts here: /dev/fuse")
@pytest.mark.parametrize("kind", MOUNTS)
def test_the_bits_on_file_systems_that_lack_calls(place, kind):
    if kind == "sshfs":
        if not pathlib.Path(SFTP).exists():
            pytest.skip(f"{SFTP} is not installed")
        (place.folder / "ssh").write_text(f"#!/bin/sh\nexec {SFTP}\n")
        (place.folder / "ssh").chmod(0o700)
    with MOUNTS[kind](place.folder) as mounted:
        saved = mounted / "saved"
        saved.mkdir()
        go_on_to_the_bits(place, saved)
        refuse_to_save_over(place, saved)


def refuse_to_save_over(place, saved):
    """Another run must not take this run's tag for its own."""
    flags = {**words(place, 2, every=1), "checkpoint_dir": saved}
    flags["config"] = config_of(place, "bf16")
    before = json.loads((saved / "global_step9" / "manifest.json").read_text())
    result = place.run(**flags)
    assert "of another run" in errors_of(result, 2)
    assert json.loads((saved / "global_step9" / "manifest.json").read_text()) == before
