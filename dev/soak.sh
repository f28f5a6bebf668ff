#!/usr/bin/env bash
# The long part of the suite: every test that has a long version, which ARTESIAN_SOAK=1 asks for,
# one after the other, with its progress on the terminal. Called through dev/setup.sh:
#
#   dev/soak.sh [NAME...]    only the tests whose name contains one of these
#
# A test program that reads the variable is run whole: 4,608 runs of the equality product, 1,000
# steps with flat memory, and the long versions of others. SOAK_MINUTES bounds each program (default
# 60); one that is cut off has failed. docs/reliability.md says how long they take.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root="$PWD"
export ARTESIAN_SOAK=1
minutes="${SOAK_MINUTES:-60}"

wanted() {
  [ $# -gt 1 ] || return 0
  local name="$1" part
  shift
  for part in "$@"; do
    case "$name" in *"$part"*) return 0 ;; esac
  done
  return 1
}

dev/build.sh release || exit 1
mkdir -p build/soak && cd build/soak || exit 1
failed=() passed=0
run() {
  local name="$1" begin="$SECONDS"
  shift
  printf '\nsoak: %s\n' "$name" >&2
  if timeout --signal=TERM "${minutes}m" "$@" </dev/null; then
    passed=$((passed + 1))
    printf 'soak: %s passed, %d s\n' "$name" "$((SECONDS - begin))" >&2
  else
    failed+=("$name")
    printf 'soak: %s FAILED, %d s\n' "$name" "$((SECONDS - begin))" >&2
  fi
}

while read -r source; do
  name="${source#tests/}"
  wanted "$name" "$@" || continue
  case "$name" in
    *_test.cpp) program="${name%.cpp}"; run "$name" "$root/build/tests/${program//\//_}" ;;
    python/*.py) run "$name" python3 -m pytest "$root/$source" --color=no -q ;;
  esac
done < <(cd "$root" &&
  grep -rlE --include='*_test.cpp' --include='*_test.py' 'ARTESIAN_SOAK|soaking\(\)' tests | sort)

printf '\nsoak: %d passed, %d failed%s\n' "$passed" "${#failed[@]}" "${failed:+: ${failed[*]}}"
[ ${#failed[@]} -eq 0 ] && [ "$passed" -gt 0 ]
