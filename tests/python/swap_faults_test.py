"""Proves what a user sees of a disk that does not keep what it was given: one error that names the
shard and the place, exit code 1, and nothing left behind."""

import os

from train_cli_test import place, pytestmark  # noqa: F401


def test_a_flipped_bit_in_the_swap_file_ends_the_run_with_one_error(place):
    run = place.start_and_wait_for_a_step()
    (swap,) = place.nvme.glob("*.swap")
    superblocks, block = 4 * 4096, 4096
    with open(swap, "r+b") as file:  # again and again: the run writes, too
        while run.poll() is None:
            for offset in range(superblocks, os.fstat(file.fileno()).st_size, block):
                byte = os.pread(file.fileno(), 1, offset)
                os.pwrite(file.fileno(), bytes([byte[0] ^ 1]), offset)
    output, errors = run.communicate(timeout=60)
    (line,) = [line for line in errors.splitlines() if ": error: " in line]
    assert run.returncode == 1 and output == ""
    assert line.startswith("artesian: error: ")
    assert "is not what was written (checksum differs at generation" in line
    assert f": {swap}: at offset " in line
