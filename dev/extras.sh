#!/usr/bin/env bash
# Prints a folder with the packages of a lock file, beside the Python environment and without it, so
# that what only some tests and tools need makes no new environment. Installs them where they are
# missing. Called through dev/setup.sh:   dev/extras.sh dev/requirements-hf.lock
set -euo pipefail
python="${ARTESIAN_PYTHON:-$(command -v python3)}"
lock="$1"
folder="$(dirname "$(dirname "$(dirname "$python")")")/extras-$(sha256sum "$lock" | cut -c1-16)"
exec 9>"$folder.lock"
flock 9
if [ ! -e "$folder/complete" ]; then
  rm -rf "$folder"
  "$python" -m pip install --quiet --no-deps --no-compile --target "$folder" -r "$lock" >&2 9>&-
  touch "$folder/complete"
fi
echo "$folder"
