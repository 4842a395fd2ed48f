#!/usr/bin/env bash
# fuzz/run_all.sh MINUTES WORK TARGET...: fuzz each target in turn for so many minutes.
# Corpora grow in WORK/corpus, findings and logs lie in WORK; a finding ends its target.
set -u
minutes=$1 work=$2
shift 2
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD OMP_NUM_THREADS=1
python=${PYTHON:-python}
"$python" -m fuzz.seeds "$work/seeds"
"$python" -m fuzz.corpus extract "$work/kept"
for target in "$@"; do
    mkdir -p "$work/corpus/$target"
    nice -n 5 "$python" -m fuzz.run "$target" -max_total_time=$((minutes * 60)) \
        -max_len=8192 -print_final_stats=1 \
        -artifact_prefix="$work/finding-$target-" \
        "$work/corpus/$target" "$work/seeds/$target" "$work/kept/$target" \
        >"$work/$target.log" 2>&1
done
