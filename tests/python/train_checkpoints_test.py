"""Proves that a run of `artesian train` that stops, or is stopped, goes on to the bits of one that
never did: by itself, by a signal, by SIGKILL at random instants, and at each call that changes its
folder of checkpoints, of recovery, save and prune, in other placements each time;
with its log whole, each step in it once; and what becomes of a run whose checkpoints cannot be
saved, or read. ARTESIAN_SOAK=1 kills more often."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import limits
import pytest
from build_folder import BUILD
from train_cli_test import ENVIRONMENT, errors_of, place, pytestmark  # noqa: F401

KILL_AT_CALL = BUILD / "tests/libkill_at_call.so"
SAME = ["step", "loss", "lr", "loss_scale", "overflow", "grad_norm", "tokens"]
PLACES = ["nvme", "cpu", "none"]
DTYPES = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 18, "loss_scale_window": 4,
                      "hysteresis": 2}},
}  # fmt: skip


def bits(steps):
    return [[step[key] for key in SAME] for step in steps]


def config_of(place, dtype, home="nvme", **ours):
    def change(config):
        del config["fp16"]
        config.update(DTYPES[dtype])
        zero = config["zero_optimization"]
        for key in ["offload_param", "offload_optimizer"]:
            zero[key]["device"] = home
        if home != "nvme":
            config["artesian"] = {"device_memory": "4MiB", "host_memory": "4MiB"}
        config["artesian"].update(ours)

    return place.write_config(change)


def words(place, steps, every=3):
    return {"steps": steps, "log_jsonl": place.log, "checkpoint_dir": place.folder / "saved",
            "checkpoint_every": every, "seq_len": 8}  # fmt: skip


def whole_run(place, dtype, steps):
    log = place.folder / f"whole-{dtype}.jsonl"
    result = place.run("--quiet", config=config_of(place, dtype), steps=steps, log_jsonl=log,
                       seq_len=8)  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    return [json.loads(line) for line in log.read_text().splitlines()]


def expect_clean(folder):
    """Nothing half done is left."""
    names = os.listdir(folder)
    assert not [name for name in names if name.startswith(".") and name != ".lock"], names


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_run_goes_on_to_the_same_bits(place, dtype):
    whole = whole_run(place, dtype, 9)
    saved = place.folder / "saved"
    for steps, home in [(4, "nvme"), (7, "cpu"), (9, "none")]:
        result = place.run("--resume", config=config_of(place, dtype, home), **words(place, steps))
        assert result.returncode == 0, result.stderr
        # Said by a run that starts, and by none that goes on.
        assert ("initialising at random" in result.stderr) == (steps == 4)
        last = place.steps()[-1]
        assert last["step"] == steps and len(last["digest"]) == 32
    assert bits(place.steps()) == bits(whole)
    assert place.steps()[-1]["digest"] == whole[-1]["digest"]
    assert sorted(os.listdir(saved)) == [".lock", "global_step7", "global_step9", "latest",
                                         "zero_to_fp32.py"]  # fmt: skip
    assert (saved / "latest").read_text() == "global_step9"
    assert (saved / "global_step9" / "model" / "config.json").read_text() == (
        place.model / "config.json").read_text()  # fmt: skip
    # At its end there is nothing more to do, and --save gives what is there.
    result = place.run("--resume", config=config_of(place, dtype), save=place.folder / "out",
                       **words(place, 9))  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert bits(place.steps()) == bits(whole)
    assert (place.folder / "out" / "model.safetensors").exists()
    script = subprocess.run(
        [sys.executable, saved / "zero_to_fp32.py", saved, place.folder / "fp32",
         "--safe_serialization"], capture_output=True, text=True)  # fmt: skip
    assert script.returncode == 0, script.stderr


def test_a_stop_saves_its_step_and_the_log_goes_on(place):
    whole = whole_run(place, "bf16", 40)
    flags = words(place, 40, every=1000)
    place.log.write_text("")
    process = place.start("--quiet", "--resume", config=config_of(place, "bf16"), **flags)
    while place.log.read_text().count("\n") < 3:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)
    steps = place.steps()
    if process.returncode == 0:  # it was quicker
        assert len(steps) == 40 and said == ("", "")
    else:
        assert process.returncode == 143
        end = f"artesian: note: stopped by SIGTERM after step {len(steps)} of 40\n"
        assert said == ("", end)
        assert "digest" not in steps[-1]
    assert (place.folder / "saved" / "latest").read_text() == f"global_step{len(steps)}"
    # Lines behind the step are of a future that has not happened; one that is cut off, too.
    with place.log.open("a") as log:
        log.write(json.dumps({**steps[-1], "step": len(steps) + 1}, separators=(",", ":")))
    result = place.run("--resume", config=config_of(place, "bf16"), **flags)
    assert result.returncode == 0, result.stderr
    assert bits(place.steps()) == bits(whole)
    assert place.steps()[-1]["digest"] == whole[-1]["digest"]


def test_without_time_nothing_is_saved_and_that_is_said(place):
    flags = words(place, 1000000, every=1000000)
    place.log.write_text("")
    process = place.start("--grace=0.000001", config=config_of(place, "bf16"), **flags)
    while not place.log.read_text().endswith("\n"):
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "no checkpoint is saved: it would take about" in errors
    assert "there is none, and all " in errors
    assert not (place.folder / "saved" / "latest").exists()


def test_sigkill_at_any_instant_loses_no_bit(place):
    """Each run is killed after a random time, the next goes on in another placement."""
    random.seed(5)
    whole = {dtype: whole_run(place, dtype, 30) for dtype in DTYPES}
    kills = 200 if os.environ.get("ARTESIAN_SOAK") == "1" else 20
    saved = place.folder / "saved"
    killed = behind_a_commit = 0
    for attempt in range(20 * kills):
        dtype = list(DTYPES)[attempt % 3]
        shutil.rmtree(saved, ignore_errors=True)
        place.log.unlink(missing_ok=True)
        for turn in range(1000):
            home = PLACES[(attempt + turn) % 3]
            process = place.start("--quiet", "--resume", config=config_of(place, dtype, home),
                                  **words(place, 30))  # fmt: skip
            if random.random() < 0.7:  # not in the time that it takes to start
                lines = place.log.read_text().count("\n") if place.log.exists() else 0
                while process.poll() is None and (
                    not place.log.exists() or place.log.read_text().count("\n") in (0, lines)
                ):
                    time.sleep(0.002)
            time.sleep(random.random() * 0.2)
            process.kill()
            _, errors = process.communicate(timeout=60)
            assert process.returncode in (0, -signal.SIGKILL), errors
            if process.returncode == 0:
                break
            for left in place.nvme.iterdir():
                left.unlink()
            killed += 1
            behind_a_commit += (saved / "latest").exists()
        assert bits(place.steps()) == bits(whole[dtype])
        assert place.steps()[-1]["digest"] == whole[dtype][-1]["digest"]
        expect_clean(saved)
        if killed >= kills:
            break
    assert killed >= kills and behind_a_commit >= kills // 4


def calls_of_a_run(place, folder, at, home, flags):
    """Runs until it is killed at that call, or to its end; returns the exit code and the calls."""
    log = place.folder / "calls"
    log.unlink(missing_ok=True)
    kill = {"LD_PRELOAD": str(KILL_AT_CALL), "ARTESIAN_KILL_FOLDER": str(folder),
            "ARTESIAN_KILL_AT": str(at), "ARTESIAN_KILL_LOG": str(log)}  # fmt: skip
    ENVIRONMENT.update(kill)
    result = place.run("--quiet", "--resume", config=config_of(place, "bf16", home), **flags)
    for name in kill:
        del ENVIRONMENT[name]
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    for left in place.nvme.iterdir():
        left.unlink()
    return result.returncode, [line.split(" ") for line in log.read_text().splitlines()]


@pytest.mark.skipif(not KILL_AT_CALL.exists(), reason="not built, or under a sanitizer")
def test_sigkill_at_each_call_of_recovery_save_and_prune_loses_no_bit(place):
    """Each run recovers what the one before left, goes on from it in another placement, and is
    killed one call later. One that comes to its end is followed by one that begins anew."""
    steps = 6
    whole = whole_run(place, "bf16", steps)
    saved = place.folder / "saved"
    flags = words(place, steps, every=1) | {"checkpoint_keep": 1}
    _, calls = calls_of_a_run(place, saved, 0, "nvme", flags)
    kinds = {call for call, _ in calls}
    assert kinds >= {"mkdirat", "openat2", "fallocate", "pwrite", "fsync", "renameat2", "unlinkat"}
    # Up to the third commit: a save into fresh room, with nothing to prune, and two that prune.
    commits = [at for at, (call, path) in enumerate(calls) if "/.tmp-" in path and
               call == "renameat2" and path.count("/") == 1]  # fmt: skip
    to_come = commits[3]
    finished = killed = recovered = 0
    for at in range(1, to_come + 1):
        home = PLACES[at % 3]
        before = sorted(os.listdir(saved)) if saved.exists() else []
        recovered += any(name.startswith((".tmp-", ".old-", ".gone-")) for name in before)
        code, _ = calls_of_a_run(place, saved, at, home, flags)
        killed += code != 0
        if code != 0:
            continue
        assert bits(place.steps()) == bits(whole)
        assert place.steps()[-1]["digest"] == whole[-1]["digest"]
        expect_clean(saved)
        finished += 1
        shutil.rmtree(saved)
        place.log.unlink()
    result = place.run("--quiet", "--resume", config=config_of(place, "bf16"), **flags)
    assert result.returncode == 0, result.stderr
    assert bits(place.steps()) == bits(whole)
    expect_clean(saved)
    assert killed > to_come // 2 and recovered > 10 and finished >= 1


def test_a_line_that_alone_is_missing_comes_back_from_the_checkpoint(place):
    config = config_of(place, "bf16")
    assert place.run("--quiet", config=config, **words(place, 4)).returncode == 0
    log = place.log.read_text()
    place.log.write_text("".join(log.splitlines(keepends=True)[:-1]))
    assert place.run("--quiet", "--resume", config=config, **words(place, 5)).returncode == 0
    assert place.log.read_text().startswith(log)
    assert [step["step"] for step in place.steps()] == [1, 2, 3, 4, 5]


def damage(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_damaged_checkpoint_gives_way_to_the_former_one(place):
    whole = whole_run(place, "fp32", 9)
    flags = words(place, 6)
    config = config_of(place, "fp32")
    assert place.run("--quiet", config=config, **flags).returncode == 0
    data = place.folder / "saved" / "global_step6" / "rank0.safetensors"
    damage(data, data.stat().st_size - 4096)
    flags["steps"] = 9
    named = place.folder / "saved" / "global_step6"
    refused = place.run("--quiet", config=config, resume=named, **flags)
    assert "rank0.safetensors" in errors_of(refused, 2)
    result = place.run("--resume", config=config, **flags)
    assert result.returncode == 0, result.stderr
    assert "going on from global_step3" in result.stderr
    assert "is damaged, and is called global_step6.damaged now" in result.stderr
    assert bits(place.steps()) == bits(whole)
    manifest = place.folder / "saved" / "global_step9" / "manifest.json"
    damage(manifest, manifest.stat().st_size // 2)
    refused = place.run(config=config, resume=place.folder / "saved" / "global_step9", **flags)
    assert "manifest.json" in errors_of(refused, 2)


def test_a_save_that_fails_leaves_the_training_alive(place):
    whole = whole_run(place, "fp32", 7)
    config = config_of(place, "fp32")
    saved = place.folder / "saved"
    place.log.write_text("")
    process = place.start(config=config, **words(place, 7, every=2))
    while not (saved / "latest").exists():
        assert process.poll() is None, process.stderr.read()
    # A tag that is somebody else's: the save of that step cannot take it.
    (saved / "global_step6").mkdir(exist_ok=True)
    (saved / "global_step6" / "mine").write_text("")
    output, errors = process.communicate(timeout=60)
    if "checkpoint of step 6" not in errors:
        pytest.skip("the run was past its sixth step before we could be in its way")
    assert process.returncode == 1, errors
    assert "1 of 4 checkpoints could not be saved, the first one" in errors
    assert bits(place.steps()) == bits(whole)
    assert (saved / "latest").read_text() == "global_step7"
    assert (saved / "global_step6" / "mine").exists()


def test_three_failures_in_a_row_end_the_run_unless_checkpoints_are_optional(place):
    config = config_of(place, "fp32")
    for optional in [False, True]:
        saved = place.folder / f"saved{optional}"
        saved.mkdir()
        for step in range(1, 6):
            (saved / f"global_step{step}").mkdir()
            (saved / f"global_step{step}" / "mine").write_text("")
        flags = {**words(place, 5, every=1), "checkpoint_dir": saved}
        result = place.run(*(["--checkpoint-optional"] if optional else []), config=config, **flags)
        assert result.returncode == 1, result.stderr
        assert len(place.steps()) == (5 if optional else 3)
        said = "5 of 5 checkpoints could not be saved" if optional else "3 checkpoints in a row"
        assert said in result.stderr


def test_what_does_not_fit_a_checkpoint_is_refused_before_the_first_step(place):
    config = config_of(place, "fp32")
    flags = words(place, 3)
    assert place.run("--quiet", config=config, **flags).returncode == 0
    log = place.log.read_text()
    saved = place.folder / "saved"

    def refused(*arguments, **changes):
        result = place.run(*arguments, config=config, **{**flags, "steps": 5, **changes})
        assert place.log.read_text() == log
        return errors_of(result, 2)

    assert "of another run" in refused()
    assert "--seed was 0, is 1" in refused("--resume", seed=1)
    assert "--seq-len was 8, is 9" in refused("--resume", seq_len=9)
    assert "--order was shuffled" in refused("--resume", order="sequential")
    other = place.folder / "other.txt"
    other.write_text(place.data.read_text().replace("deep", "wide"))
    assert "--data was " in refused("--resume", data=other)
    assert "--data was " in refused(resume=saved / "global_step3", data=other)
    assert "no such file" in refused(resume=place.folder / "nowhere").lower()
    assert "--checkpoint-dir" in refused(checkpoint_dir=None, checkpoint_every=2)
    assert "--resume: got no folder" in refused("--resume", checkpoint_dir=None,
                                                checkpoint_every=None)  # fmt: skip
    place.log.write_text(log.replace('"step":2', '"step":7'))
    log = place.log.read_text()
    assert "line 2 of step 7 behind that of 1" in refused("--resume")
    place.log.write_text("mine\n")
    log = place.log.read_text()
    assert "which is of no step" in refused("--resume")
    place.log.write_text("")
    log = ""
    result = place.run("--resume", config=config, data_position=0, data=other,
                       **{**flags, "steps": 4})  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert [step["step"] for step in place.steps()] == [4]


def test_no_room_for_checkpoints_is_refused_with_what_to_do(place):
    """On a file system that has room for some of them."""
    mounted = place.folder / "small"
    mounted.mkdir()
    with limits.small_disk(mounted, "1M"):
        error = errors_of(place.run(config=config_of(place, "fp32"),
                                    **{**words(place, 9), "checkpoint_dir": mounted / "saved"}), 2)
        assert error.startswith("artesian: error: --checkpoint-dir: ")
        assert "--checkpoint-keep 1" in error
