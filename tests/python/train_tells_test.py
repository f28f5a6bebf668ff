"""Proves what `artesian train` tells of that which moves its bytes: memory that is not on 2 MiB
pages, and the I/O engine with what of it is in effect."""

import os
import re
import tempfile

import limits
import pytest
from train_cli_test import make_model, place, pytestmark  # noqa: F401


@limits.needs_huge_pages
def test_memory_on_small_pages_is_one_warning(place):  # noqa: F811
    def change(config):
        config["artesian"] = {"device_memory": "16MiB", "host_memory": "16MiB"}

    config = place.write_config(change)
    model = make_model(place.folder / "larger", n_embd=192)  # tiers of more than a huge page
    result = place.run("--quiet", config=config, model=model,
                       preexec_fn=limits.no_huge_pages_for_ever)  # fmt: skip
    assert result.returncode == 0 and result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("artesian: warning: of ")
    assert "(PR_SET_THP_DISABLE, inherited from what started it)" in result.stderr
    allowed = place.run("--quiet", config=config, model=model, preexec_fn=limits.no_huge_pages)
    assert (allowed.returncode, allowed.stderr) == (0, "")


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_the_end_table_names_the_engine(place, engine):  # noqa: F811
    def change(config):
        config["artesian"]["engine"] = engine

    result = place.run(config=place.write_config(change))
    assert result.returncode == 0, result.stderr
    row = re.search(rf"  nvme, moved by +{engine}; direct (\d+)%, registered memory (\d+)%, "
                    r"registered files \d+% of blocks\n", result.stdout)  # fmt: skip
    assert row, result.stdout
    assert int(row[2]) == 0 or engine == "io_uring"


def test_polling_in_effect_is_named(place):  # noqa: F811
    def change(config):
        config["artesian"]["polling"] = "sqpoll"

    result = place.run(config=place.write_config(change))
    assert result.returncode == 0, result.stderr
    refused = "polling: " in result.stderr
    assert ("  io_uring with sqpoll; " in result.stdout) != refused, result.stdout


def test_without_nvme_nothing_is_said_of_an_engine(place):  # noqa: F811
    def change(config):
        for key in ["offload_param", "offload_optimizer"]:
            config["zero_optimization"][key] = {"device": "cpu"}
        config["artesian"] = {"device_memory": "16MiB", "host_memory": "16MiB"}

    result = place.run(config=place.write_config(change))
    assert result.returncode == 0 and "moved by" not in result.stdout, result.stderr


def test_item_11_a_folder_in_memory_is_said_in_the_words_of_doctor(place):  # noqa: F811
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for path in [folder, f"{folder}/made", "relative"]:
            result = place.run("--quiet", config=place.at(path),
                               preexec_fn=lambda: os.chdir(folder))  # fmt: skip
            assert result.returncode == 0, result.stderr
            assert result.stderr.splitlines()[0] == (
                f"artesian: warning: zero_optimization.offload_param.nvme_path: {path}: tmpfs at "
                "/dev/shm; this is memory, not a disk: what is offloaded there is not offloaded; a "
                "folder on a local file system, such as ext4 or xfs on an NVMe disk")  # fmt: skip
            assert "offload_optimizer" not in result.stderr  # the same folder
    assert "not a disk" not in place.run().stderr
