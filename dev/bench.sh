#!/usr/bin/env bash
# `make bench`: builds what is measured, then runs bench/run.py. Called through dev/setup.sh.
# PART=micro, adam, disk, step, bound, plan, ladder, checkpoint, trainer, hooks, ranks or inference
# runs that part alone; arguments go to bench/run.py (see its --help).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
dev/build.sh release programs benches artesian_python
exec "$ARTESIAN_PYTHON" bench/run.py ${PART:+--part "$PART"} "$@"
