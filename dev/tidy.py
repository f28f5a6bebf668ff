#!/usr/bin/env python3
"""Checks the rules of the tree that a compiler does not: python3 dev/tidy.py [ROOT]

With --words it prints, for each page of documentation, how many words it has and how many of its
sentences have more than 25; these are only figures, not limits.

Prints one line per fault, "path:line: what is wrong", and exits with 1 if there are any. If a file
or function exceeds a limit, split it. C++ is not parsed: heuristics rely on clang-format's layout.
It uses only the standard library, so that it runs before anything is installed.
tests/python/tidy_test.py checks that each kind of fault is found.
"""

import ast
import pathlib
import re
import subprocess
import sys

LINES_MAX = 800
LINES_MAX_OF = {"zero_to_fp32.py": 900}  # stored with every checkpoint, as one file
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
SENTENCE_WORDS = 25  # longer sentences count as long in --words

# What each room may include besides itself: names of rooms, names of folders (all rooms in them),
# and single headers. A file belongs to the deepest room above it. tests/ and bench/ may include
# everything.
LAYERS = {"base", "aio", "comm", "pinned", "kernels", "tiering"}
MAY_INCLUDE = {
    "base": set(),
    "aio": {"base"},
    "comm": {"base"},
    "pinned": {"base"},
    "kernels": {"base"},
    "tiering/disk": {"base", "aio", "pinned"},
    "tiering/device": {"base", "kernels", "pinned"},
    "tiering": LAYERS,
    "zero3/config": {"base", "aio/engine.h"},
    # The orders of a step know where state is, but not who decides that or moves it.
    "zero3/flow": {"base", "tiering/ring_order.h", "zero3/plan/placement.h"},
    "zero3/plan": {
        *("base", "zero3/config", "zero3/flow", "aio/priority.h", "kernels/gradient.h"),
        *("pinned/free_list.h", "tiering/ring_order.h", "tiering/route.h", "tiering/tier.h"),
        *("tiering/unit_slots.h", "tiering/disk/stripe.h", "tiering/snapshot_block.h"),
    },
    # The state and its passes are below checkpoints, which are below the step that saves them.
    "zero3/checkpoint": LAYERS
    | {
        *("zero3/config", "zero3/flow", "zero3/plan", "zero3/step/optimizer.h"),
        *("zero3/step/state_source.h", "zero3/step/sub_group_stream.h"),
        *("zero3/step/training_state.h", "zero3/step/weights.h"),
    },
    "zero3/step": LAYERS | {"zero3/config", "zero3/flow", "zero3/plan", "zero3/checkpoint"},
    "zero3/torch": LAYERS | {"zero3"},
    "models/data": LAYERS | {"zero3/plan", "models/file_io.h"},
    "models": LAYERS | {"zero3", "models/data"},
    "tools/shell": LAYERS | {"zero3/config"},
    "tools/doctor": LAYERS | {"tools/shell"},
    "tools/aio_bench": LAYERS | {"zero3/config", "tools/shell", "tools/doctor"},
    "tools/checkpoint": LAYERS | {"zero3", "models", "tools/shell"},
    "tools/train": LAYERS | {"zero3", "models", "tools/shell", "tools/checkpoint"},
    "tools/plan": LAYERS | {"zero3", "models", "tools/shell", "tools/train"},
    "tools": LAYERS | {"zero3", "models", "tools"},
    "python": LAYERS | {"zero3", "models"},
}
FOLDERS = {room.split("/")[0] for room in MAY_INCLUDE} | {"tests", "bench", "dev"}
WITHOUT_TORCH = LAYERS | {
    *("zero3/config", "zero3/flow", "zero3/plan", "zero3/step", "zero3/checkpoint"),
}
# Rooms that only make decisions: no threads, files, clocks or tensors.
PURE = {"zero3/config", "zero3/flow", "zero3/plan"}
IMPURE_HEADERS = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|atomic|future|chrono|fstream|filesystem|"
    r"ctime|unistd\.h|fcntl\.h|sys/.*|base/(file_system|clock|timeline|executor|kernel_files|"
    r"process_cpus|machine|control_group|log)\.h)$"
)

CPP = {".h", ".cpp", ".cuh", ".cu"}
CODE = CPP | {".py", ".sh"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
# The character classes keep these patterns from matching themselves.
UNFINISHED = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b(?!\s*\(?#\d+)")
MACHINE_PATH = re.compile(r"(?<![\w.$}/])/(roo[t]|hom[e]|wor[k]|User[s]|mn[t])/\w")
REGISTRY = re.compile(
    r"\b(pypi\.or[g]|pythonhosted\.or[g]|(deb|snapshot|security)\.debian\.or[g]|"
    r"download\.pytorch\.or[g]|anaconda\.or[g]|registry\.npmjs\.or[g])\b"
)
# Code indented by more than one blank after // is an example in a header, which is allowed.
DEAD_CPP = re.compile(
    r"^\s*// ?(return\b[^.]*;|[\w:.>-]+\([^()]*\);|[\w:][\w:<>*&.\[\] -]* = [^.]*;|[{}]|"
    r"(if|for|while|switch) \(.*\{|#\s*include\b.*)$"
)
DEAD_PYTHON = re.compile(
    r"^\s*#\s*(import [\w.]+( as \w+)?|from [\w.]+ import [\w, ]+|def \w+\(.*|"
    r"[\w.]+\([^()]*\)|[\w.]+ = [\w.]+\(.*\))$"
)
SCOPE = re.compile(r"(namespace|class|struct|union|enum)\b")
SCOPE_AT_END = re.compile(r"\b(namespace|class|struct)\b[^()]*$")  # after macros or requires(...)
CPP_ASSERTION = re.compile(r"\b(EXPECT_|ASSERT_|INSTANTIATE_)")
PYTHON_TEST = re.compile(r"test_\w+\.py|\w+_test\.py")
PYTHON_ASSERTION = re.compile(r"^\s*assert\b|pytest\.raises", re.MULTILINE)


def listed_files(root):
    """Relative paths of all files that are tracked or about to be; outside a git checkout, of all
    files."""
    if (root / ".git").exists():
        listing = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        command = ["git", "-C", root, *listing]
        names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return sorted({pathlib.Path(n) for n in names.split("\0") if n and (root / n).is_file()})
    return sorted(p.relative_to(root) for p in root.rglob("*") if p.is_file())


def room_of(path):
    """The name of the deepest room that contains the path, or None."""
    parts = path.split("/")
    names = ("/".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
    return next((name for name in names if name in MAY_INCLUDE), None)


def is_allowed(room, target):
    allowed = MAY_INCLUDE[room]
    above = target.split("/")
    return (
        room_of(target) == room
        or target in allowed
        or any("/".join(above[:depth]) in allowed for depth in range(1, len(above)))
    )


def include_faults(root, path, lines):
    room = room_of(path.as_posix())
    if room is None:
        if path.parts[0] in FOLDERS - {"tests", "bench", "dev"}:
            yield 1, f"{path.parts[0]}/ has rooms; it belongs into one of them"
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match[2]
        if target.startswith("fmt/") and path.suffix in {".h", ".cuh"}:
            yield number, "a header includes fmt, which is for sources"
        elif room in WITHOUT_TORCH and TORCH.match(target):
            yield number, f"{room}/ includes LibTorch ({target}); it starts at zero3/torch/"
        elif target.split("/")[0] in FOLDERS and "/" in target and not is_allowed(room, target):
            yield number, f"{room}/ includes {target}, but may only include what lies below it"
        elif room in PURE and IMPURE_HEADERS.match(target):
            yield number, f"{room}/ includes {target}, but only decides: no threads, files, clocks"
        elif match[1] == '"' and (root / path.parent / target).exists() and "/" not in target:
            yield number, f"include {target} by its path from the root"


def line_faults(path, lines):
    for number, line in enumerate(lines, 1):
        if path.suffix in CODE and len(line) > COLUMNS_MAX:
            yield number, f"{len(line)} columns, allowed {COLUMNS_MAX}"
        if UNFINISHED.search(line):
            yield number, "unfinished work without an issue number"
        if MACHINE_PATH.search(line):
            yield number, "absolute path of one machine"
        if REGISTRY.search(line):
            yield number, "name of a package registry's host"
        dead = DEAD_CPP if path.suffix in CPP else DEAD_PYTHON if path.suffix == ".py" else None
        if dead and dead.match(line):
            yield number, "commented-out code"


def blanked(text):
    """C++ text with comments, strings and preprocessor lines replaced by blanks; line breaks are
    kept."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|'
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        re.DOTALL | re.MULTILINE,
    )

    def blank(match):
        # A digit separator (1'000) is not a character literal; the digits do not matter here.
        return re.sub(r"[^\n]", " ", match[0])

    return pattern.sub(blank, text)


def cpp_functions(text):
    """Yields (first line, last line) of each outermost function, from its signature to the end of
    its body."""
    scopes = []  # for each open brace: "scope", "function", "inside" or "value"
    declaration, start = "", 1  # text since the last complete declaration, and its first line
    previous, line = "\n", 1
    for character in blanked(text):
        if character == "{":
            kind = brace_kind(scopes, declaration, previous)
            scopes.append((kind, start))
            if kind == "scope":
                declaration = ""
        elif character == "}" and scopes:
            kind, first = scopes.pop()
            if kind == "function":
                yield first, line
            if kind in ("scope", "function"):
                declaration = ""
        elif character == ";" and (not scopes or scopes[-1][0] == "scope"):
            declaration = ""
        elif not scopes or scopes[-1][0] == "scope":
            if not declaration.strip():
                start = line
            declaration += character
        line += character == "\n"
        previous = character


def brace_kind(scopes, declaration, previous):
    if scopes and scopes[-1][0] != "scope":
        return "inside"
    words = declaration.strip()
    if not previous.isspace() or words.endswith(("=", ",", "(")):
        return "value"  # a_{1}, = {1, 2}: the declaration continues after it
    if "(" not in words or SCOPE.match(words) or SCOPE_AT_END.search(words):
        return "scope"
    return "function"


def functions(path, text):
    if path.suffix in CPP:
        yield from cpp_functions(text)
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.lineno, node.end_lineno
    elif path.suffix == ".sh":
        for match in re.finditer(r"^\w+\(\) \{$.*?^\}$", text, re.DOTALL | re.MULTILINE):
            first = text.count("\n", 0, match.start()) + 1
            yield first, first + match[0].count("\n")


def size_faults(path, text, lines):
    if path.suffix not in CODE:
        return
    allowed = LINES_MAX_OF.get(path.name, LINES_MAX)
    if len(lines) > allowed:
        yield len(lines), f"{len(lines)} lines, allowed {allowed}"
    for first, last in functions(path, text):
        if last - first + 1 > FUNCTION_LINES_MAX:
            length = last - first + 1
            yield first, f"function of {length} lines, allowed {FUNCTION_LINES_MAX}"


def test_faults(path, text):
    if path.name.endswith(("_test.cpp", "_test.cu")) and not CPP_ASSERTION.search(text):
        yield 1, "test without an assertion"
    if PYTHON_TEST.match(path.name) and not PYTHON_ASSERTION.search(text):
        yield 1, "test without an assertion"


def faults(root, path):
    """Yields (line, message) for one file; nothing for binary files."""
    try:
        text = (root / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    lines = text.splitlines()
    if path.suffix in CPP:
        yield from include_faults(root, path, lines)
    yield from line_faults(path, lines)
    yield from size_faults(path, text, lines)
    yield from test_faults(path, text)


def prose_of(page):
    """A page's sentences, without code, tables, headings and Markdown marks."""
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not re.match(r"\s*[|#]|    ", line)]
    text = re.sub(r"\]\([^)]*\)|[`*_\[\]]", "", "\n".join(lines))
    return [each for each in re.split(r"(?<=[.!?:;])\s+|\n\s*\n", text) if each.strip()]


def print_words(root):
    total = 0
    print(f"{'words':>6} {'long':>5}  page")
    for path in listed_files(root):
        if path.suffix != ".md":
            continue
        page = (root / path).read_text()
        sentences = prose_of(page)
        long = sum(len(sentence.split()) > SENTENCE_WORDS for sentence in sentences)
        words = sum(any(map(str.isalnum, word)) for word in page.split())  # a table's bars are none
        total += words
        print(f"{words:6} {long / max(1, len(sentences)):5.0%}  {path}")
    print(f"{total:6}        in all; long: more than {SENTENCE_WORDS} words in a sentence")


def main(arguments):
    if arguments[:1] == ["--words"]:
        print_words(pathlib.Path(__file__).resolve().parents[1])
        return 0
    here = pathlib.Path(__file__).resolve().parents[1]
    root = pathlib.Path(arguments[0]).resolve() if arguments else here
    paths = listed_files(root)
    count = 0
    for path in paths:
        for line, message in faults(root, path):
            print(f"{path}:{line}: {message}")
            count += 1
    print(f"tidy: {len(paths)} files, {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
