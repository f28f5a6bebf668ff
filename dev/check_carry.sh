#!/usr/bin/env bash
# Proves that dev/carry.sh carries all that is needed: runs dev/gpu_check.sh on what is
# committed, without network, in a bare Debian that has a compiler and Python but none of our -dev
# packages. Torch, CMake, ninja and the CUDA toolkit are this machine's, mounted read-only. Needs
# root and debootstrap; called through dev/setup.sh.
#
#   dev/check_carry.sh FOLDER [ARGUMENT...]     FOLDER: kept for the next time, 700 MB without the
#                                                 build; arguments of gpu_check.sh, else: build test
#   dev/check_carry.sh --programs BUILD FOLDER [ARGUMENT...]
#                                               brings programs along, into a system without a
#                                                 compiler; without arguments: first --bench-on-cpu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "check_carry: error: $*" >&2
  exit 2
}

# In mount, network and process namespaces of its own: what it mounts goes when it ends.
in_bare_system() {
  local environment packages torch place
  mount --rbind "$system" "$system"  # a mount of its own, as every system's root is
  environment="$(dirname "$(dirname "$ARTESIAN_PYTHON")")"
  packages="$(echo "$environment"/lib/python3*/site-packages)"
  torch="$(dirname "$ARTESIAN_TORCH_DIR")"  # not always the environment's
  for place in "$environment" "$torch" "$(readlink -f /usr/local/cuda)"; do
    mkdir -p "$system$place"
    mount --bind "$place" "$system$place"
    mount -o remount,bind,ro "$system$place"
  done
  ln -sfn "$place" "$system/usr/local/cuda"
  mkdir -p "$system/ccache"
  if command -v ccache >/dev/null; then
    mount --bind "$(ccache --get-config cache_dir)" "$system/ccache"
  fi
  mount -t proc proc "$system/proc"
  mount -t sysfs sysfs "$system/sys"
  mount -t tmpfs tmpfs "$system/dev/shm"
  [ "$(tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ')" = lo ] || fail "there is a network"
  exec chroot "$system" /usr/bin/env -i HOME=/tmp PYTHONPATH="$packages:$torch" \
    PATH="$packages/cmake/data/bin:/usr/local/bin:/usr/bin:/bin:$environment/bin" \
    CCACHE_DIR=/ccache CCACHE_BASEDIR=/checkout CCACHE_NOHASHDIR=1 \
    /checkout/dev/gpu_check.sh --prefix /prefix --out /results "$@"
}

if [ "${1:-}" = --inside ]; then
  system="$2"
  shift 2
  in_bare_system "$@"
fi
build="" system_packages=g++,make,python3,ccache
if [ "${1:-}" = --programs ] && [ $# -gt 1 ]; then
  build="$(cd "$2" && pwd)" system_packages=python3
  shift 2
fi
[ $# -gt 0 ] || fail "arguments: got none, allowed a folder and what gpu_check.sh takes"
[ "$(id -u)" -eq 0 ] || fail "this user: got no right to mount, allowed root"
command -v debootstrap >/dev/null || fail "debootstrap: not found; apt-get install debootstrap"
mkdir -p "$1"
system="$(cd "$1" && pwd)"
shift
[ -e "$system/bare" ] || {
  debootstrap --variant=minbase --include="$system_packages" bookworm "$system" >&2
  touch "$system/bare"
}
if chroot "$system" dpkg-query -W 2>/dev/null | cut -f1 | cut -d: -f1 |
  grep -xF -f <(sed -n 's/^[a-z]\+ \+\(.*-dev\)$/\1/p' dev/packages.txt); then
  fail "$system: has the packages above, allowed a system without them"
fi
[ -z "$build" ] || ! chroot "$system" /bin/sh -c "command -v g++ c++" >/dev/null ||
  fail "$system: has a compiler, allowed a system without one"
dev/carry.sh "$system/prefix" ${build:+"$build"}
mkdir -p "$system/checkout"
find "$system/checkout" -mindepth 1 -maxdepth 1 ! -name build-gpu -exec rm -rf {} +
git archive HEAD | tar -x -C "$system/checkout"
if [ $# -eq 0 ]; then
  [ -n "$build" ] && set -- first --bench-on-cpu || set -- build test
fi
unshare --mount --net --pid --fork --kill-child "$0" --inside "$system" "$@"
echo "check_carry: gpu_check.sh $* is well; results in $system/results"
