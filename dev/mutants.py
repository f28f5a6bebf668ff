#!/usr/bin/env python3
"""Mutation testing: finds lines of the Python package that no test checks: make mutants

Draws lines of python/artesian at random, changes one thing in each (an operator, a constant, a
branch, a removed statement), and runs the tests that cover the line, the cheapest first, until one
fails. A mutant that no test notices is printed with its diff. Not a part of CI.

Two stages, both in the folder --work (build/mutants), on a copy of build/python:
1. `map/`: which test covers which line, and how long it takes, by coverage: one file per test
   file, remade when the test file or the package has changed, or with --map. Tests that fail
   without a change, or are skipped, are left out.
2. The mutants. torch is loaded once; each mutant's tests run in a fork of that process.

    make mutants ARGUMENTS="--count 100 --seed 7"        the seed is printed if it is not given
    make mutants ARGUMENTS="--line zero.py:120"          every mutant of a line
"""

import argparse
import ast
import collections
import copy
import dataclasses
import difflib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "python"
PACKAGE = ROOT / "python" / "artesian"
USES_PACKAGE = re.compile(
    r"\bartesian\.(?!json)|\bimport artesian|\b(import|from) (hf|small_models)\b|BUILD / .python"
)

COMPARISONS = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


# Mutants


@dataclasses.dataclass
class Mutant:
    path: str  # path below python/artesian
    line: int
    what: str
    source: str  # text of the whole file
    in_function: bool = True


def is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def changes_of(node):
    """Pairs of a description and a function that applies the change to a copy of the node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield "comparison", lambda n: setattr(n, "ops", [COMPARISONS[type(n.ops[0])](), *n.ops[1:]])
    if isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield "and, or", lambda n: setattr(n, "op", other())
        yield "first operand alone", lambda n: setattr(n, "values", n.values[:1])
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield "operator", lambda n: setattr(n, "op", OPERATORS[type(n.op)]())
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "branch turned", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.Constant) and not isinstance(node.value, str | bytes):
        if isinstance(node.value, bool):
            yield "constant", lambda n: setattr(n, "value", not n.value)
        elif isinstance(node.value, int | float):
            yield "constant", lambda n: setattr(n, "value", n.value + 1)
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield "word", lambda n: setattr(n, "value", n.value + "_")
    if isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield "returned value", lambda n: setattr(n, "value", ast.Constant(None))


def replaced(node):
    """A statement without effect to replace this one, or None."""
    dropped = (ast.Raise, ast.AugAssign, ast.Delete)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    is_member = isinstance(node, ast.Assign) and isinstance(
        node.targets[0], ast.Attribute | ast.Subscript
    )
    if isinstance(node, dropped) or is_call or is_member:
        return ast.Pass()
    if isinstance(node, ast.Break):
        return ast.Continue()
    if isinstance(node, ast.Continue):
        return ast.Break()
    return None


# Keywords that only guard against programming mistakes, or only change messages.
TOLD = {"strict", "frozen", "help", "metavar", "description", "prog"}
# Functions whose texts are only messages or names.
NAMING = ("Error", "Exception", "getLogger", "TypeVar", "_is", "_number", "_whole", "whole")


def skipped(node):
    """True for code that does not run or only makes messages: annotations, messages, imports."""
    if isinstance(node, ast.keyword) and node.arg in TOLD:
        return True
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr) or is_docstring(node):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return True
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return name.endswith(NAMING)


def as_list(value):
    return value if isinstance(value, list) else [value]


def places(tree):
    """Yields each node that runs."""
    todo = [tree]
    while todo:
        for field, value in ast.iter_fields(todo.pop()):
            if field in ("annotation", "returns", "type_comment"):
                continue
            for child in as_list(value):
                if isinstance(child, ast.AST) and not skipped(child):
                    yield child
                    todo.append(child)


def mutants_of(path, text):
    """All mutants of a file."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    inside = {id(n) for f in functions for part in as_list(f.body) for n in ast.walk(part)}
    for child in list(places(tree)):
        if not hasattr(child, "lineno"):
            continue
        changed = []
        for what, change in changes_of(child):
            node = copy.deepcopy(child)
            change(node)
            changed.append((what, node))
        if (nothing := replaced(child)) is not None:
            changed.append(("statement", nothing))
        if isinstance(child, ast.UnaryOp) and isinstance(child.op, ast.Not):
            changed.append(("not", child.operand))
        for what, node in changed:
            source = with_node(lines, child, node)
            yield Mutant(path, child.lineno, what, source, id(child) in inside)


def with_node(lines, child, node):
    """The text of the file with one node replaced."""
    ast.fix_missing_locations(ast.copy_location(node, child))
    compound = isinstance(child, ast.If | ast.While)
    old = child.test if compound else child
    new = node.test if compound else node
    before = "".join(lines[: old.lineno - 1])
    before += lines[old.lineno - 1].encode()[: old.col_offset].decode()
    after = lines[old.end_lineno - 1].encode()[old.end_col_offset :].decode()
    after += "".join(lines[old.end_lineno :])
    written = ast.unparse(new)
    return before + (f"({written})" if isinstance(new, ast.expr) else written) + after


def compiles(mutant):
    try:
        compile(mutant.source, mutant.path, "exec")
    except SyntaxError:  # for example a keyword's name, or a part of an f-string
        return False
    return True


# The copy of the package that is changed


def make_copy(build, folder):
    """Makes a build folder whose package is a copy, and whose programs are those of `build`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for entry in build.iterdir():
        if entry.name not in ("python", "pytest", "mutants"):
            (folder / entry.name).symlink_to(entry.resolve())
    shutil.copytree(build / "python", folder / "python", ignore=shutil.ignore_patterns("CMake*"))


CHILD = """
import os, sys
if "MUTANTS_COVERAGE" in os.environ and "PYTEST_CURRENT_TEST" in os.environ:
    sys.path.append(os.environ["MUTANTS_COVERAGE"])
    import coverage
    context = os.environ["PYTEST_CURRENT_TEST"].rsplit(" ", 1)[0]
    started = coverage.Coverage(
        data_file=os.environ["MUTANTS_DATA"], data_suffix=True, config_file=False,
        source=[os.path.join(os.path.dirname(__file__), "artesian")], context=context,
    )
    started.start()
    import atexit
    atexit.register(lambda: (started.stop(), started.save()))
"""


# The map


class Recorder:
    """A plugin of pytest: records coverage and duration of each test."""

    def __init__(self, coverage_):
        self.coverage = coverage_
        self.seconds = collections.Counter()
        self.left_out = set()

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self.left_out.add(report.nodeid)


def record(files, folder, target):
    """In a separate process: runs test files and adds their coverage to the map `target`."""
    import coverage
    import pytest

    package = folder / "python" / "artesian"
    data = folder / f"coverage-{os.getpid()}"
    os.environ.update(MUTANTS_COVERAGE=os.path.dirname(os.path.dirname(coverage.__file__)))
    os.environ.update(MUTANTS_DATA=str(data))
    started = coverage.Coverage(data_file=data, source=[str(package)], config_file=False)
    started.start()
    recorder = Recorder(started)
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", *files], plugins=[recorder])
    started.stop()
    started.save()
    started.combine(keep=True)
    started.load()
    found = started.get_data()
    lines = {}
    for name in found.measured_files():
        path = os.path.relpath(name, package)
        tests = found.contexts_by_lineno(name)
        lines[path] = {
            line: sorted({test for test in by if test and test not in recorder.left_out})
            for line, by in tests.items()
        }
    seconds = {t: round(s, 3) for t, s in recorder.seconds.items() if t not in recorder.left_out}
    target.write_text(json.dumps({"lines": lines, "seconds": seconds}))
    print(f"left out: {sorted(recorder.left_out)}", file=sys.stderr)


def in_child(function, *arguments, limit):
    """Runs the function in a fork of this process; returns its exit code, or None after `limit`
    seconds."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        code = 3
        try:
            code = function(*arguments) or 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def merged(maps):
    lines, seconds = {}, {}
    for one in maps:
        seconds |= one["seconds"]
        for path, tests in one["lines"].items():
            for line, ids in tests.items():
                lines.setdefault(path, {}).setdefault(int(line), []).extend(ids)
    return {"lines": lines, "seconds": seconds}


def map_of(work, folder, names):
    """The map of all test files that use the package; files that have not changed are not run
    again."""
    found = []
    python = folder / "python"
    changed = max(path.stat().st_mtime for path in PACKAGE.rglob("*.py"))
    (python / "covered_child.py").write_text(CHILD)
    (python / "sitecustomize.py").write_text("import covered_child\n")
    # hf.py has its own copy of this file
    (python / "covered.pth").write_text("import covered_child\n")
    for file in sorted(TESTS.glob("*_test.py")):
        if not USES_PACKAGE.search(file.read_text()) or (names and file.stem not in names):
            continue
        target = work / "map" / f"{file.stem}.json"
        target.parent.mkdir(exist_ok=True)
        if not target.exists() or target.stat().st_mtime < max(changed, file.stat().st_mtime):
            print(f"map: {file.name}", file=sys.stderr, flush=True)
            in_child(record, [f"tests/python/{file.name}"], folder, target, limit=900)
        if target.exists():
            found.append(json.loads(target.read_text()))
    for name in ("covered_child.py", "sitecustomize.py", "covered.pth"):
        (python / name).unlink()
    return merged(found)


# Running them


def tests_of(mutant, known, budget):
    """The tests that cover the line, cheapest first, for about this many seconds; and whether these
    are all. A line that runs at import counts as covered by all tests that cover its file."""
    by_line = known["lines"].get(mutant.path, {})
    everybody = sorted({test for tests in by_line.values() for test in tests})
    ids = by_line.get(mutant.line, []) if mutant.in_function else everybody
    chosen, total = [], 0.0
    for test in sorted(set(ids), key=lambda t: known["seconds"][t]):
        total += known["seconds"][test]
        if chosen and total > budget:
            break
        chosen.append(test)
    files = list(dict.fromkeys(test.split("::")[0] for test in chosen))
    ordered = [t for file in files for t in chosen if t.split("::")[0] == file]
    return ordered, len(chosen) == len(set(ids)), total


def run_tests(tests, log):
    """Runs tests in a fork. 0: they pass."""
    import pytest

    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(TESTS)  # names of tests are relative to its pytest.ini
    return int(pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", *tests]))


def judge(mutant, known, folder, budget):
    """How the mutant was noticed, or "survived", or "not covered"."""
    tests, whole, seconds = tests_of(mutant, known, budget)
    if not tests:
        return "not covered", ""
    place = folder / "python" / "artesian" / mutant.path
    before = place.read_bytes()
    place.write_text(mutant.source)
    log = folder / "log"
    try:
        code = in_child(run_tests, tests, log, limit=60 + 4 * seconds)
    finally:
        place.write_bytes(before)
    if code == 0:
        return "survived" if whole else f"survived {len(tests)} tests", ""
    if code == 4:
        raise SystemExit(f"pytest does not find these tests: make the map anew with --map; {log}")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.MULTILINE)
    return "timed out" if code is None else "noticed", failed[0] if failed else f"exit code {code}"


def load_first():
    """Loads what every test loads and no mutant changes."""
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
    from transformers.models.gpt2 import modeling_gpt2  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401


def drawn(arguments, sources):
    """The mutants: one each for N lines drawn at random, or all mutants of the given lines."""
    everything = [m for path, text in sources.items() for m in mutants_of(path, text)]
    by_line = collections.defaultdict(list)
    for mutant in everything:
        by_line[mutant.path, mutant.line].append(mutant)
    if arguments.line:
        wanted = [(line.split(":")[0], int(line.split(":")[1])) for line in arguments.line]
        return [m for place in wanted for m in by_line[place] if compiles(m)]
    random_ = random.Random(arguments.seed)
    result = []
    for place in random_.sample(sorted(by_line), len(by_line)):
        if len(result) == arguments.count:
            break
        usable = [mutant for mutant in by_line[place] if compiles(mutant)]
        if usable:
            result.append(random_.choice(usable))
    return result


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="lines to draw")
    parser.add_argument("--seed", type=int, default=None, help="of the draw")
    parser.add_argument("--line", action="append", help="FILE:LINE in place of a draw")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of the drawn ones")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for a mutant")
    parser.add_argument("--tests", nargs="*", help="test files for the map, without .py")
    parser.add_argument("--map", action="store_true", help="make the map anew, and stop")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "mutants")
    return parser.parse_args()


def main():
    arguments = parse()
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1 << 31)
    build = pathlib.Path(os.environ.get("ARTESIAN_BUILD_DIR", ROOT / "build"))
    extras = [ROOT / "dev" / f"requirements-{kind}.lock" for kind in ("mutants", "hf", "test")]
    for lock in extras:
        words = [ROOT / "dev" / "extras.sh", lock]
        sys.path.append(subprocess.run(words, check=True, stdout=-1, text=True).stdout.strip())
    folder = arguments.work / "build"
    make_copy(build, folder)
    os.environ["ARTESIAN_BUILD_DIR"] = str(folder)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    load_first()
    if arguments.map:
        shutil.rmtree(arguments.work / "map", ignore_errors=True)
    known = map_of(arguments.work, folder, arguments.tests)
    if arguments.map or not arguments.count:
        return 0
    sources = {
        str(file.relative_to(PACKAGE)): file.read_text() for file in sorted(PACKAGE.rglob("*.py"))
    }
    mutants = drawn(arguments, sources)[arguments.skip :]
    print(f"seed {arguments.seed}, {len(mutants)} mutants", flush=True)
    counts = collections.Counter()
    for number, mutant in enumerate(mutants, arguments.skip + 1):
        began = time.monotonic()
        verdict, by = judge(mutant, known, folder, arguments.budget)
        counts[verdict.split()[0]] += 1
        seconds = time.monotonic() - began
        print(f"{number}. {mutant.path}:{mutant.line} {mutant.what}: {verdict} {by} "
              f"({seconds:.0f} s)", flush=True)  # fmt: skip
        if verdict.startswith(("survived", "not covered")):
            before, after = sources[mutant.path].splitlines(), mutant.source.splitlines()
            sys.stdout.writelines(
                f"    {line}\n" for line in difflib.unified_diff(before, after, n=0, lineterm="")
                if not line.startswith(("---", "+++", "@@"))
            )  # fmt: skip
            sys.stdout.flush()
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
