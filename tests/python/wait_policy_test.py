"""Proves that LibTorch's threads sleep while they wait: `artesian` asks for it before OpenMP reads
its settings, unless the user has set OMP_WAIT_POLICY."""

import os
import subprocess

import pytest
from build_folder import ARTESIAN as PROGRAM

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")


@pytest.mark.parametrize("given, sleeps", [(None, True), ("active", False)])
def test_threads_that_wait_sleep_unless_the_user_wants_otherwise(given, sleeps):
    variables = {**os.environ, "OMP_DISPLAY_ENV": "VERBOSE"}
    variables.pop("OMP_WAIT_POLICY", None)
    if given:
        variables["OMP_WAIT_POLICY"] = given
    shown = subprocess.run([PROGRAM, "--version"], env=variables, capture_output=True, check=True)
    assert (b"GOMP_SPINCOUNT = '0'" in shown.stderr) == sleeps, shown.stderr
