"""Accelerate and PEFT, which only these tests need, and the environment of a script that is run
with Artesian in DeepSpeed's place."""

import os
import subprocess
import sys

from build_folder import BUILD, ROOT, WITH_GPUS

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCK = ROOT / "dev" / "requirements-hf.lock"
FOLDER = subprocess.run(
    [ROOT / "dev" / "extras.sh", LOCK], check=True, capture_output=True, text=True
).stdout.strip()
EXAMPLES = ROOT / "examples" / "python"

# Does what `python -m artesian.run` or an installed .pth file does, for a package that is found by
# PYTHONPATH.
START = "import site; site.addsitedir({folder!r})\n"


def environment(folder, *, as_deepspeed):
    """Returns the environment of a process that works in `folder`. `as_deepspeed`: Artesian answers
    to DeepSpeed's name in it and its children."""
    start = folder / "start"
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text(START.format(folder=str(BUILD / "python")))
    own = str(ROOT / "tests" / "python")  # the folder of peak_memory.py
    paths = [str(start), str(BUILD / "python"), FOLDER, os.environ.get("PYTHONPATH", ""), own]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hub"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    variables.pop("ARTESIAN_AS_DEEPSPEED", None)
    if as_deepspeed:
        variables["ARTESIAN_AS_DEEPSPEED"] = "1"
        del variables[VISIBLE]  # so that the process itself hides the machine's GPUs
        variables |= {VISIBLE: WITH_GPUS[VISIBLE]} if VISIBLE in WITH_GPUS else {}
    return variables


def run(folder, *words, as_deepspeed=True, fails=False, preexec_fn=None):
    """Runs Python with these arguments in the folder."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment(folder, as_deepspeed=as_deepspeed),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=preexec_fn,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done
