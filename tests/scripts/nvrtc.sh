#!/bin/sh
# The texts of fused bodies for GPUs (those that test_cuda_fused runs on the processor, and those that fuse makes of
# PyTorch's graphs) compile by NVRTC, which needs no GPU, for H100 and as intermediate code for A100 and newer. Where
# the build has no CUDA nothing is compiled, and the reason is printed. Every eighth text for H100, others for
# A100; TN_LONG=1: all for both. Usage: tests/scripts/nvrtc.sh BUILD
. tools/checks.sh
"$build/tests/fused_texts" all >"$dir/texts" 2>"$dir/err"
ok "the texts of bodies are printed"
grep '^note: ' "$dir/err"
count=$(grep -c "$(printf '\f')" "$dir/texts")
ok "expected more than 300 texts, found $count" [ "$count" -gt 300 ]
for name in row_online row_total row_dot row_moments row_rstd lane_maximum lane_dropout; do
    ok "no text has $name" grep -q "$name" "$dir/texts"
done
if [ -x "$build/tests/nvrtc" ]; then
    every=8
    [ -z "$TN_LONG" ] || every=1
    at=0
    for arch in sm_90a compute_80; do
        awk -v every=$every -v at=$at 'BEGIN { RS = ORS = "\f" } NR % every == at % every' "$dir/texts" >"$dir/$arch.texts"
        at=2
    done
    for arch in sm_90a compute_80; do
        { "$build/tests/nvrtc" $arch <"$dir/$arch.texts" >"$dir/$arch"; } &
    done
    wait
    for arch in sm_90a compute_80; do
        count=$(grep -c "$(printf '\f')" "$dir/$arch.texts")
        ok "$arch: $(grep -v '^0 passed' "$dir/$arch" | head -5)" grep -qx "$count passed, 0 failed" "$dir/$arch"
    done
    # A library of the name that has not what is needed.
    mkdir "$dir/other"
    echo 'const char *nvrtcGetErrorString(int e) { return "an error"; }' >"$dir/other.c"
    ${CC:-cc} -shared -fPIC "$dir/other.c" -o "$dir/other/libnvrtc.so.13"
    head -c 3000 "$dir/texts" | LD_LIBRARY_PATH=$dir/other "$build/tests/nvrtc" >"$dir/out" 2>"$dir/err"
    ok "what another libnvrtc lacks is said: $(cat "$dir/out" "$dir/err")" \
        grep -q 'expected libnvrtc of CUDA 12 or 13, found one without nvrtcCreateProgram' "$dir/out"
else
    echo "note: $count texts of fused bodies were not compiled: this build found no nvcc (CUDA_HOME)"
fi
totals
