#!/usr/bin/env bash
# Layout, rules of the tree and clang-tidy over everything, ruff and mypy over the Python package:
# the checks of code that no test runs.
# Called through dev/setup.sh by `make lint`.
#
#   dev/lint.sh [--layout]     --layout: only what takes seconds (format and dev/tidy.py)
#
# Every check runs even after one failed; exit code 1 if any did.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=()

check() {
  local name="$1"
  shift
  echo "== $name"
  "$@" || failed+=("$name")
}

format_check() {
  local files
  mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.cuh' '*.cu')
  clang-format-14 --dry-run -Werror "${files[@]}" && echo "${#files[@]} files are formatted"
}

# Sources only: each header is checked where it is included. One file a run: clang-tidy 14 takes the
# va_list of a second one for uninitialised. clang does not know one of g++'s flags.
clang_tidy_check() {
  local files
  mapfile -t files < <(git ls-files '*.cpp' | grep -vE '^(tests|examples)/')
  printf '%s\0' "${files[@]}" |
    xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build-lint --quiet --warnings-as-errors='*' \
      --extra-arg=-Wno-unknown-warning-option 2>/dev/null &&
    echo "${#files[@]} sources, nothing found"
}

# The package alone; pyproject.toml says by which rules.
python_check() {
  local tools
  tools="$(dev/extras.sh dev/requirements-lint.lock)" || return 1
  "$tools/bin/ruff" check --no-cache python/artesian examples/python &&
    "$tools/bin/ruff" format --no-cache --check --quiet python/artesian examples/python &&
    PYTHONPATH="$tools" python3 -m mypy --cache-dir build/mypy
}

check "format" format_check
check "tidy" python3 dev/tidy.py
if [ "${1:-}" != --layout ]; then
  # Each source with a compile command of its own, so that one which lacks an include is noticed.
  cmake --preset release -B build-lint -DARTESIAN_JOINED=OFF \
    -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" \
    -DARTESIAN_TORCH_DIR="$ARTESIAN_TORCH_DIR" -DARTESIAN_PYTHON="$ARTESIAN_PYTHON" \
    >/dev/null || exit 1
  check "clang-tidy" clang_tidy_check
  check "Python" python_check
fi

if [ ${#failed[@]} -gt 0 ]; then
  echo "lint failed: ${failed[*]}"
  exit 1
fi
echo "lint: nothing found"
