#!/usr/bin/env bash
# Runs `make demo` of what is committed from nothing: in a bare Debian 12 that has git, make and
# ca-certificates, with an empty home. Each line is printed with the seconds since `git clone`
# began; docs/performance.md has the figures. Needs root, debootstrap and a network.
#
#   dev/check_demo.sh FOLDER     FOLDER: for the system, 8 GB; must not exist
#   STEPS=5 dev/check_demo.sh FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "check_demo: error: $*" >&2
  exit 2
}

# In mount and process namespaces of its own: what it mounts goes when it ends.
in_bare_system() {
  mount --rbind "$system" "$system"  # a mount of its own, as every system's root is
  mount -t proc proc "$system/proc"
  mount -t sysfs sysfs "$system/sys"
  mkdir -p "$system/dev/shm" "$system/origin"
  mount -t tmpfs tmpfs "$system/dev/shm"
  mount --bind "$(git rev-parse --path-format=absolute --git-common-dir)" "$system/origin"
  mount -o remount,bind,ro "$system/origin"
  exec chroot "$system" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt STEPS="${STEPS:-30}" sh -ec \
    "cd /root && git -c safe.directory='*' clone --quiet --no-checkout /origin artesian &&
     cd artesian && git checkout --quiet $1 && exec make demo"
}

if [ "${1:-}" = --inside ]; then
  system="$2"
  in_bare_system "$3"
fi
[ $# -eq 1 ] || fail "arguments: got $#, allowed a folder"
[ ! -e "$1" ] || fail "$1: exists; its packages would be there already"
[ "$(id -u)" -eq 0 ] || fail "this user: got no right to mount, allowed root"
command -v debootstrap >/dev/null || fail "debootstrap: not found; apt-get install debootstrap"
mkdir -p "$1"
system="$(cd "$1" && pwd)"
debootstrap --variant=minbase --include=git,make,ca-certificates bookworm "$system" >&2
# A proxy in the way may have a certificate of its own.
cp /etc/ssl/certs/ca-certificates.crt "$system/etc/ssl/certs/"
cp /etc/resolv.conf "$system/etc/resolv.conf"
begun="$(date +%s)"
unshare --mount --pid --fork --kill-child "$0" --inside "$system" "$(git rev-parse HEAD)" \
  2>&1 </dev/null | while IFS= read -r line; do
  printf '%5d s  %s\n' "$(($(date +%s) - begun))" "$line"
done
echo "check_demo: make demo took $(($(date +%s) - begun)) s from git clone on; remove $system"
