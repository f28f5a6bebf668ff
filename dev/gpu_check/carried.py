"""Programs that dev/carry.sh has brought along, for the part first and the parts that use a build.
They are used if they were built from the same sources and with the same torch as here; otherwise
everything is built here."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import torch_build
from shell import fail, read_text, say, sources_digest

PROGRAMS = "bin/aio_bench bin/artesian bin/profile_bench bin/team_bench".split()
GPU_TESTS = {
    "kernels/cuda_test": "tests/kernels_cuda_test",
    "tiering/device/cuda_device_test": "tests/tiering_device_cuda_device_test",
    "zero3/torch/cuda_test": "tests/zero3_torch_cuda_test",
}
SKIPPED = 77  # the exit code of a test that finds no GPU


def facts_of(root, built):
    """The sources and the torch that programs are built with."""
    version, commit = torch_build.build_of(built)
    return {"sources": sources_digest(root), "torch": version, "commit": commit}


def other_than_here(context, facts):
    """Returns why programs with these facts may not be used here; "" if they may."""
    if facts["sources"] != context.digest:
        return f"they are built from sources {facts['sources']}, and these are {context.digest}"
    imported = torch_build.folder_of_python()
    here = torch_build.build_of(imported) if imported else ("none", "")
    if here != (facts["torch"], facts["commit"]):
        theirs = f"torch {facts['torch']} of {facts['commit'][:10]}"
        return f"they are built with {theirs}, and here is {here[0]} of {here[1][:10] or '?'}"
    return ""


def take(context):
    """Copies the programs to where a build would put them; returns False if there are none that may
    be used. Sets LD_LIBRARY_PATH for this and later parts."""
    folder = context.prefix / "programs" if context.prefix else None
    text = read_text(folder / "programs.json") if folder else ""
    if not text:
        return False
    reason = other_than_here(context, json.loads(text))
    if reason:
        say(f"the carried programs are not used: {reason}")
        return False
    for name in [*PROGRAMS, *GPU_TESTS.values()]:
        target = context.work / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / name, target)
    torch = torch_build.folder_of_python() / "lib"
    before = os.environ.get("LD_LIBRARY_PATH", "")
    paths = [str(torch), *map(str, libraries_of(context.prefix)), before]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    return True


def libraries_of(prefix):
    return sorted({path.parent for path in prefix.glob("lib/**/lib*.so.*")})


def run_gpu_tests(context):
    """Returns how each test ended, in ctest's words, and whether one ran out of time."""
    ended, said = {}, []
    log = context.work / "logs/first-gpu.log"
    for name, program in GPU_TESTS.items():
        seconds = max(context.seconds_left() - 60, 1)
        done = context.run([context.program(program)], seconds=seconds, log=log)
        said.append(f"== {name}\n{done.output}")
        log.write_text("".join(said))
        how = {0: "Passed", SKIPPED: "***Skipped"}
        ended[name] = "***Timeout" if done.timed_out else how.get(done.code, "***Failed")
    return ended, "***Timeout" in ended.values()


def main(root, build, target):
    """Called by dev/carry.sh: copies stripped programs out of a build folder."""
    build, target = pathlib.Path(build), pathlib.Path(target)
    built = torch_build.folder_of_build(build)
    if built is None:
        fail(f"{build}: got no LibTorch in it, allowed a folder of `make build`")
    for name in [*PROGRAMS, *GPU_TESTS.values()]:
        if not (build / name).exists():
            fail(f"{build}/{name}: not there; build programs, benches and gpu_tests, with CUDA")
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "-o", target / name, build / name], check=True)
    (target / "programs.json").write_text(json.dumps(facts_of(pathlib.Path(root), built)))


if __name__ == "__main__":
    main(*sys.argv[1:])
