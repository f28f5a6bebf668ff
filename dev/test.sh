#!/usr/bin/env bash
# Builds everything, then runs ctest and pytest; both run even if the first one fails. Closes with
# the summary line of each as it printed it. Called through dev/setup.sh.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dev/build.sh release || exit 1

dev/extras.sh dev/requirements-hf.lock >/dev/null || exit 1
dev/extras.sh dev/requirements-trl.lock >/dev/null || exit 1
runner="$(dev/extras.sh dev/requirements-test.lock)" || exit 1

ctest --preset release --parallel 2 2>&1 | tee build/ctest.log
ctest_code=$?
# Two files at a time: most of a test is the start of a process, or its wait for the disk. pytest's
# colours would hide its summary line from whoever reads the log.
PYTHONPATH="$runner${PYTHONPATH:+:$PYTHONPATH}" python3 -m pytest tests/python --color=no \
  --numprocesses=2 --dist=loadfile --durations=30 2>&1 | tee build/pytest.log
pytest_code=$?

echo
grep -E '^[0-9]+% tests passed.* out of [0-9]+' build/ctest.log || echo "ctest: no summary"
grep -E '^=+ .* in [0-9.]+s.* =+$' build/pytest.log || echo "pytest: no summary"
[ "$ctest_code" -eq 0 ] && [ "$pytest_code" -eq 0 ]
