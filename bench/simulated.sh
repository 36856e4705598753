#!/bin/sh
# Steps as the plan simulates them, and as they are measured: six models on one rank of one thread, and on two processes
# by MPI with links of three speeds that comm injects. Kernels' seconds are measured here first (tenon tune). The least
# of STEPS steps counts, as other programs on the machine only add to it; the load average says how many there are. RUN
# is a command before each, such as RUN="chrt -f 1", with which others do not run beside. Seconds of a core that a step's
# computing takes are nearly the same with any load. A first line names the processor. Exits 1 where a step is more than
# OFF off. Usage: [RUN=COMMAND] bench/simulated.sh [BUILD [STEPS [OFF]]]
build=$(cd "${1:-build}" && pwd) || exit 1
steps=${2:-7}
off=${3:-0.15}
link=$build/bench/link
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TENON_MACHINE=none
unset TENON_COMM_LINK
make -s BUILD="$build" "$link" || exit 1

# config FAMILY MORE: a small model of the family.
config() {
    cat >"$dir/$1.json" <<END
{"model_type": "$1", "vocab_size": 4096, "max_position_embeddings": 1024, "hidden_size": 256, "num_hidden_layers": 6,
"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 704, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
"hidden_act": "silu", "tie_word_embeddings": false$2}
END
}
config llama
config mistral ', "sliding_window": 128'
config qwen2
config qwen3 ', "head_dim": 64'
cat >"$dir/gpt2.json" <<END
{"model_type": "gpt2", "vocab_size": 4096, "n_positions": 1024, "n_embd": 256, "n_layer": 6, "n_head": 4}
END

launch=
for mpi in openmpi mpich; do
    [ -z "$launch" ] && [ -f "$build/tenon-mpi-$mpi.so" ] && command -v mpirun.$mpi >/dev/null && launch="mpirun.$mpi -n 2" &&
        export TENON_MPI="$build/tenon-mpi-$mpi.so"
done
case $launch in
*openmpi*) launch="$launch --bind-to none --oversubscribe --allow-run-as-root" ;;
esac
[ -n "$launch" ] || echo "no MPI with a module in $build: two ranks are threads of one process"
sed -n 's/^model name[^:]*: */processor: /p' /proc/cpuinfo | head -1
echo "cores: $(nproc), load average: $(cut -d ' ' -f 1-3 /proc/loadavg)"

failed=0
# row COMMAND...: what it prints, or why it printed nothing.
row() {
    "$@" >"$dir/row" 2>"$dir/err"
    [ -s "$dir/row" ] || cat "$dir/err"
    cat "$dir/row"
    grep -q 'simulated' "$dir/row" && ! grep -q 'TOO FAR' "$dir/row" || failed=1
}
for model in demo gpt2 llama mistral qwen2 qwen3; do
    path=$model
    [ -f "$dir/$model.json" ] && path=$dir/$model.json
    for rows in 4 2; do # of one rank, of each of two
        # shellcheck disable=SC2086 # several words
        $RUN "$build/tenon" tune "$path" --clock cpu --threads 1 --batch-size $rows --seq-len 128 --dtype f32 -o "$dir/tuned" \
            >"$dir/out" 2>&1 || cat "$dir/out"
    done
    # shellcheck disable=SC2086
    row $RUN "$link" 0 0 "$path" 4 128 none "$steps" "$off" "$dir/tuned"
    # shellcheck disable=SC2086
    for speed in "0.0002 1e9" "0.001 200e6" "0.002 50e6"; do
        row $RUN $launch "$link" $speed "$path" 4 128 fsdp=2 "$steps" "$off" "$dir/tuned"
    done
done
echo "load average: $(cut -d ' ' -f 1-3 /proc/loadavg)"
exit "$failed"
