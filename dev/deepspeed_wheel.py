#!/usr/bin/env python3
"""Makes the wheel artesian-deepspeed: the scripts `deepspeed` and `ds_report`, and a marker that
makes Artesian answer for DeepSpeed in the whole environment into which the wheel is installed.

    dev/deepspeed_wheel.py FOLDER     writes FOLDER/artesian_deepspeed-VERSION-py3-none-any.whl
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
VERSION = re.search(
    r"VERSION (?P<value>[0-9.]+) LANGUAGES", (ROOT / "CMakeLists.txt").read_text()
)["value"]
FACTS = f"artesian_deepspeed-{VERSION}.dist-info"

FILES = {
    # Python reads this file when it starts. ARTESIAN_AS_DEEPSPEED=0 disables it.
    "artesian_deepspeed.pth": (
        'import os; os.environ.setdefault("ARTESIAN_AS_DEEPSPEED", "installed") in '
        '("1", "installed") and __import__("artesian.deepspeed")\n'
    ),
    f"{FACTS}/METADATA": f"""Metadata-Version: 2.1
Name: artesian-deepspeed
Version: {VERSION}
Summary: Artesian in DeepSpeed's place: the commands deepspeed and ds_report, and its name
License: Apache-2.0
Requires-Python: >=3.11
Requires-Dist: artesian=={VERSION}
""",
    f"{FACTS}/WHEEL": """Wheel-Version: 1.0
Generator: artesian
Root-Is-Purelib: true
Tag: py3-none-any
""",
    f"{FACTS}/entry_points.txt": """[console_scripts]
deepspeed = artesian.launcher:main
ds_report = artesian.launcher:report
""",
}


def main(folder):
    path = pathlib.Path(folder) / f"artesian_deepspeed-{VERSION}-py3-none-any.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    record = ""
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in FILES.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            record += f"{name},sha256={digest.decode().rstrip('=')},{len(text.encode())}\n"
            wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text)
        name = f"{FACTS}/RECORD"
        wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), f"{record}{name},,\n")
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
