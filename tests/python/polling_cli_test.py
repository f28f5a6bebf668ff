"""Proves that artesian.polling takes effect in a training: the kernel's SQPOLL thread exists, or
one line says why not, and the bits are the same."""

import pathlib

import pytest
from train_cli_test import place, pytestmark  # noqa: F401


def with_polling(place, polling):
    return place.write_config(lambda config: config["artesian"].update(polling=polling))


@pytest.mark.parametrize("polling", ["sqpoll", "iopoll", "both"])
def test_polling_takes_effect_or_one_line_says_why_not_and_the_bits_are_the_same(place, polling):
    digest = place.trained("--quiet")[-1]["digest"]
    result = place.run("--quiet", config=with_polling(place, polling), log_jsonl=place.log)
    assert result.returncode == 0, result.stderr
    assert place.steps()[-1]["digest"] == digest
    lines = result.stderr.splitlines()
    assert len(lines) <= 1
    assert all("refused" in line or "cannot be polled" in line or "is not available" in line
               for line in lines)  # fmt: skip


def polls(process):
    tasks = pathlib.Path(f"/proc/{process.pid}/task").glob("*/comm")
    return any(task.read_text().startswith("iou-sqp-") for task in tasks)


def test_sqpoll_is_a_thread_of_the_kernel(place):
    for polling, expected in [("off", False), ("sqpoll", True)]:
        process = place.start_and_wait_for_a_step(config=with_polling(place, polling))
        seen = polls(process)
        process.kill()
        _, errors = process.communicate(timeout=60)
        for left in place.nvme.iterdir():  # files of the killed run
            left.unlink()
        if "refused" in errors or "is not available" in errors:
            pytest.skip("no SQPOLL here")
        assert seen is expected
