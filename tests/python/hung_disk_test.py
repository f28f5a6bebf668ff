"""Proves what a user sees of a disk that stops answering in the middle of a run: after the
program's deadline one error that says what hangs, while it still hangs; exit code 1 as soon as the
kernel lets the process go (it keeps one whose thread waits for the disk); and a next run that
starts as if nothing had been. The deadline is a minute: part of `make soak`."""

import os
import subprocess

import pytest
from train_cli_test import place, pytestmark  # noqa: F401

soaking = pytest.mark.skipif(os.environ.get("ARTESIAN_SOAK") != "1", reason="long: make soak")


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, which `fsfreeze` can make silent."""
    image, mount = tmp_path / "image", tmp_path / "disk"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(256 << 20)
    for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, mount]):
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("cannot mount here")
    yield mount
    subprocess.run(["fsfreeze", "--unfreeze", mount], capture_output=True)
    subprocess.run(["umount", "--lazy", mount], check=True)


@soaking
@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_a_disk_that_stops_answering_ends_the_run(place, disk, engine):  # noqa: F811
    path = disk / "state"

    def change(config):
        for key in ["offload_param", "offload_optimizer"]:
            config["zero_optimization"][key]["nvme_path"] = str(path)
        config["artesian"]["engine"] = engine

    config = place.write_config(change)
    run = place.start_and_wait_for_a_step(config=config)
    subprocess.run(["fsfreeze", "--freeze", disk], check=True)
    try:
        line = run.stderr.readline()
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", disk], check=True)
    output, errors = run.communicate(timeout=60)
    assert line.startswith("artesian: error: ")
    assert "no answer from the disk within 60 s; in flight: " in line
    assert str(path) in line
    assert (run.returncode, output, errors) == (1, "", "")
    again = place.run(config=config, steps=2)
    assert again.returncode == 0, again.stderr
    assert not path.exists()
