"""Proves that dev/tidy.py reports each kind of fault, at its line, and passes what is right."""

import pathlib
import subprocess
import sys

import pytest

TIDY = pathlib.Path(__file__).resolve().parents[2] / "dev/tidy.py"


def run(root):
    """Returns (exit code, the fault lines)."""
    done = subprocess.run([sys.executable, TIDY, root], capture_output=True, text=True)
    *faults, summary = done.stdout.splitlines()
    assert summary.startswith("tidy: "), done.stderr
    return done.returncode, faults


def plant(root, name, content):
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def function(lines, head="int f(int a) {"):
    return head + "\n" + "  g();\n" * (lines - 2) + "}\n"


BRACED_MEMBERS = "A::A(int a)\n    : a_{a}, b_{1, 2} {"
LAMBDA_DEFAULT = "Result<int> f(const Options& options = {}, int b = 1'000'000) noexcept {"
IN_CLASS = "namespace n {\nstruct S {\n  int x = 0;\n" + function(71) + "};\n}\n"

FAULTS = [
    ("base/a.h", '#include "aio/engine.h"\n', 1, "may only include what lies below"),
    ("aio/a.h", '#include "pinned/pool.h"\n', 1, "may only include what lies below"),
    ("tiering/a.h", '\n#include "zero3/config/config.h"\n', 2, "may only include what lies below"),
    ("zero3/a.cpp", "int a;\n", 1, "zero3/ has rooms"),
    ("zero3/torch/a.cpp", '#include "models/gpt2.h"\n', 1, "may only include what lies below"),
    ("zero3/step/a.h", '#include "zero3/torch/engine.h"\n', 1, "may only include what lies below"),
    ("zero3/step/a.h", "#include <ATen/ATen.h>\n", 1, "includes LibTorch"),
    ("zero3/plan/a.h", '#include "zero3/step/state.h"\n', 1, "may only include what lies below"),
    ("zero3/plan/a.h", "#include <thread>\n", 1, "only decides"),
    ("zero3/plan/a.h", '#include "base/clock.h"\n', 1, "only decides"),
    ("zero3/config/a.h", "#include <fstream>\n", 1, "only decides"),
    ("zero3/config/a.h", '#include "tiering/tier.h"\n', 1, "may only include what lies below"),
    ("tiering/disk/a.h", '#include "tiering/tier.h"\n', 1, "may only include what lies below"),
    ("tiering/device/a.h", '#include "tiering/disk/mount.h"\n', 1, "may only include what lies"),
    ("tools/doctor/a.h", '#include "tools/train/train.h"\n', 1, "may only include what lies below"),
    ("models/a.cpp", '#include "tools/train/train.h"\n', 1, "may only include what lies below"),
    ("base/a.h", '#include "tests/fake.h"\n', 1, "may only include what lies below"),
    ("tiering/a.cpp", "#include <torch/torch.h>\n", 1, "includes LibTorch"),
    ("kernels/a.cu", '#include "ATen/ATen.h"\n', 1, "includes LibTorch"),
    ("aio/a.h", "#include <fmt/core.h>\n", 1, "a header includes fmt"),
    ("pinned/a.cpp", "#include <c10/core/Device.h>\n", 1, "includes LibTorch"),
    ("aio/a.h", '#include "a.h"\n', 1, "by its path from the root"),
    ("aio/a.cpp", "int a;\n" * 801, 801, "801 lines"),
    ("aio/a.cpp", "int b;\n\n" + function(71), 3, "function of 71 lines"),
    ("aio/a.cpp", function(71, BRACED_MEMBERS), 1, "function of 72 lines"),
    ("aio/a.cpp", function(71, LAMBDA_DEFAULT), 1, "function of 71 lines"),
    ("aio/a.cpp", function(71, "TEST(Engine, Reads) {"), 1, "function of 71 lines"),
    ("aio/a.h", IN_CLASS, 4, "function of 71 lines"),
    ("tools/a.py", "def f():\n" + "    g()\n" * 70, 1, "function of 71 lines"),
    ("tools/a.sh", "f() {\n" + "  g\n" * 69 + "}\n", 1, "function of 71 lines"),
    ("aio/a.h", "int a;  " + "/" * 93 + "\n", 1, "101 columns"),
    ("docs/a.md", "TO" + "DO: write this\n", 1, "without an issue number"),
    ("aio/a.cpp", "  // return value;\n", 1, "commented-out code"),
    ("aio/a.cpp", "  // submit(request);\n", 1, "commented-out code"),
    ("aio/a.cpp", "  // int a = 3;\n", 1, "commented-out code"),
    ("tools/a.py", "# import os\n", 1, "commented-out code"),
    ("docs/a.md", "see /ho" + "me/me/models\n", 1, "absolute path"),
    ("examples/a.json", '{"path": "/wo' + 'rk/x"}\n', 1, "absolute path"),
    ("docs/a.md", "https://py" + "pi.org/simple\n", 1, "registry"),
    ("tests/aio/a_test.cpp", "TEST(A, B) {}\n", 1, "without an assertion"),
    ("tests/python/a_test.py", "def test_a():\n    pass\n", 1, "without an assertion"),
]


@pytest.mark.parametrize("name, content, line, message", FAULTS)
def test_fault_is_reported(tmp_path, name, content, line, message):
    plant(tmp_path, name, content)
    code, faults = run(tmp_path)
    assert code == 1
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"{name}:{line}: ") and message in faults[0]


RIGHT = [
    ("tiering/a.h", '#include "base/units.h"\n#include "aio/engine.h"\n#include "hwy/highway.h"\n'),
    ("zero3/torch/a.cpp", '#include <torch/torch.h>\n#include "tiering/tier.h"\n'),
    ("zero3/plan/a.cpp", '#include <vector>\n#include "tiering/tier.h"\n#include "base/units.h"\n'),
    ("zero3/step/a.cpp", '#include <mutex>\n#include "tiering/device/device.h"\n'),
    ("tools/plan/a.cpp", '#include "tools/train/training.h"\n#include "models/data/tokenize.h"\n'),
    ("tests/base/a.h", '#include "models/gpt2.h"\n'),
    ("aio/a.cpp", "int a;\n" * 800),
    ("aio/a.cpp", function(70) + function(70)),
    ("aio/a.cpp", "namespace n {\nclass C {\n" + "  int a_;\n" * 90 + "};\n}  // namespace n\n"),
    ("aio/a.h", "template <int N>\n  requires(N > 0)\nstruct S {\n" + "  int a_;\n" * 90 + "};\n"),
    ("aio/a.cpp", "const int table[] = {\n" + "    f(1),\n" * 90 + "};\n"),
    ("aio/a.cpp", '// "{" and } are text here\nchar a = \'{\';\nauto b = "{";\n' + function(70)),
    ("aio/a.h", "int a;  " + "/" * 92 + "\n"),
    ("docs/a.md", "TO" + "DO(#12): write this\n" + "w" * 300 + "\n"),
    ("aio/a.cpp", "// The caller keeps it until then; release() gives it back;\n// n = 0. Then;\n"),
    ("aio/a.h", "// Use:\n//\n//   auto engine = make_engine(options);\n//   engine->drain();\n"),
    ("tools/a.py", "# if nothing is there, from then on:\n"),
    ("tests/aio/a_test.cpp", "TEST(A, B) { EXPECT_EQ(1, 1); }\n"),
    ("tests/aio/b_test.cpp", "INSTANTIATE_TYPED_TEST_SUITE_P(Threads, Contract, Threads);\n"),
]


@pytest.mark.parametrize("name, content", RIGHT)
def test_right_file_passes(tmp_path, name, content):
    plant(tmp_path, name, content)
    assert run(tmp_path) == (0, [])


def test_binary_file_is_left_alone(tmp_path):
    (tmp_path / "tokens.bin").write_bytes(b"\xff\xfe\x00" * 100)
    assert run(tmp_path) == (0, [])


def test_ignored_file_of_a_checkout_is_left_alone(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    plant(tmp_path, ".gitignore", "/build/\n")
    plant(tmp_path, "build/a.cpp", "int a;\n" * 801)
    plant(tmp_path, "aio/new.cpp", "int a;\n" * 801)
    _, faults = run(tmp_path)
    assert [fault.split(":")[0] for fault in faults] == ["aio/new.cpp"]


def test_words_are_counted_by_page():
    done = subprocess.run([sys.executable, TIDY, "--words"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {line.split()[-1]: line.split()[:2] for line in done.stdout.splitlines()[1:-1]}
    words, long = pages["README.md"]
    assert int(words) > 500 and long.endswith("%")
