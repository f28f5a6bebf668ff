"""Where tests write: /tmp, or below the build folder where /tmp is memory: what they prove of a
disk would not hold there."""

import os
import subprocess
import tempfile

from build_folder import BUILD


def is_memory(folder):
    words = ["stat", "--file-system", "--format=%T", folder]
    said = subprocess.run(words, capture_output=True, text=True).stdout
    return said.strip() in ("tmpfs", "ramfs")


given = "PYTEST_DEBUG_TEMPROOT" in os.environ
if not given and is_memory(tempfile.gettempdir()) and BUILD.exists():
    (BUILD / "pytest").mkdir(exist_ok=True)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(BUILD / "pytest")
