#!/usr/bin/env bash
# Proves Artesian on a machine with a GPU that has no package source; --help says how. The work is
# done in Python with the standard library alone, by the python3 that has torch.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
command -v python3 >/dev/null || {
  echo "gpu_check: error: python3: not found on PATH" >&2
  exit 2
}
exec python3 -B "$here/gpu_check" "$@"
