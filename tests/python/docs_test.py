"""Proves that docs/python-tests.md names tests that are there: functions and classes of Python's,
and tests of C++'s."""

import re

import pytest
from build_folder import ROOT

PAGE = (ROOT / "docs" / "python-tests.md").read_text()
NAMES = sorted(set(re.findall(r"`(\w+_test)::(\w+)`", PAGE)))


def test_all_names_are_in_the_form_that_is_looked_for():
    assert len(NAMES) > 80
    assert PAGE.count("::") == len(re.findall(r"`\w+_test::(\w+|…)`", PAGE))


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMES}))
def test_what_the_page_names_is_there(file):
    found = [path for path in (ROOT / "tests").rglob(f"{file}.*") if path.suffix in (".py", ".cpp")]
    assert found
    text = "\n".join(path.read_text() for path in found)
    for name in (name for known, name in NAMES if known == file):
        form = rf"^(def {name}\(|class {name}\b|TEST\w*\(\w+, {name}\))"
        assert re.search(form, text, re.MULTILINE), name
