"""Proves that a checkpoint whose files have a second name elsewhere, as backups by `cp -al` and
`rsync --link-dest` have, keeps its bytes there while the run goes on; and that a run which goes on
where its bits would differ says so: another instruction set, LibTorch or device."""

import json
import os

import pytest
from made_up_checkpoint import seal
from train_cli_test import place, pytestmark  # noqa: F401

RUN = {"seq_len": 16, "checkpoint_every": 1}


def bytes_of_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}  # fmt: skip


def test_a_backup_of_links_is_never_written_to(place):  # noqa: F811
    saved, backup = place.folder / "saved", place.folder / "backup"
    place.trained("--resume", steps=2, checkpoint_dir=saved, **RUN)
    backup.mkdir()
    for path in sorted(saved.rglob("*")):
        there = backup / path.relative_to(saved)
        if path.is_dir():
            there.mkdir()
        elif path.name != ".lock":  # which says who has the folder
            os.link(path, there)
    before = bytes_of_files(backup)
    done = place.run("--resume", steps=6, checkpoint_dir=saved, log_jsonl=place.log, **RUN)
    assert done.returncode == 0, done.stderr
    for step in (1, 2):
        text = f"global_step{step} is kept: its data has a second name elsewhere"
        assert done.stderr.count(text) == 1, done.stderr
    kept = {path.name for path in saved.glob("global_step*")}
    assert kept == {f"global_step{step}" for step in (1, 2, 5, 6)}
    after = bytes_of_files(backup)
    assert [name for name in before if after[name] != before[name]] == []


@pytest.mark.parametrize(("fact", "other"), [("instruction_set", "SSE9"), ("torch", "2.0.0"),
                                             ("compute_dtype", "bf16")])  # fmt: skip
def test_going_on_to_other_bits_is_a_warning(place, fact, other):  # noqa: F811
    saved = place.folder / "saved"
    place.trained("--resume", steps=1, checkpoint_dir=saved, **RUN)
    path = saved / "global_step1" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    manifest["machine"][fact] = other
    seal(path, manifest)
    done = place.run("--resume", steps=2, checkpoint_dir=saved, log_jsonl=place.log, **RUN)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if ": warning: " in line]
    assert "the training goes on, but not to the same bits" in line
    assert other in line and fact.replace("_", " ").split()[0] in line
