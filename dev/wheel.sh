#!/usr/bin/env bash
# `make wheel`: builds the Python package into dist/, against the environment's torch. Called
# through dev/setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
lock="dev/requirements-wheel.lock"
tools="build-wheel/tools-$(sha256sum "$lock" | cut -c1-12)"
if [ ! -e "$tools/complete" ]; then
  rm -rf "$tools"
  "$ARTESIAN_PYTHON" -m pip install --quiet --no-deps --target "$tools" -r "$lock" >&2
  touch "$tools/complete"
fi
PYTHONPATH="$PWD/$tools" CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" \
  "$ARTESIAN_PYTHON" -m pip wheel --no-deps --no-build-isolation --wheel-dir dist . >&2
ls dist/artesian-*.whl
