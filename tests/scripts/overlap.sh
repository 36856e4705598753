#!/bin/sh
# Collectives joined and moved beside computing train to the bits of those that are neither, on 8 ranks as threads and
# by mpirun, with each message late by chance: microbatches, both --reshard, three axes. Parts that go around a ring
# beside products (--overlap chunked) give the same however late they come, and nearly that of whole calls. An MPI that is
# not there is left out, and said. TN_LONG=1: all of it on all meshes, by each MPI. Usage: tests/scripts/overlap.sh BUILD
. tools/checks.sh
. tools/launch.sh
model=tests/ref/llama-tiny
mpis=$(mpis)
cat "$dir/skipped"
[ -n "$TN_LONG" ] || mpis=${mpis%%[!a-z]*}
some=$mpis

# Sixteen rows of eight tokens.
ids=$(awk 'BEGIN { for (i = 0; i < 256; i++) printf "\\%03o\\0\\0\\0\\0\\0\\0\\0", i * 37 % 97 }')
tensors "$dir/batch.safetensors" '{"input_ids":{"dtype":"I64","shape":[16,8],"data_offsets":[0,1024]},"labels":{"dtype":"I64","shape":[16,8],"data_offsets":[1024,2048]}}' "$ids"

# trains NAME COMMAND...: two steps, started by the words before `with`, with the options behind it.
trains() {
    name=$1 started=
    shift
    while [ "$1" != with ]; do
        started="$started $1"
        shift
    done
    shift
    # shellcheck disable=SC2086
    timeout 300 $started "$tenon" train $model --batch "$dir/batch.safetensors" --steps 2 --lr 1e-2 --threads 1 \
        --out "$dir/$name" "$@" >"$dir/$name.out" 2>"$dir/err"
    ok "$name: $started tenon train $*: exit code 0" [ $? = 0 ]
}
same() {
    ok "$1 and $2: the same losses" cmp "$dir/$1.out" "$dir/$2.out"
    ok "$1 and $2: the same weights" cmp "$dir/$1/step-2/model.safetensors" "$dir/$2/step-2/model.safetensors"
    ok "$1 and $2: the same state" cmp "$dir/$1/step-2/optimizer.safetensors" "$dir/$2/step-2/optimizer.safetensors"
}
# late NAME SEED OPTIONS...: as threads, and by each MPI of $mpis, which give the same.
late() {
    late=$1
    export TENON_COMM_DELAY="2000,$2"
    shift 2
    trains "$late.threads" with "$@"
    for mpi in $mpis; do
        trains "$late.$mpi" "mpirun.$mpi" -n 8 with "$@"
        same "$late.threads" "$late.$mpi"
        rm -r "$dir/$late.$mpi"
    done
    unset TENON_COMM_DELAY
}

# ---- joined and moved ----

seed=0
for mesh in fsdp=8 dp=2,fsdp=2,tp=2; do
    for accumulate in 1 2; do
        for reshard in always never; do
            seed=$((seed + 1))
            case $seed in # each mesh and each option once
            1 | 8) ;;
            *) [ -n "$TN_LONG" ] || continue ;;
            esac
            # A process plans by itself what threads plan once: three axes take long.
            [ -n "$TN_LONG" ] || [ $seed = 1 ] || mpis=
            trains plain with --mesh $mesh --accumulate $accumulate --reshard $reshard --bucket off --overlap off
            late moved $seed --mesh $mesh --accumulate $accumulate --reshard $reshard
            same plain moved.threads
            rm -r "$dir/plain" "$dir/moved.threads"
        done
    done
done
gives 0 'overlap up to' plan $model --batch-size 16 --seq-len 8 --mesh fsdp=8

# ---- beside slices, copies to the host's memory and microbatches; resumed with and without ----

# beside NAME on|off OPTIONS...: two steps neither joined nor moved, both, and one of them, from which the second goes on
# with the option on or off.
off="--bucket off --overlap off"
beside() {
    of=$1 first=$off then="--bucket block --overlap on"
    [ "$2" = on ] || first='' then=$off
    shift 2
    # shellcheck disable=SC2086
    {
        TENON_EMULATED_DELAY=50,3 trains "$of.plain" with "$@" $off
        TENON_COMM_DELAY=500,4 TENON_EMULATED_DELAY=50,5 trains "$of.moved" with "$@"
        trains "$of.resumed" with "$@" $first --steps 1
        trains "$of.resumed" with "$@" $then --resume --retune
    }
    same "$of.plain" "$of.moved"
    cmp "$dir/$of.resumed/step-1/model.safetensors" "$dir/$of.resumed/step-2/model.safetensors" >/dev/null
    ok "$of: went on" [ $? = 1 ]
    for file in model optimizer; do
        ok "$of: the same $file, resumed with the other option" \
            cmp "$dir/$of.plain/step-2/$file.safetensors" "$dir/$of.resumed/step-2/$file.safetensors"
    done
}
beside slices on --mesh fsdp=2,tp=2 --chunk 2 --reshard always
beside copies off --mesh dp=2,fsdp=2 --backend emulated --offload '*.mlp*::*' --accumulate 2 --reshard never
gives 0 "host's memory" plan $model --batch-size 16 --seq-len 8 --mesh dp=2,fsdp=2 --backend emulated --offload '*.mlp*::*'
gives 0 '2 slices of' plan $model --batch-size 16 --seq-len 8 --mesh fsdp=2,tp=2 --chunk 2

# ---- parts around a ring ----

mpis=$some
# A cluster on which a call of several ranks takes long, and one of two nothing.
row=$("$tenon" plan $model --batch-size 1 --seq-len 8 | sed -n 's/.*a step  (\([a-z0-9_]*\).*/\1/p')
cat >"$dir/cluster" <<END
machine 1
name cluster
like $row
link nvlink4
gather_2_wait 0.001
gather_4_wait 1e5
reduce_4_wait 1e6
END
mesh="--mesh fsdp=2,tp=4 --machine $dir/cluster"
model=tests/ref/gpt2-tiny # of four key heads
# shellcheck disable=SC2086
{
    gives 0 'permute: of parts beside products, which may round otherwise' \
        plan $model --batch-size 16 --seq-len 8 $mesh --overlap chunked
    trains whole with $mesh
    late ring 9 $mesh --overlap chunked
    gives 2 '--overlap needs --mesh' plan $model --batch-size 16 --seq-len 8 --overlap chunked
    gives 2 '--overlap: expected on|off|chunked, found "parts"' plan $model --batch-size 16 --seq-len 8 $mesh --overlap parts
}
ok "losses of parts are nearly those of whole calls" awk '
    NR == FNR { loss[$2] = $4; next } { d = $4 - loss[$2]; if (d < 0) d = -d; if (d > 1e-4) bad = 1; n++ }
    END { exit bad || n != 2 }' "$dir/whole.out" "$dir/ring.threads.out"
totals
