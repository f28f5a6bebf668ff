#!/usr/bin/env bash
# The main job on this machine: builds, prepares text and model (dev/demo_data.py), and trains
# GPT-2 124M in fp16 with parameters and optimizer state in files under demo-nvme/. Called through
# dev/setup.sh. STEPS=n trains longer or shorter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'demo: %s\n' "$*" >&2; }

# 2.0 GB of state in demo-nvme, the build, and room for what else the machine does.
needed_mib=4096
free_mib="$(df -Pm . | awk 'NR == 2 { print $4 }')"
if [ "$free_mib" -lt "$needed_mib" ]; then
  say "error: $PWD: $free_mib MiB free, $needed_mib MiB needed; free some space"
  exit 2
fi

dev/build.sh release programs
data="${XDG_CACHE_HOME:-${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}/.cache}/artesian/demo"
"$ARTESIAN_PYTHON" dev/demo_data.py "$data"

mkdir -p demo-out
say "training; loss should fall from 10.9 (ln 50257, knowing nothing) within minutes"
# Not exec: the last line says where to look.
build/bin/artesian train --model "$data/model" --init --data "$data/tokens.bin" \
  --config examples/demo.json --steps "${STEPS:-30}" --seq-len 256 --seed 1 \
  --log-jsonl demo-out/steps.jsonl --trace demo-out/trace.json
say "every step is in demo-out/steps.jsonl, the timeline in demo-out/trace.json (open in Perfetto)"
