#!/usr/bin/env bash
# Runs the Python tests of the simulated accelerator with AddressSanitizer's allocator, which finds
# memory that is freed twice, used after it is freed, or written past its end by memcpy and the
# like, in our modules and in LibTorch. Nothing is instrumented: the release build is used as it is.
# Not part of CI. Called through dev/setup.sh:
#
#   dev/asan_simulated.sh [PYTEST ARGUMENT...]   default: all of tests/python/on_simulated
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dev/build.sh release artesian_python programs simulated_accelerator
sanitizer="$(gcc -print-file-name=libasan.so)"
library="$(gcc -print-file-name=libstdc++.so.6)"  # LibTorch's exceptions need it loaded first, too
[ -e "$sanitizer" ] && [ -e "$library" ] || {
  echo "asan_simulated: error: libasan.so: not found; install g++" >&2
  exit 2
}
[ $# -gt 0 ] || set -- tests/python/on_simulated/*_on_simulated.py
extras="$(dev/extras.sh dev/requirements-hf.lock)"
folders="$PWD/build/tests/simulated_accelerator:$PWD/build/python:$extras:$PWD/tests/python"
# Python never frees some memory, and a test expects that a child ends by a signal.
export ASAN_OPTIONS="detect_leaks=0:handle_segv=0:detect_odr_violation=0:alloc_dealloc_mismatch=0"
ASAN_OPTIONS+=":exitcode=66:halt_on_error=1"
exec env LD_PRELOAD="$sanitizer:$library" PYTHONMALLOC=malloc PYTHONPATH="$folders" \
  CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
  python3 -m pytest -q -p no:cacheprovider -c tests/python/pytest.ini "$@"
