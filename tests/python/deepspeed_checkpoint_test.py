"""Proves, with DeepSpeed itself, that its checkpoints of ZeRO-1, 2 and 3 are imported with the bits
that its own functions report, and that it loads our universal export of them with those bits again,
into a model with other weights, and continues with the losses of the uninterrupted run.

Needs an interpreter with DeepSpeed: ARTESIAN_DEEPSPEED_PYTHON, or the environment that `make bench`
makes (bench/deepspeed_setup.py). Skipped without one; checkpoint_import_test.py has recorded files.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest
from checkpoint_import_test import expect_same, state_of

from artesian.checkpoint import export_universal, import_deepspeed

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "bench"))
SECONDS_MAX = 600


def find_python():
    if named := os.environ.get("ARTESIAN_DEEPSPEED_PYTHON"):
        return pathlib.Path(named)
    if "ARTESIAN_TORCH_DIR" not in os.environ:
        return None
    from deepspeed_setup import environment_folder

    folder = environment_folder()
    return folder / "bin/python3" if (folder / "complete").exists() else None


PYTHON = find_python()
pytestmark = pytest.mark.skipif(
    PYTHON is None, reason="no DeepSpeed: set ARTESIAN_DEEPSPEED_PYTHON, or run make bench once"
)


def deepspeed(action, ranks, **options):
    """Runs the worker in `ranks` processes; returns what rank 0 reported."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = os.environ | {
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    command = [PYTHON, HERE / "deepspeed_worker.py", action, json.dumps(options)]
    out = pathlib.Path(options["out"])
    logs = [out / f"{action}{rank}.log" for rank in range(ranks)]
    workers = []
    for rank, log in enumerate(logs):
        with open(log, "w") as file:
            environment = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            workers.append(
                subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
            )
    try:
        for worker, log in zip(workers, logs, strict=True):
            assert worker.wait(SECONDS_MAX) == 0, log.read_text()[-3000:]
    finally:
        for worker in workers:
            worker.kill()
    return np.load(out / f"{action}.npz")


@pytest.mark.parametrize(
    ("stage", "dtype", "ranks", "stage_after", "ranks_after"),
    [
        (3, "fp32", 1, 3, 1),
        (2, "fp32", 2, 1, 1),
        (1, "fp32", 1, 2, 2),
        (3, "bf16", 2, 3, 2),
        (1, "bf16", 2, 1, 1),
    ],
)
def test_deepspeed_goes_on_where_it_stopped(
    tmp_path, stage, dtype, ranks, stage_after, ranks_after
):
    saved = deepspeed("save", ranks, stage=stage, dtype=dtype, out=str(tmp_path))
    assert import_deepspeed.main([str(tmp_path / "checkpoint"), str(tmp_path / "ours")]) == 0
    expect_same(state_of(tmp_path / "ours"), saved)
    universal = tmp_path / "universal"
    assert export_universal.main([str(tmp_path / "ours"), str(universal), "--torch-adam"]) == 0
    options = {"stage": stage_after, "dtype": dtype, "out": str(tmp_path)}
    options |= {"from": str(universal), "universal": True, "seed": 5}
    resumed = deepspeed("resume", ranks_after, **options)
    assert resumed["step"] == 3
    expect_same({name: resumed[name] for name in resumed if "/" in name}, saved)
    tolerance = 1e-4 if dtype == "fp32" else 1e-2
    np.testing.assert_allclose(resumed["losses"], saved["losses"], rtol=tolerance)
