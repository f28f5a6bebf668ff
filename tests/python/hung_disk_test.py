"""Proves what a user sees of a disk that stops answering in the middle of a run, while it is
measured at the start, or while the tiers are filled: after the program's deadline one error that
says what hangs, while it still hangs; an exit code as soon as the kernel lets the process go (it
keeps one whose thread waits for the disk); and a next run that starts as if nothing had been. The
deadline is a minute: part of `make soak`."""

import os
import pathlib
import subprocess
import time

import pytest
from train_cli_test import make_model, place, pytestmark  # noqa: F401

soaking = pytest.mark.skipif(os.environ.get("ARTESIAN_SOAK") != "1", reason="long: make soak")


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, which `fsfreeze` can make silent."""
    image, mount = tmp_path / "image", tmp_path / "disk"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(512 << 20)
    for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, mount]):
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("cannot mount here")
    yield mount
    subprocess.run(["fsfreeze", "--unfreeze", mount], capture_output=True)
    subprocess.run(["umount", "--lazy", mount], check=True)


def on(place, path, engine, **budgets):  # noqa: F811
    """A config with the state under `path`."""

    def change(config):
        for key in ["offload_param", "offload_optimizer"]:
            config["zero_optimization"][key]["nvme_path"] = str(path)
        config["artesian"].update(engine=engine, **budgets)

    return place.write_config(change)


def freeze_and_read_the_error(run, disk):
    subprocess.run(["fsfreeze", "--freeze", disk], check=True)
    try:
        lines = (line for line in run.stderr if ": error: " in line)
        return next(lines, "")
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", disk], check=True)


@soaking
@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_a_disk_that_stops_answering_ends_the_run(place, disk, engine):  # noqa: F811
    path = disk / "state"
    config = on(place, path, engine)
    run = place.start_and_wait_for_a_step(config=config)
    line = freeze_and_read_the_error(run, disk)
    output, errors = run.communicate(timeout=60)
    assert line.startswith("artesian: error: ")
    assert "no answer from the disk within 60 s; in flight: " in line
    assert str(path) in line
    assert (run.returncode, output, errors) == (1, "", "")
    again = place.run(config=config, steps=2)
    assert again.returncode == 0, again.stderr
    assert not path.exists()


def wait_until_it_moves(run, path, what):
    """Waits until transfers begin: of measuring the disk, or of what is written after the first
    read."""

    def moved(key, since):
        lines = pathlib.Path(f"/proc/{run.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) - since

    def wait_for(key, since):
        while moved(key, since) < 4 << 20:
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.0002)

    while not any(file.stat().st_size > 1 << 20 for file in path.glob("*.swap")):
        assert run.poll() is None, run.stderr.read()
        time.sleep(0.0002)
    written, read = moved("write_bytes", 0), moved("read_bytes", 0)
    wait_for("write_bytes", written)
    if what == "filling":
        wait_for("read_bytes", read)
        wait_for("write_bytes", moved("write_bytes", 0))


@soaking
@pytest.mark.parametrize("engine", ["io_uring", "threads"])
@pytest.mark.parametrize("what", ["measuring", "filling"])
def test_a_disk_that_stops_answering_at_the_start(place, disk, engine, what):  # noqa: F811
    path = disk / "state"
    config = on(place, path, engine, device_memory="24MiB", host_memory="48MiB")
    model = make_model(place.folder / "larger", n_embd=384, n_layer=8, n_head=6)  # 240 MB of state
    run = place.start("--quiet", config=config, model=model)
    wait_until_it_moves(run, path, what)
    line = freeze_and_read_the_error(run, disk)
    output, errors = run.communicate(timeout=60)
    assert line.startswith("artesian: error: ")
    said = ", measuring it: " if what == "measuring" else "; in flight: "
    assert "no answer from the disk within 60 s" + said in line
    assert str(path) in line
    assert (run.returncode, output, errors) == (2, "", "")
    again = place.run(config=config, model=model)  # the next run removes what that one left
    assert again.returncode == 0, again.stderr
    assert not path.exists()
