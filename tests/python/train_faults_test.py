"""Proves what becomes of a training when something fails late: a disk fills under the log, the
trace or what is saved. The training goes on, the weights are saved, what else was asked for is
there, and exit code and error lines tell what is missing."""

import json
import signal

import limits
import pytest
from train_cli_test import errors_of, make_model, place, pytestmark  # noqa: F401


def weights_of(folder):
    return (folder / "model.safetensors").read_bytes()


def error_lines(result):
    return [line for line in result.stderr.splitlines() if ": error: " in line]


def test_a_log_that_takes_nothing_costs_no_training(place):
    place.trained(steps=3, save=place.folder / "whole")
    trace = place.folder / "trace.json"
    result = place.run(steps=3, log_jsonl="/dev/full", save=place.folder / "out", trace=trace)
    assert result.returncode == 1
    assert error_lines(result) == ["artesian: error: --log-jsonl: cannot write 3 of 3 lines: "
                                   "/dev/full: No space left on device"]  # fmt: skip
    warnings = [line for line in result.stderr.splitlines() if "warning" in line]
    assert warnings == ["artesian: warning: --log-jsonl: cannot write: /dev/full: No space left on "
                        "device; training goes on"]  # fmt: skip
    assert result.stdout.startswith("\nTraining, 3 steps\n")
    assert json.loads(trace.read_text())["traceEvents"]
    assert weights_of(place.folder / "out") == weights_of(place.folder / "whole")


def test_a_log_whose_disk_fills_keeps_whole_lines_and_goes_on_when_there_is_room(place):
    (place.folder / "small").mkdir()
    with limits.small_disk(place.folder / "small", "12k") as small:
        (small / "other").write_bytes(bytes(4096))
        place.log = small / "steps.jsonl"
        process = place.start("--quiet")
        assert "--log-jsonl: cannot write: " in process.stderr.readline()
        before = len(place.steps())
        (small / "other").unlink()
        while len(place.log.read_text().splitlines()) == before:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        numbers = [step["step"] for step in place.steps()]
    assert process.returncode == 1 and " lines: " in errors, errors
    assert numbers[:before] == list(range(1, before + 1))
    assert numbers == sorted(numbers) and numbers[before] > before + 1


def test_a_save_whose_disk_fills_meanwhile(place):
    model = make_model(place.folder / "wide", n_embd=64, vocab_size=512)
    flags = {"model": model, "order": "sequential", "save_dtype": "fp32"}
    place.config = place.write_config(lambda config: config.pop("artesian"))
    (place.folder / "small").mkdir()
    with limits.small_disk(place.folder / "small", "2M") as small:
        process = place.start_and_wait_for_a_step(**flags, save=small / "out")
        limits.fill(small / "other")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 143 and output == ""
        steps = place.steps()
        assert errors == (f"artesian: note: stopped by SIGTERM after step {len(steps)} of 1000000; "
                          f"saved to {small / 'out'}\n")  # fmt: skip
        found = weights_of(small / "out")
        assert sorted(path.name for path in small.iterdir()) == ["other", "out"]
    place.trained(**flags, steps=len(steps), save=place.folder / "whole")
    assert found == weights_of(place.folder / "whole")


def test_a_disk_without_room_for_what_is_saved_is_refused(place):
    (place.folder / "small").mkdir()
    with limits.small_disk(place.folder / "small", "64k") as small:
        line = place.refused(save=small / "out", save_dtype="fp32")
        assert list(small.iterdir()) == []
    assert line.startswith("artesian: error: --save: ")


def test_a_file_system_that_reserves_nothing_is_a_note(place):
    place.trained(save=place.folder / "whole")
    out = place.folder / "out"
    result = place.run(save=out, preexec_fn=limits.refuse_unnamed_files)
    if result.returncode == 77:
        pytest.skip("no seccomp filters here")
    assert result.returncode == 0, result.stderr
    notes = [line for line in result.stderr.splitlines() if "reserves no bytes" in line]
    assert notes == [f"artesian: note: save: {out}: its file system reserves no bytes; keep what "
                     "it needs free until the end"]  # fmt: skip
    assert weights_of(out) == weights_of(place.folder / "whole")
    result = place.run(save=place.folder / "none", steps=None, epochs=1, seq_len=32, micro_batch=1,
                       data=place.folder / "missing", preexec_fn=limits.refuse_unnamed_files)
    assert "--data" in errors_of(result, 2)
    assert not list(place.folder.glob("none*"))


def test_each_part_of_the_end_stands_alone(place):
    out = place.folder / "out"
    process = place.start_and_wait_for_a_step(save=out, trace=place.folder / "trace.json")
    out.mkdir()  # another one's
    (place.folder / "trace.json").unlink()
    (place.folder / "trace.json").mkdir()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    save, trace, end = errors.splitlines()
    assert save.startswith(f"artesian: error: --save: {out}: came into being meanwhile; all is in ")
    assert trace.startswith("artesian: error: --trace: ")
    assert end.startswith("artesian: note: stopped by SIGTERM after step ")
    assert end.endswith("; nothing is saved")
    kept = place.folder / f"out.partial-{process.pid}"
    assert save.endswith(str(kept))
    assert len(place.trained(model=kept)) == 1
