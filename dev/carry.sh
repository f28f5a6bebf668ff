#!/usr/bin/env bash
# Makes one folder with the headers and libraries that a build needs besides the compiler, for
# machines without a package source:
#
#   dev/carry.sh PREFIX [BUILD]   then, there: cmake -DCMAKE_PREFIX_PATH=PREFIX ...
#
# BUILD: a build folder of these sources, with a CUDA toolkit: what dev/gpu_check.sh runs first goes
# along, stripped, so that nothing has to be built there (dev/gpu_check/carried.py).
#
# They are those of this machine's Debian release: the -dev packages of the class `build` in
# dev/packages.txt, and libaio. Nothing is installed here, and root is not needed. Libraries are
# shared where Debian has them so, as in any build here, and found by CMake's build rpath: the
# static libxxhash lacks the choice of instruction set at run time. PREFIX/carried.txt lists
# packages and versions; a PREFIX that has it is replaced.
# Exit code 2: the folder is somebody else's, or a package cannot be had.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
size_max_mib=50  # with programs, what is lent takes 64 with the checkout

say() { printf 'carry: %s\n' "$*" >&2; }
fail() {
  printf 'carry: error: %s\n' "$*" >&2
  exit 2
}

# Prints a package, and the libraries of exactly its version that it cannot be without.
with_its_libraries() {
  local package
  for package in "$@"; do
    echo "$package"
    apt-cache show --no-all-versions "$package" | sed -n 's/^Depends: //p' | tr ',' '\n' |
      sed -n 's/^ *\(lib[a-z0-9.+-]*\) (= .*/\1/p'
  done | sort -u
}

# Each link must lead to its library, which then stands for the static one, too.
keep_shared() {
  local link
  while IFS= read -r link; do
    [ -e "$link" ] || fail "${link#"$1"/}: no package among these has the library itself"
    rm -f "${link%.so}.a"
  done < <(find "$1" -type l -name 'lib*.so')
}

[ $# -ge 1 ] && [ $# -le 2 ] && [ "${1#-}" = "$1" ] && [ -n "$1" ] ||
  fail "arguments: got \"$*\", allowed one folder, and one of a build; run dev/carry.sh PREFIX"
[ $# -lt 2 ] || [ -e "$2/CMakeCache.txt" ] ||
  fail "$2: got no CMakeCache.txt in it, allowed one folder of a build"
prefix="$(realpath -m -- "$1")"
[ ! -e "$prefix" ] || [ -e "$prefix/carried.txt" ] ||
  { [ -d "$prefix" ] && [ -z "$(ls -A "$prefix")" ]; } ||
  fail "$prefix: got a folder with other things in it, allowed a new one, an empty one, or one" \
    "that this script made; choose another"
command -v apt-get dpkg-deb >/dev/null || fail "apt-get: not found; run this on a Debian system"

# Python's headers belong to the machine's own Python; without them its package is not built.
mapfile -t wanted < <(sed -n '/python3/d; s/^build \+\(.*-dev\)$/\1/p' "$root/dev/packages.txt")
mapfile -t packages < <(with_its_libraries "${wanted[@]}" libaio-dev)
mkdir -p "$(dirname "$prefix")"
work="$(mktemp -d "$prefix.XXXXXX")"
trap 'rm -rf "$work"' EXIT
say "packages: ${packages[*]}"
mkdir "$work/packages" "$work/unpacked"
(cd "$work/packages" && apt-get download "${packages[@]}" >"$work/log" 2>&1) || {
  cat "$work/log" >&2
  fail "apt-get download failed: see above; apt-get update brings lists that are missing or old"
}
for file in "$work"/packages/*.deb; do
  dpkg-deb -x "$file" "$work/unpacked"
  dpkg-deb -W --showformat='${Package} ${Version} ${Architecture}\n' "$file"
done >"$work/carried.txt"
result="$work/unpacked/usr"
keep_shared "$result"
find "$result" -mindepth 1 -maxdepth 1 -name src -exec rm -rf {} +  # a link to Debian's googletest
find "$result/share" -mindepth 1 -maxdepth 1 ! -name cmake ! -name doc -exec rm -rf {} +
find "$result/share/doc" ! -type d ! \( -name copyright -type f \) -delete  # licences go along
mv "$work/carried.txt" "$result/carried.txt"
[ $# -lt 2 ] || python3 -B "$root/dev/gpu_check/carried.py" "$root" "$2" "$result/programs" ||
  fail "$2: see above"

size_mib="$(du -sm "$result" | cut -f1)"
[ "$size_mib" -lt "$size_max_mib" ] ||
  fail "$prefix: got $size_mib MiB, allowed less than $size_max_mib"
chmod 755 "$result"
rm -rf "$prefix"
mv "$result" "$prefix"
say "$prefix: ${#packages[@]} packages, $size_mib MiB"
