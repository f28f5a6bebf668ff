#!/usr/bin/env bash
# `make wheel`: builds the Python package into dist/, against the environment's torch. Called
# through dev/setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools="$(dev/extras.sh dev/requirements-wheel.lock)"
PYTHONPATH="$tools" CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" \
  "$ARTESIAN_PYTHON" -m pip wheel --no-deps --no-build-isolation --wheel-dir dist . >&2
ls dist/artesian-*.whl
