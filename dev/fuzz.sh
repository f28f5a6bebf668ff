#!/usr/bin/env bash
# Runs each fuzzer for a while from its kept corpus; called through dev/setup.sh.
#
#   dev/fuzz.sh SECONDS [FUZZER...]     FUZZER: a_b_x_fuzz of tests/a/b/x_fuzz.cpp
#   dev/fuzz.sh minimize [FUZZER...]    adds to the kept corpus what earlier runs found new
#
# The kept corpus is tests/a/b/corpus/x/; what a run adds goes to build-fuzz/corpus/. An input
# that crashes, leaks, or needs more than a second or 256 MiB goes to build-fuzz/crashes/FUZZER/,
# and the command that repeats it is printed. Exit code 1 if there is any.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The freed memory that AddressSanitizer keeps counts towards the limit.
export ASAN_OPTIONS="quarantine_size_mb=8:allocator_may_return_null=0:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
limits=(-timeout=1 -rss_limit_mb=256 -malloc_limit_mb=256)
failed=()

# tests/models/safetensors_fuzz.cpp -> models_safetensors_fuzz
name_of() { sed 's|^tests/\(.*\)\.cpp$|\1|; s|/|_|g' <<<"$1"; }
# tests/models/safetensors_fuzz.cpp -> tests/models/corpus/safetensors
corpus_of() { sed 's|/\([^/]*\)_fuzz\.cpp$|/corpus/\1|' <<<"$1"; }

run_one() {
  local source="$1" seconds="$2" name crashes log dictionary
  name="$(name_of "$source")"
  crashes="build-fuzz/crashes/$name"
  log="build-fuzz/$name.log"
  dictionary="${source%.cpp}.dict"
  mkdir -p "$crashes" "build-fuzz/corpus/$name"
  echo "fuzz: $name for $seconds s"
  if ! "build-fuzz/fuzz/$name" "build-fuzz/corpus/$name" "$(corpus_of "$source")" \
    -max_total_time="$seconds" -max_len=4096 "${limits[@]}" -artifact_prefix="$crashes/" \
    -print_final_stats=1 ${dictionary:+$([ ! -f "$dictionary" ] || echo "-dict=$dictionary")} \
    >"$log" 2>&1; then
    failed+=("$name")
    grep -E 'ERROR:|SUMMARY:|CHECK failed|runtime error' "$log" | head -5 || tail -5 "$log"
    grep -o "$crashes/[a-z]*-[0-9a-f]*" "$log" | sort -u | while read -r input; do
      echo "fuzz: repeat with: build-fuzz/fuzz/$name ${limits[*]} $input"
    done
    return
  fi
  grep -E '^stat::(number_of_executed_units|slowest_unit_time_sec|peak_rss_mb)' "$log" |
    tr -s ' \n' ' ' && echo
}

minimize_one() {
  local source="$1" name kept
  name="$(name_of "$source")"
  kept="$(corpus_of "$source")"
  mkdir -p "$kept" "build-fuzz/corpus/$name"
  "build-fuzz/fuzz/$name" -merge=1 -use_counters=0 "${limits[@]}" "$kept" \
    "build-fuzz/corpus/$name" >"build-fuzz/$name.log" 2>&1 || {
    tail -5 "build-fuzz/$name.log"
    exit 1
  }
  echo "fuzz: $kept has $(ls "$kept" | wc -l) inputs"
}

what="${1:-60}"
shift || true
dev/build.sh fuzz
while read -r source; do
  if [ $# -gt 0 ] && ! grep -qxF "$(name_of "$source")" < <(printf '%s\n' "$@"); then continue; fi
  if [ "$what" = minimize ]; then minimize_one "$source"; else run_one "$source" "$what"; fi
done < <(find tests -name "*_fuzz.cpp" | sort)
if [ ${#failed[@]} -gt 0 ]; then
  echo "fuzz: failed: ${failed[*]}"
  exit 1
fi
