"""Checks that this Python imports the same torch that the programs are built with. CMake may have
found another: that of ARTESIAN_TORCH_DIR, or of an environment made by dev/setup.sh. Python would
then measure and test something else than was built, or both would be in one process, with missing
symbols or other bits."""

import importlib.util
import pathlib
import re
import sys

from shell import Failure, read_text


def folder_of_python():
    """Finds the torch that an import would load, without importing it; None if there is none."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return pathlib.Path(spec.origin).parent if spec and spec.origin else None


def folder_of_build(work):
    """Finds the torch with which CMake has configured, from its cache; None if there is none."""
    cache = read_text(work / "CMakeCache.txt")
    found = re.search(r"^ARTESIAN_TORCH_DIR:\w+=(.+)$", cache, re.MULTILINE)
    return pathlib.Path(found[1]) if found else None


def build_of(folder):
    """Reads torch.__version__ and torch.version.git_version; "" if absent."""
    text = read_text(folder / "version.py")
    names = ("__version__", "git_version")
    said = [re.search(rf"^{name} = ['\"](.*)['\"]", text, re.MULTILINE) for name in names]
    return tuple(found[1] if found else "" for found in said)


def headers_of(folder):
    """Reads the version in the headers; "" if absent."""
    text = read_text(folder / "include/torch/headeronly/version.h")
    found = re.search(r'^#define TORCH_VERSION\s*\\?\s*"(.*)"', text, re.MULTILINE)
    return found[1] if found else ""


def words(folder):
    version, commit = build_of(folder)
    return f"torch {version or '?'} of {commit[:10] or '?'} in {folder}"


def check(context):
    """Fails if they differ. Does nothing before CMake has run, or without LibTorch."""
    built = folder_of_build(context.work)
    if built is None:
        return
    imported = folder_of_python()
    if imported is None:
        raise Failure(
            f"{sys.executable} has no torch, and the build uses {words(built)}:"
            " put the python3 of that one first on PATH"
        )
    if build_of(imported) != build_of(built):
        raise Failure(
            f"{sys.executable} imports {words(imported)}, but the build uses {words(built)}: put"
            f" the python3 of that one first on PATH, or set ARTESIAN_TORCH_DIR={imported}"
        )
    headers, version = headers_of(built), build_of(built)[0]
    release = re.match(r"[\d.]*\d", version)
    if headers and release and headers != release[0]:
        raise Failure(f"{words(built)}: its headers are of {headers}: install it anew")
