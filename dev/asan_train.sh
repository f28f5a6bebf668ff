#!/usr/bin/env bash
# Trains a tiny GPT-2 on NVMe in fp16, bf16 and fp32 under AddressSanitizer, LeakSanitizer and
# UBSan, runs the tests of what an engine does at odd moments, and fails on any report. Called
# through dev/setup.sh; no arguments.
#
# Our code is instrumented whole; LibTorch is as its wheel has it, so that errors inside it show
# only where they pass malloc, memcpy and the like.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
engine_tests=(zero3_torch_deferred_update_test zero3_torch_kept_inputs_engine_test
  zero3_torch_under_backward_test zero3_torch_speculative_update_test)
dev/build.sh asan-train artesian "${engine_tests[@]}" || exit 1
program="$PWD/build-asan-train/bin/artesian"
folder="$(mktemp -d "$PWD/build-asan-train/train-XXXXXX")"
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/model"

# 66 tells a report from the program's own exit codes.
export ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1"
ASAN_OPTIONS+=":exitcode=66"
export UBSAN_OPTIONS="print_stacktrace=1:exitcode=66"
export LSAN_OPTIONS="exitcode=66"
export OMP_NUM_THREADS=2

cat >"$folder/model/config.json" <<'JSON'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 32,
 "n_embd": 64, "n_layer": 3, "n_head": 2, "embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0}
JSON
for _ in $(seq 200); do echo "the deep well lifts the water, and the water lifts the well"; done \
  >"$folder/text.txt"

# config NAME PRECISION ENGINE: everything on NVMe, budgets that force eviction and spilling.
config() {
  cat >"$folder/$1.json" <<JSON
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, $2
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": 3, "sub_group_size": 8192, "stage3_param_persistence_threshold": 0,
   "offload_param": {"device": "nvme", "nvme_path": "$folder/nvme", "max_in_cpu": 0},
   "offload_optimizer": {"device": "nvme", "nvme_path": "$folder/nvme"}},
 "aio": {"block_size": 16384},
 "artesian": {"device_memory": "512KiB", "host_memory": "320KiB", "engine": "$3",
   "skipped_steps_max": 6}}
JSON
}

failed=0
# train NAME EXPECTED_CODE [FLAG...]
train() {
  local name="$1" expected="$2" code
  shift 2
  "$program" train --model="$folder/model" --data="$folder/text.txt" --config="$folder/$name.json" \
    --seq-len=16 --log-jsonl="$folder/$name.jsonl" --trace="$folder/$name.trace" "$@" \
    >"$folder/$name.out" 2>"$folder/$name.err"
  code=$?
  if [ "$code" -eq "$expected" ] && ! grep -qE 'Sanitizer|runtime error' "$folder/$name.err"; then
    printf 'asan_train: %s: %d steps, exit code %d, no report\n' "$name" \
      "$(wc -l <"$folder/$name.jsonl")" "$code"
  else
    printf 'asan_train: %s: FAILED: exit code %d, expected %d\n' "$name" "$code" "$expected"
    cat "$folder/$name.err"
    failed=1
  fi
}

for engine in io_uring threads; do
  fp16='"fp16": {"enabled": true, "initial_scale_power": 19, "hysteresis": 1},'  # it overflows
  config "fp16-$engine" "$fp16" "$engine"
  config "bf16-$engine" '"bf16": {"enabled": true},' "$engine"
  config "fp32-$engine" "" "$engine"
  for precision in fp16 bf16 fp32; do
    train "$precision-$engine" 0 --steps=8 --save="$folder/saved-$precision-$engine"
  done
done
config refused '"fp16": {"enabled": true, "loss_scale": 1e30},' threads
train refused 1 --steps=8  # ends by itself: the error path gives everything back, too
for test in "${engine_tests[@]}"; do
  if "build-asan-train/tests/$test" >"$folder/$test.out" 2>&1; then
    printf 'asan_train: %s: no report\n' "$test"
  else
    printf 'asan_train: %s: FAILED\n' "$test"
    tail -60 "$folder/$test.out"
    failed=1
  fi
done
[ "$failed" -eq 0 ]
