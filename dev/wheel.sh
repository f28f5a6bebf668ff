#!/usr/bin/env bash
# `make wheel`: builds the Python package into dist/, against the environment's torch, and beside it
# the small wheel that has the command `deepspeed`. Called
# through dev/setup.sh. What it compiles is that of `make build`, in the same folder, so after one
# there is little left to do; `pip install .` compiles everything by itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools="$(dev/extras.sh dev/requirements-wheel.lock)"
dev/build.sh release artesian_python
parts=build/wheel-parts
rm -rf "$parts"
cmake --install build --component python --prefix "$parts" >&2
PYTHONPATH="$tools" "$ARTESIAN_PYTHON" -m pip wheel --no-deps --no-build-isolation \
  --wheel-dir dist -C build-dir=build/wheel \
  -C cmake.define.ARTESIAN_BUILT_PACKAGE="$PWD/$parts" . >&2
"$ARTESIAN_PYTHON" dev/deepspeed_wheel.py dist >/dev/null
ls dist/artesian-*.whl dist/artesian_deepspeed-*.whl
