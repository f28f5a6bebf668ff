#!/usr/bin/env bash
# Configures and builds one CMake preset; called through dev/setup.sh. The places of ninja and
# torch are given each time: a build folder may remember those of an older environment.
#
#   dev/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset="$1"
shift

# A file with LibTorch's headers takes up to 2 GB: as many jobs as cores and memory bear.
if [ -z "${CMAKE_BUILD_PARALLEL_LEVEL:-}" ]; then
  memory_jobs="$(awk '/^MemAvailable:/ { print int($2 / 2000000) }' /proc/meminfo)"
  jobs="$(nproc)"
  if [ "$memory_jobs" -lt "$jobs" ]; then jobs="$memory_jobs"; fi
  export CMAKE_BUILD_PARALLEL_LEVEL="$((jobs > 1 ? jobs : 1))"
fi
cmake --preset "$preset" -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" \
  -DARTESIAN_TORCH_DIR="$ARTESIAN_TORCH_DIR" -DARTESIAN_PYTHON="$ARTESIAN_PYTHON" >&2
cmake --build --preset "$preset" ${1:+--target "$@"} >&2
