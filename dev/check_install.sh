#!/usr/bin/env bash
# Proves that the library is one: installs into empty folders, whole and without LibTorch, builds
# the examples against them as a stranger would, runs them and looks at what they print. Called
# through dev/setup.sh, so that cmake, ninja and ARTESIAN_TORCH_DIR are there.
#
#   dev/check_install.sh [FOLDER]     where to work; default: a new one, removed at the end
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source="$PWD"
work="${1:-$(mktemp -d "$PWD/build-install-XXXXXX")}"
[ $# -gt 0 ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
rm -rf "$work"/{first-place,plain,whole,disk,refused}

fail() {
  echo "check_install: error: $*" >&2
  exit 1
}

quietly() {
  "$@" >"$work/log" 2>&1 || { tail -30 "$work/log" >&2 && fail "$*"; }
}
configure() { quietly cmake -G Ninja -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" "$@"; }
build() { quietly cmake --build "$@"; }

# An installed file may name neither the tree, nor the build, nor a library's place.
expect_relocatable() {
  local prefix="$1" found
  # One file names the LibTorch it was built with, which is taken only where it still is.
  found="$(grep -rlE --exclude=built_with.cmake "$source|$ARTESIAN_TORCH_DIR|/usr/lib/" \
    "$prefix"/lib*/cmake || true)"
  [ -z "$found" ] || fail "paths of this machine in $found"
  found="$(grep -rlE -- '-Werror|-Wall|ffp-contract|fsanitize' "$prefix"/lib*/cmake || true)"
  [ -z "$found" ] || fail "our compile flags in $found"
}

# Without LibTorch: the lower layers alone, moved after installing, and a program on top of them.
configure -S . -B "$work/plain-build" -DCMAKE_BUILD_TYPE=Release -DARTESIAN_TORCH=OFF \
  -DARTESIAN_CUDA=OFF -DARTESIAN_PYTHON="$ARTESIAN_PYTHON"
build "$work/plain-build" --target installed
cmake --install "$work/plain-build" --prefix "$work/first-place" >/dev/null
mv "$work/first-place" "$work/plain"
expect_relocatable "$work/plain"
configure -S examples/tiering_only -B "$work/tiering_only" -DCMAKE_PREFIX_PATH="$work/plain"
grep -qi torch "$work/tiering_only/CMakeCache.txt" && fail "LibTorch was looked for"
build "$work/tiering_only"
mkdir -p "$work/disk"
"$work/tiering_only/external_sort" "$work/disk" 64 8 | tee "$work/sorted"
grep -qx 'sorted: yes' "$work/sorted" || fail "external_sort did not sort"
grep -q 'NVMe read 134.2 MB, written 134.2 MB' "$work/sorted" || fail "external_sort: bytes moved"
[ -z "$(ls -A "$work/disk")" ] || fail "external_sort left $(ls -A "$work/disk")"
# What is not installed is said to be so.
sed 's/COMPONENTS tiering/COMPONENTS zero3/' examples/tiering_only/CMakeLists.txt \
  >"$work/CMakeLists.txt"
if (configure -S "$work" -B "$work/refused" -DCMAKE_PREFIX_PATH="$work/plain") 2>/dev/null; then
  fail "zero3 was found where it is not"
fi
grep -q 'ARTESIAN_TORCH=OFF' "$work/log" || fail "no advice: $(cat "$work/log")"

# With LibTorch: a trainer with a model of its own, and the installed programs.
build build --target installed
cmake --install build --prefix "$work/whole" >/dev/null
expect_relocatable "$work/whole"
configure -S examples/own_trainer -B "$work/own_trainer" -DCMAKE_PREFIX_PATH="$work/whole" \
  -DARTESIAN_TORCH_DIR="$ARTESIAN_TORCH_DIR"
build "$work/own_trainer"
cp examples/own_trainer/ds_config.json "$work"
(cd "$work" && own_trainer/own_trainer ds_config.json 30) | tee "$work/trained"
awk '/^loss .* -> / { exit !($4 + 0 < $2 / 2 && $7 > 500 && $10 > 500) }' "$work/trained" ||
  fail "own_trainer: the loss did not halve, or NVMe did not move 500 MB each way"
[ ! -e "$work/own-trainer-nvme" ] || fail "own_trainer left files"
# Stopped after 20 steps, it goes on to what the run that was not has.
rm -rf "$work/checkpoints"
(cd "$work" && own_trainer/own_trainer ds_config.json 20 checkpoints) >/dev/null
(cd "$work" && own_trainer/own_trainer ds_config.json 30 checkpoints) | tee "$work/went-on"
grep -q '^goes on from global_step20$' "$work/went-on" || fail "own_trainer did not go on"
last_step() { sed -n 's/^\(step  30 .*\)  [0-9.]* s a step$/\1/p' "$1"; }
[ -n "$(last_step "$work/trained")" ] || fail "own_trainer printed no step 30"
[ "$(last_step "$work/trained")" = "$(last_step "$work/went-on")" ] ||
  fail "own_trainer went on to something else"
"$work/whole/bin/artesian" --version
"$work/whole/bin/aio_bench" --help >/dev/null || fail "the installed aio_bench does not run"
echo "check_install: all well"
