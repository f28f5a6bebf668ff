#!/usr/bin/env bash
# Installs what a build needs and is missing, then runs a command with it:
#
#   dev/setup.sh [--with CLASS]... COMMAND [ARGUMENT...]     CLASS: more of dev/packages.txt
#
# Debian packages (dev/packages.txt) are installed when we are root or have sudo without a
# password; otherwise they are named, and we stop. The Python environment lies outside the clone,
# is named by the hash of everything that decides its content, and is reused by every clone. It is
# built in place (environments cannot be moved), under a lock, and counts once its marker exists.
#
# COMMAND sees the environment's programs (cmake, ninja, pytest, python3) first on PATH, and
#   ARTESIAN_TORCH_DIR  folder of the torch package to build against
#   ARTESIAN_PYTHON     the environment's interpreter
#
# A torch the user already has is used instead of the pinned one: ARTESIAN_TORCH_DIR if set, else
# that of the active virtual environment; 2.11 to 2.15. Everything said here goes to stderr.
# Exit code 2: something is missing or not usable, and the last line says what to do.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
home="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"
cache="${XDG_CACHE_HOME:-$home/.cache}/artesian"
# Measured: 4.8 GB installed, beside 2.6 GB of wheels until they are, which pip may also keep.
torch_environment_mib=9000
plain_environment_mib=1000

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  printf 'setup: error: %s\n' "$*" >&2
  exit 2
}

# Prints the packages of the named classes.
packages_for() {
  local class
  for class in "$@"; do sed -n "s/^$class \+//p" "$root/dev/packages.txt"; done
}

# Prints those of the named packages that are not installed.
missing_among() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      echo "$package"
  done
}

install_packages() {
  local required optional=() missing as_root=() class required_for=(build) optional_for=(speed)
  command -v dpkg-query >/dev/null || {
    say "not a Debian system: install the equivalents of dev/packages.txt yourself"
    return
  }
  for class in "${classes[@]}"; do
    if [ "$class" = bench ]; then
      optional_for+=(bench)
    else
      required_for+=("$class")
    fi
  done
  mapfile -t required < <(missing_among $(packages_for "${required_for[@]}"))
  mapfile -t optional < <(missing_among $(packages_for "${optional_for[@]}"))
  missing=("${required[@]}" "${optional[@]}")
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2>/dev/null; then
      as_root=(sudo -n)
    elif [ ${#required[@]} -eq 0 ]; then
      return 0  # what is missing makes builds slower, or leaves a comparison out
    else
      fail "missing Debian packages; run: apt-get install --no-install-recommends ${missing[*]}"
    fi
  fi
  say "installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update >&2 || say "apt-get update failed; trying with the lists we have"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes \
    --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" >&2 </dev/null ||
    fail "apt-get could not install: ${missing[*]}"
}

# Prints "2.11.0" for a torch folder, or nothing if it is none.
torch_version() {
  sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$1/version.py" 2>/dev/null || true
}

torch_is_supported() {
  case "$(torch_version "$1")" in
    2.11.* | 2.12.* | 2.13.* | 2.14.* | 2.15.*) [ -e "$1/lib/libtorch_cpu.so" ] ;;
    *) false ;;
  esac
}

# Sets torch_dir to a torch of the user's, or leaves it empty.
find_torch() {
  torch_dir=""
  if [ -n "${ARTESIAN_TORCH_DIR:-}" ]; then
    torch_is_supported "$ARTESIAN_TORCH_DIR" ||
      fail "ARTESIAN_TORCH_DIR: $ARTESIAN_TORCH_DIR: got version" \
        "\"$(torch_version "$ARTESIAN_TORCH_DIR")\", allowed 2.11 to 2.15 (the folder that holds" \
        "lib/ and version.py); unset it to install the pinned one"
    torch_dir="$(cd "$ARTESIAN_TORCH_DIR" && pwd)"
  elif [ -n "${VIRTUAL_ENV:-}" ]; then
    local candidate
    for candidate in "$VIRTUAL_ENV"/lib/python3*/site-packages/torch; do
      if torch_is_supported "$candidate"; then
        torch_dir="$candidate"
      fi
    done
    [ -n "$torch_dir" ] ||
      say "the active environment has no torch 2.11 to 2.15: using one with the pinned torch"
  fi
}

require_free_space() {
  local free_mib
  free_mib="$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')"
  [ "$free_mib" -ge "$1" ] ||
    fail "$cache: $free_mib MiB free, $1 MiB needed for the Python environment; free some" \
      "space or set XDG_CACHE_HOME to a folder on a larger disk"
}

create_environment() {
  local locks=("$@") needed_mib="$plain_environment_mib" arguments=() file
  [ -n "$torch_dir" ] || needed_mib="$torch_environment_mib"
  rm -rf "$environment"  # an earlier attempt that did not finish
  require_free_space "$needed_mib"
  say "creating the Python environment in $environment"
  [ -n "$torch_dir" ] || say "about 3 GB to download and 5 GB to unpack; this happens once"
  python3 -m venv "$environment" >&2 || fail "python3 -m venv failed: see above"
  for file in "${locks[@]}"; do arguments+=(-r "$file"); done
  # No bytecode up front: most of it is never imported. Downloads go beside, since /tmp is often
  # small. The lock is not passed on.
  mkdir -p "$environment/tmp"
  TMPDIR="$environment/tmp" "$environment/bin/python3" -m pip install --no-deps --no-compile \
    "${arguments[@]}" >&2 </dev/null 9>&- || {
    rm -rf "$environment"
    fail "pip could not install ${locks[*]#"$root"/}: see above; run the command again to retry"
  }
  rm -rf "$environment/tmp"
  if [ -n "$torch_dir" ]; then
    # Behind our own packages, so that only what we lack comes from there.
    dirname "$torch_dir" >"$(echo "$environment"/lib/python3*/site-packages)/user_torch.pth"
  fi
  touch "$environment/complete"
}

prepare_environment() {
  local locks=("$root/dev/requirements.lock") key
  [ -n "$torch_dir" ] || locks+=("$root/dev/requirements-torch.lock")
  key="$({ cat "${locks[@]}" && python3 --version && echo "$torch_dir"; } | sha256sum | cut -c1-16)"
  environment="$cache/env-$key"
  [ ! -e "$environment/complete" ] || return 0
  mkdir -p "$cache" || fail "$cache: cannot create the cache folder; set XDG_CACHE_HOME"
  exec 9>"$environment.lock"
  flock --nonblock 9 || { say "waiting for another set-up of $environment" && flock 9; }
  [ -e "$environment/complete" ] || create_environment "${locks[@]}"
  exec 9>&-
}

# Lets `python3 -m artesian_tokenize` work there. `artesian train` runs its own tree's all the same.
install_modules() {
  local module=artesian_tokenize.py folder
  folder="$(echo "$environment"/lib/python3*/site-packages)"
  cmp -s "$root/python/$module" "$folder/$module" && return
  # Renamed when it is whole: another clone's set-up may do the same now.
  { cp "$root/python/$module" "$folder/.$module.$$" &&
    mv -f "$folder/.$module.$$" "$folder/$module"; } 2>/dev/null ||
    say "cannot write into $folder: python3 -m artesian_tokenize may be missing there"
}

classes=()
while [ "${1:-}" = --with ]; do
  [ -n "$(packages_for "${2:-}")" ] ||
    fail "--with: got \"${2:-}\", allowed the classes of dev/packages.txt"
  classes+=("$2")
  shift 2
done
install_packages
find_torch
prepare_environment
install_modules
export ARTESIAN_TORCH_DIR="${torch_dir:-$(echo "$environment"/lib/python3*/site-packages/torch)}"
export ARTESIAN_PYTHON="$environment/bin/python3"
export PATH="$environment/bin:$PATH"
unset PYTHONHOME VIRTUAL_ENV
exec "$@"
