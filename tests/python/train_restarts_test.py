"""Proves that a queue which repeats its command line goes on by itself from what a power cut, or a
damaged disk, has left, where an older checkpoint is whole: with a log whose last lines are torn, a
`latest` that is damaged, files that are damaged or missing. What is damaged is moved aside, nothing
is thrown away, and the end has the bits of a run that never stopped."""

import os
import shutil

import pytest
from train_checkpoints_test import bits, config_of, damage, whole_run, words
from train_cli_test import errors_of, place, pytestmark  # noqa: F401


@pytest.fixture
def saved(place):
    """The folder of a run that saved steps 3 and 6."""
    place.whole = whole_run(place, "fp32", 9)
    place.settings = config_of(place, "fp32")
    result = place.run("--quiet", config=place.settings, **words(place, 6))
    assert result.returncode == 0, result.stderr
    return place.folder / "saved"


def go_on(place, step, steps=9):
    """The same command line: goes on from `step` to the bits of the whole run."""
    result = place.run("--resume", config=place.settings, **words(place, steps))
    assert result.returncode == 0, result.stderr
    assert f"going on from global_step{step}" in result.stderr
    assert bits(place.steps()) == bits(place.whole)[:steps]
    if steps == len(place.whole):
        assert place.steps()[-1]["digest"] == place.whole[-1]["digest"]
    return [line for line in result.stderr.splitlines() if "warning" in line]


TORN = [
    b'{"step":7,"loss":5.\n{"step":8,"loss":1}\n',
    b"\0" * 200 + b"\n",
    b"\0" * 200 + b'{"step":9,"loss":1}\n',
    b'{"step":9,"loss":1}\n',  # those between are lost
]


@pytest.mark.parametrize("torn", TORN)
def test_lines_behind_the_checkpoint_may_be_torn(place, saved, torn):
    with place.log.open("ab") as log:
        log.write(torn)
    (place.folder / "steps.jsonl.1").write_text("taken")
    warnings = go_on(place, 6)
    aside = place.folder / "steps.jsonl.2"
    assert warnings == [f"artesian: warning: --log-jsonl: what follows the lines of {place.log} is "
                        f"torn; it is in {aside} now"]  # fmt: skip
    assert aside.read_bytes() == torn
    assert (place.folder / "steps.jsonl.1").read_text() == "taken"


def test_the_line_of_the_checkpoint_itself_may_be_torn(place, saved):
    log = place.log.read_bytes()
    at = log.rindex(b"\n", 0, -1) + 1
    place.log.write_bytes(log[:at] + b"\0" * (len(log) - at - 1) + b"\n")
    go_on(place, 6)
    assert (place.folder / "steps.jsonl.1").exists()


def test_a_torn_log_of_a_run_that_left_no_checkpoint_is_kept(place):
    place.settings = config_of(place, "fp32")
    result = place.run("--quiet", config=place.settings, steps=2, log_jsonl=place.log, seq_len=8)
    assert result.returncode == 0, result.stderr
    torn = place.log.read_bytes() + b"\0\0\n"
    place.log.write_bytes(torn)
    result = place.run("--resume", config=place.settings, **words(place, 3))
    assert result.returncode == 0, result.stderr
    assert (place.folder / "steps.jsonl.1").read_bytes() == torn
    assert [step["step"] for step in place.steps()] == [1, 2, 3]


def test_a_log_that_is_torn_before_the_checkpoint_is_refused(place, saved):
    log = place.log.read_text().splitlines(keepends=True)
    place.log.write_text("".join([log[0], "{\n", *log[2:]]))
    result = place.run("--resume", config=place.settings, **words(place, 9))
    assert "line 2, which is of no step" in errors_of(result, 2)


@pytest.mark.parametrize("content", [b"", b"global_step\xb6", b"\0" * 12, b"global_step7"])
def test_a_damaged_latest_is_passed_over(place, saved, content):
    (saved / "latest").write_bytes(content)
    warnings = go_on(place, 6)
    assert len(warnings) == 1 and "latest" in warnings[0]
    assert (saved / "latest").read_text() == "global_step9"


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["missing", "damaged"])
def test_a_checkpoint_with_a_bad_file_gives_way_to_the_one_before(place, saved, kind):
    kept = place.folder / "kept"
    shutil.copytree(saved, kept)
    log = place.log.read_bytes()
    names = files_of(saved / "global_step6")
    assert {"manifest.json", "rank0.safetensors", "rank0.sums", "model/config.json"} <= set(names)
    for name in names:
        shutil.rmtree(saved)
        shutil.copytree(kept, saved)
        place.log.write_bytes(log)
        path = saved / "global_step6" / name
        path.unlink() if kind == "missing" else damage(path, path.stat().st_size // 2)
        # To the same tag again, which must be free.
        warnings = go_on(place, 3, steps=6)
        assert any(name in line for line in warnings), (name, warnings)
        assert sorted(os.listdir(saved)) == [
            ".lock", "global_step3", "global_step6", "global_step6.damaged", "latest",
            "zero_to_fp32.py"]  # fmt: skip
        assert (saved / "latest").read_text() == "global_step6"
        go_on(place, 6)


def test_where_none_is_whole_the_run_is_refused(place, saved):
    for step in (3, 6):
        damage(saved / f"global_step{step}" / "manifest.json", 50)
    before = files_of(saved)
    result = place.run("--resume", config=place.settings, **words(place, 9))
    assert "manifest.json" in errors_of(result, 2)
    (saved / "latest").write_bytes(b"")
    result = place.run("--resume", config=place.settings, **words(place, 9))
    assert "latest" in errors_of(result, 2)
    assert files_of(saved) == before
