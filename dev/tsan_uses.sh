#!/usr/bin/env bash
# Runs the tests of hooked models on several threads under ThreadSanitizer. Our code is
# instrumented; LibTorch is as its wheel has it, so what happens inside it is ignored. Not part of
# CI. Called through dev/setup.sh; no arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dev/build.sh tsan-train zero3_torch_unit_uses_threads_test
ignored="$(mktemp)"
trap 'rm -f "$ignored"' EXIT
printf 'called_from_lib:%s\n' libtorch_cpu.so libc10.so libgomp.so.1 >"$ignored"
export TSAN_OPTIONS="halt_on_error=0:second_deadlock_stack=1:exitcode=66:suppressions=$ignored"
TSAN_OPTIONS+=":ignore_noninstrumented_modules=1"
OMP_NUM_THREADS=1 build-tsan-train/tests/zero3_torch_unit_uses_threads_test
