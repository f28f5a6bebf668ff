"""Proves that dev/mutants.py changes one thing at a time, leaves out what is not run, and knows
which tests to run for a line."""

import ast
import difflib

import mutants

TEXT = '''"""A page."""
from typing import Any

LIMIT = 3


def clip(value: Any, low: int = 0) -> Any:
    """Says what it does."""
    if value is None or value < low:
        raise ValueError(f"got {value + 1}, allowed {low}")
    for part in value.parts:
        if not part.ready:
            continue
        value.total += part.size * 2
    log("clipped")
    return value
'''


def test_each_mutant_changes_one_line_that_runs():
    found = list(mutants.mutants_of("page.py", TEXT))
    changed = set()
    for mutant in found:
        ast.parse(mutant.source)
        diff = list(difflib.ndiff(TEXT.splitlines(), mutant.source.splitlines()))
        assert [line[2:].strip() for line in diff if line.startswith("- ")], mutant
        assert sum(line.startswith("- ") for line in diff) == 1, diff
        changed.add((mutant.line, mutant.what))
    assert {line for line, _ in changed} == {4, 7, 9, 10, 12, 13, 14, 15, 16}
    assert {(9, "comparison"), (9, "and, or"), (9, "branch turned"), (10, "statement"),
            (12, "not"), (13, "statement"), (14, "operator"), (14, "statement"), (15, "word"),
            (15, "statement"), (16, "returned value"), (7, "constant")} <= changed  # fmt: skip
    assert not any("got" in mutant.what for mutant in found)  # texts of messages are not changed


def test_the_cheapest_tests_that_cover_a_line_are_run():
    seconds = {"a_test.py::slow": 50.0, "a_test.py::quick": 0.1, "b_test.py::other": 1.0}
    known = {"seconds": seconds, "lines": {"page.py": {9: list(seconds), 16: ["b_test.py::other"]}}}

    def tests_of(line, budget):
        return mutants.tests_of(mutants.Mutant("page.py", line, "", ""), known, budget)

    assert tests_of(16, 60) == (["b_test.py::other"], True, 1.0)
    chosen, whole, _ = tests_of(9, 10)
    assert (chosen, whole) == (["a_test.py::quick", "b_test.py::other"], False)
    # grouped by file, so that a file's fixtures are set up once
    chosen, whole, _ = tests_of(9, 100)
    assert whole and chosen == ["a_test.py::quick", "a_test.py::slow", "b_test.py::other"]
    at_import = mutants.Mutant("page.py", 4, "", "", in_function=False)
    assert mutants.tests_of(at_import, known, 10)[0] == ["a_test.py::quick", "b_test.py::other"]
    assert tests_of(5, 10)[0] == []
    inside = {m.line for m in mutants.mutants_of("page.py", TEXT) if m.in_function}
    assert inside == {9, 10, 12, 13, 14, 15, 16}
