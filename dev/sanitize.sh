#!/usr/bin/env bash
# Builds the layers below zero3/ under a sanitizer and runs their tests; with asan, a training run,
# too (LibTorch is not built for ThreadSanitizer). Called through dev/setup.sh by `make asan` and
# `make tsan`. A report fails the test that caused it; nothing is suppressed.
#
#   dev/sanitize.sh asan|tsan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset="$1"

export ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1"
export UBSAN_OPTIONS="print_stacktrace=1"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1"
dev/build.sh "$preset"
ctest --preset "$preset"
if [ "$preset" = asan ]; then dev/asan_train.sh; fi
