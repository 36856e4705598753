#!/bin/sh
# Commands on ranks from outside: as threads, and as processes that each MPI which is there has started. Losses,
# gradients and checkpoints against one rank and against each other, what is refused, what is printed, runs that
# are stopped and go on with other ranks. Kills: tests/scripts/ranks_kill.sh. TN_LONG=1: more steps and meshes.
# Usage: tests/scripts/ranks.sh BUILD
. tools/checks.sh
. tools/launch.sh
ref=tests/ref/gpt2-tiny
steps=6 more= other= tried=
[ -z "$TN_LONG" ] || steps=20 more='dp=2 tp=2' other='dp=2,tp=2'

# does ARGUMENTS...: tenon, with exit code 0; starts with $before.
before=
does() {
    # shellcheck disable=SC2086
    $before "$tenon" "$@" >"$dir/out" 2>"$dir/err"
    ok "$before tenon $*" [ $? = 0 ]
}
# batch FILE ROWS LENGTH VOCABULARY: of random tokens, a tenth of the labels ignored.
batch() {
    awk -v n=$(($2 * $3)) -v vocab="$4" 'BEGIN {
        srand(5)
        for (i = 0; i < n; i++)
            printf "\\%03o\\0\\0\\0\\0\\0\\0\\0", int(vocab * rand())
        for (i = 0; i < n; i++)
            if (rand() < 0.1)
                printf "\\234\\377\\377\\377\\377\\377\\377\\377" # -100
            else
                printf "\\%03o\\0\\0\\0\\0\\0\\0\\0", int(vocab * rand())
    }' >"$dir/data"
    bytes=$(($2 * $3 * 8))
    tensors "$1" "{\"input_ids\":{\"dtype\":\"I64\",\"shape\":[$2,$3],\"data_offsets\":[0,$bytes]},\"labels\":{\"dtype\":\"I64\",\"shape\":[$2,$3],\"data_offsets\":[$bytes,$((2 * bytes))]}}" \
        "$(cat "$dir/data")"
}
# floats FILE: those of a safetensors file, one a line.
floats() {
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    tail -c +$((n + 9)) "$1" | od -An -v -tf4 -w4
}
# near WHAT A B LIMIT: the largest difference of two files of numbers, relative to the largest number.
near() {
    paste "$2" "$3" | awk -v limit="$4" '
        NF != 2 { bad = 1 }
        { d = $1 - $2; d = d < 0 ? -d : d; m = $1 < 0 ? -$1 : $1 }
        d > most { most = d }
        m > large { large = m }
        END { printf "%.3g\n", large ? most / large : 9; exit bad || !NR || !(most <= limit * large) }' >"$dir/far"
    ok "$1: within $4, found $(cat "$dir/far")" [ $? = 0 ]
}
losses() { sed -n 's/^step [0-9]* loss //p' "$dir/out"; }
# same_run WHAT A B: the last checkpoints of two runs.
same_run() {
    for file in model optimizer; do
        ok "$1: $file" cmp "$2/latest/$file.safetensors" "$3/latest/$file.safetensors"
    done
}

batch "$dir/b8" 8 16 97
batch "$dir/b2" 2 16 97
batch "$dir/b5" 5 16 97

# ---- what is refused ----

train="train $ref --batch $dir/b8 --steps 1 --out $dir/none"
gives 2 'train: --shard needs --mesh' $train --shard 'wte.weight=0:tp'
gives 2 'train: --reshard needs --mesh' $train --reshard never
gives 2 'train: --reduce needs --mesh' $train --reduce fast
gives 2 'train: --log-ranks needs --mesh' $train --log-ranks
gives 2 'train: --comm-timeout needs --mesh' $train --mesh none --comm-timeout 5
gives 2 'train: --sequence-parallel needs a mesh with an axis tp' $train --mesh fsdp=2 --sequence-parallel off
gives 2 'train: unknown option "--rank"' $train --mesh fsdp=2 --rank 1
gives 2 'mesh "fsdp": expected AXIS=SIZE' $train --mesh fsdp
gives 2 'mesh axis "x" of 2 ranks cuts nothing' $train --mesh x=2
gives 2 '5000 ranks cannot be started as threads' $train --mesh fsdp=5000
export TENON_COMM_DELAY=5x
gives 2 'TENON_COMM_DELAY: expected' $train --mesh fsdp=2
unset TENON_COMM_DELAY
gives 2 'shard "h.*.c_attn.wight": matches no parameter' $train --mesh fsdp=2 --shard 'h.*.c_attn.wight=0:fsdp'
gives 2 'generate: --mesh: one rank generates' generate $ref --prompt a --tokens 1 --mesh fsdp=2
gives 2 'train: --sample-tokens does not go with --mesh: one rank generates' train $ref --data LICENSE --steps 1 \
    --batch-size 2 --seq-len 8 --sample-tokens 3 --mesh fsdp=2 --out "$dir/none"
gives 2 'eval: --logits is for one rank' eval $ref --batch "$dir/b8" --logits "$dir/l" --mesh fsdp=2
gives 2 'bench: --mesh does not go with --clock cpu' bench --mesh fsdp=2 --clock cpu
gives 1 "$dir/none: cannot open" grad $ref --batch "$dir/none" --out "$dir/g" --mesh fsdp=2
ok "an error stands once" [ "$(grep -c 'cannot open' "$dir/err")" = 1 ]
ok "nothing is left" [ ! -e "$dir/none" ]

cat >"$dir/rank.tn" <<'END'
tenon 1
graph g mesh(fsdp=2) at(0) (%x: f32[2] batch shard(0: fsdp)) {
  %a: f32[4] = all_gather_into_tensor(%x, group_size=2, group="fsdp")
  %w: f32[4] = wait_tensor(%a, %x)
  return %w
}
END
tensors "$dir/x" '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' '\0\0\200\077\0\0\0\100'
gives 2 'rank.tn: mesh fsdp=2: rank 0 of 2: it does not run alone' run "$dir/rank.tn" --inputs "$dir/x"
gives 2 'rank.tn: mesh fsdp=2: rank 0 of 2: it does not run alone' bench ops "$dir/rank.tn"
gives 1 'a graph of one rank of fsdp=2 does not run alone' check "$dir/rank.tn" "$dir/rank.tn"
gives 2 'grad: --batch -: ranks cannot share standard input' grad $ref --batch - --out "$dir/g" --mesh fsdp=2
gives 3 'this one needs least' train $ref --batch "$dir/b2" --steps 1 --out "$dir/none" --mesh fsdp=2 --recompute none --memory 1MB
ok "a misfit is told of once" [ "$(grep -c 'does not fit' "$dir/err")" = 1 ]

# ---- threads ----

does grad $ref --batch "$dir/b8" --threads 1 --out "$dir/g1"
mv "$dir/out" "$dir/loss1"
floats "$dir/g1" >"$dir/f1"
for mesh in fsdp=2 $more fsdp=4,tp=2; do
    does grad $ref --batch "$dir/b8" --out "$dir/g" --mesh $mesh
    ok "$mesh: the ranks are told of" [ "$(grep -c 'run as threads of this process' "$dir/err")" = 1 ]
    ok "$mesh: one loss" [ "$(grep -c '^loss ' "$dir/out")" = 1 ]
    floats "$dir/g" >"$dir/f"
    near "$mesh: gradients" "$dir/f1" "$dir/f" 2e-5
    sed 's/loss //' "$dir/loss1" >"$dir/want"
    sed 's/loss //' "$dir/out" >"$dir/got"
    near "$mesh: the loss" "$dir/want" "$dir/got" 1e-6
done
# Rows that do not fill the ranks, and a parameter that gets no gradient.
does grad $ref --batch "$dir/b5" --threads 1 --freeze wpe.weight --out "$dir/g1"
does grad $ref --batch "$dir/b5" --mesh fsdp=4 --freeze wpe.weight --out "$dir/g"
ok "zeros are told of once" [ "$(grep -c 'frozen' "$dir/err")" = 1 ]
floats "$dir/g1" >"$dir/f5"
floats "$dir/g" >"$dir/f"
near "5 rows on 4 ranks: gradients" "$dir/f5" "$dir/f" 2e-5
does plan $ref --batch-size 4 --seq-len 8 --mesh fsdp=16
cp "$dir/out" "$dir/plan16"

# run NAME ARGUMENTS...: training, with the losses in NAME.losses and the run in NAME. One thread of each rank: how
# many there are by default depends on the cores, and bits on it.
run() {
    name=$dir/$1
    shift
    does train $ref --batch "$dir/b8" --steps $steps --lr 1e-3 --dropout 0.1 --clip 0.5 --threads 1 "$@" --out "$name" \
        --metrics "$name.jsonl"
    losses >"$name.losses"
    ok "$name: losses" [ "$(wc -l <"$name.losses")" = $steps ]
}
run one
run fsdp2 --mesh fsdp=2
near "fsdp=2: losses" "$dir/one.losses" "$dir/fsdp2.losses" 1e-5
run mixed --mesh fsdp=4,tp=2
near "fsdp=4,tp=2: losses" "$dir/one.losses" "$dir/mixed.losses" 1e-5

# Ranks with a microbatch each give the bits of one rank with as many microbatches.
run parts --accumulate 2
run dp2 --mesh dp=2
for mesh in dp2 fsdp2; do
    ok "$mesh: losses as of two microbatches" cmp "$dir/parts.losses" "$dir/$mesh.losses"
    same_run "$mesh: as of two microbatches" "$dir/parts" "$dir/$mesh"
done

# Weights kept in bf16 are rounded by their place in the whole, whatever a rank has of it: padded, and cut in
# runs (q, k and v of c_attn) too. The bias of keys has no gradient but noise.
run narrow --accumulate 2 --param-dtype bf16
run narrow2 --mesh fsdp=2 --param-dtype bf16
same_run "bf16 weights on fsdp=2" "$dir/narrow" "$dir/narrow2"
# differ A B NAME: how many bytes of a tensor differ in two runs; "none" where it is not there.
differ() {
    for run in "$1" "$2"; do
        file=$dir/$run/latest/model.safetensors
        n=$(od -An -tu8 -N8 "$file" | tr -d ' ')
        at=$(tail -c +9 "$file" | head -c "$n" | sed -n 's/.*"'"$3"'":{[^}]*"data_offsets":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/p')
        tail -c +$((9 + n + ${at% *})) "$file" | head -c $((${at#* } - ${at% *})) >"$dir/$run.tensor"
    done
    [ -s "$dir/$2.tensor" ] && cmp -l "$dir/$1.tensor" "$dir/$2.tensor" | wc -l || echo none
}
for optimizer in adamw sgd; do
    set -- --lr 1e-5 --dropout 0 --param-dtype bf16 --optimizer $optimizer
    [ $optimizer = adamw ] || set -- "$@" --lr 1e-2
    run $optimizer.one "$@"
    run $optimizer.cut "$@" --mesh fsdp=2,tp=2
    run $optimizer.near "$@" --rounding nearest
    ok "--rounding nearest: a warning" [ "$(grep -c 'warning: rounding nearest: of 28 parameters' "$dir/err")" = 1 ]
    for name in wte.weight h.0.attn.c_attn.weight h.1.mlp.c_fc.weight h.1.mlp.c_proj.weight; do
        cut=$(differ $optimizer.one $optimizer.cut $name) near=$(differ $optimizer.one $optimizer.near $name)
        ok "bf16 $name by $optimizer on fsdp=2,tp=2: $cut bytes differ, rounded to nearest $near" \
            [ $((20 * cut)) -lt "$near" ]
    done
done

# Whatever the order in which messages come, and whichever of them are one; threads have no library that sums.
# (overlap.sh has calls of one value each.)
TENON_COMM_DELAY=1000,3 run late --mesh fsdp=4,tp=2 --bucket 20000 --reduce fast
same_run "--bucket BYTES and --reduce fast, with delays" "$dir/mixed" "$dir/late"
ok "with delays: losses" cmp "$dir/mixed.losses" "$dir/late.losses"
ok "--reduce fast of threads: said once" [ "$(grep -c 'note: --reduce fast: ranks that are threads sum' "$dir/err")" = 1 ]

# op_counts FILE OPTIONS...: of a plan.
op_counts() {
    to=$dir/$1
    shift
    does plan $ref --batch-size 8 --seq-len 16 --mesh fsdp=4,tp=2 "$@" --json
    sed -n '/"op_counts"/,/}/p' "$dir/out" >"$to"
}
op_counts joined
op_counts single.counts --bucket off
ok "--bucket changes the ops" not cmp -s "$dir/joined" "$dir/single.counts"

# What is gathered again is what was gathered first.
run never --mesh fsdp=4,tp=2 --reshard never --log-ranks
same_run "--reshard never" "$dir/mixed" "$dir/never"
op_counts always
op_counts kept.counts --reshard never
ok "--reshard changes the ops" not cmp -s "$dir/always" "$dir/kept.counts"
field() { sed -n "1s/.*\"$2\": \([^,}]*\).*/\1/p" "$dir/$1.jsonl"; }
last() { sed -n "\$s/.*\"$2\": \([^,}]*\).*/\1/p" "$dir/$1.jsonl"; }
ok "--reshard changes the peak" [ "$(field mixed planned_peak_bytes)" != "$(field never planned_peak_bytes)" ]
for name in mixed never; do
    ok "$name: planned is measured" [ "$(last $name planned_peak_bytes)" = "$(last $name measured_peak_bytes)" ]
done
ok "tokens of all ranks" [ "$(field mixed tokens)" = $((8 * 16)) ]

# Options of a mesh are not taken to another.
cp -r "$dir/never" "$dir/alone"
does train --resume --out "$dir/alone" --mesh none --steps $((steps + 1)) --metrics "$dir/alone.jsonl"
ok "what is not taken is said" grep -q -- '--reshard of the run was for --mesh fsdp=4,tp=2: it is not taken to none' "$dir/err"

# ---- eval and bench ----

held="eval tests/ref/llama-tiny --data LICENSE --token-type byte --seq-len 16 --val-fraction 0.3 --batch-size 6"
does $held
sed 's/loss //' "$dir/out" >"$dir/want"
for mesh in fsdp=4 dp=2,tp=2; do
    does $held --mesh $mesh
    ok "$mesh: held-out loss once" [ "$(wc -l <"$dir/out")" = 1 ]
    sed 's/loss //' "$dir/out" >"$dir/got"
    near "$mesh: held-out loss" "$dir/want" "$dir/got" 1e-6
done
if [ -n "$TN_LONG" ]; then # streams of gigabytes are measured
    does bench step --model $ref --batch-size 4 --seq-len 16 --runs 1 --threads 1 --mesh fsdp=2 --json
    ok "what ranks wait for" [ "$(grep -c 'waits for other ranks' "$dir/out")" = 1 ]
    ok "what they receive" grep -q 'received from other ranks", "value": 0.[1-9]' "$dir/out"
fi

# ---- what is printed ----

run quiet --mesh fsdp=2
ok "steps are printed once" [ "$(grep -c '^step 1 ' "$dir/out")" = 1 ]
ok "no rank's name" not grep -q '^rank' "$dir/err"
text="train tests/ref/llama-tiny --data LICENSE --token-type byte --seq-len 16 --lr 1e-3 --dropout 0.1"
does $text --batch-size 4 --seq-len 16 --steps 4 --mesh fsdp=2 --out "$dir/logged" \
    --log-ranks
ok "the other rank's lines" grep -q '^rank 1: ' "$dir/err"
ok "none of the first's" not grep -q '^rank 0: ' "$dir/err"

# ---- stopped, and gone on with ----

# begin NAME ARGUMENTS...: a run without an end, whose third step is done when this returns.
mkfifo "$dir/pipe"
begin() {
    out=$dir/$1
    shift
    # shellcheck disable=SC2086
    $before "$tenon" $text --batch-size 8 --steps 1000000 --max-sec 60 --eval-every 4 --out "$out" --metrics "$dir/pipe" \
        "$@" >"$dir/out" 2>"$dir/err" &
    pid=$!
    exec 3<"$dir/pipe"
    for _ in 1 2 3; do read -r line <&3; done
}
# ends CODE TEXT: how it ends. MPICH's mpirun that was sent a signal may end with 0, whatever the ranks end with.
ends() {
    cat <&3 >/dev/null
    wait $pid
    got=$?
    exec 3<&-
    [ "$got" != 0 ] || [ "${before#mpirun.mpich}" = "$before" ] || got=$1
    ok "expected exit code $1, found $got" [ $got = "$1" ]
    ok "expected the text: $2" grep -qF -e "$2" "$dir/err"
}
last_step() { readlink "$dir/$1/latest" | tr -dc 0-9; }

begin stopped --mesh fsdp=4
kill -INT $pid
ends 130 'tenon: interrupted after step '
ok "said once" [ "$(grep -c 'interrupted after step' "$dir/err")" = 1 ]
stop=$(last_step stopped)
on() {
    name=$1
    shift
    cp -r "$dir/stopped" "$dir/$name"
    does train --resume --out "$dir/$name" --steps $((stop + 3)) --max-sec 0 --metrics "$dir/$name.jsonl" "$@"
    ok "$name: three more steps" [ "$(last_step $name)" = $((stop + 3)) ]
    sed -n 's/.*"loss": \([^,]*\), "grad_norm".*/\1/p' "$dir/$name.jsonl" | tail -3 >"$dir/$name.losses"
}
on again
ok "its mesh is kept" not grep -q 'the run was on' "$dir/err"
on same --mesh fsdp=4
same_run "the same mesh" "$dir/again" "$dir/same"
on kept --reshard never
same_run "--reshard of a run may change" "$dir/again" "$dir/kept"
for mesh in fsdp=3 $other none; do
    on $mesh --mesh $mesh
    ok "$mesh: the change is said" [ "$(grep -c 'the run was on fsdp=4, now on' "$dir/err")" = 1 ]
    near "$mesh: losses" "$dir/same.losses" "$dir/$mesh.losses" 1e-5
done

# ---- processes ----

mpis=$(mpis)
cat "$dir/skipped"
for mpi in $mpis; do
    before="mpirun.$mpi -n 8"
    run $mpi --mesh fsdp=4,tp=2
    same_run "$mpi: as threads" "$dir/mixed" "$dir/$mpi"
    ok "$mpi: losses as of threads" cmp "$dir/mixed.losses" "$dir/$mpi.losses"
    ok "$mpi: no threads" not grep -q 'run as threads' "$dir/err"
    run fast-$mpi --mesh fsdp=4,tp=2 --reduce fast
    ok "$mpi: --reduce fast: said once" [ "$(grep -c "note: --reduce fast: .* MPI's own: bits may differ" "$dir/err")" = 1 ]
    near "$mpi: --reduce fast: losses" "$dir/mixed.losses" "$dir/fast-$mpi.losses" 1e-5
    ok "$mpi: --reduce fast: other sums" not cmp -s "$dir/mixed/latest/model.safetensors" "$dir/fast-$mpi/latest/model.safetensors"
    before="mpirun.$mpi -n 2"
    does grad $ref --batch "$dir/b5" --mesh fsdp=2 --freeze wpe.weight --out "$dir/g"
    ok "$mpi: one loss" [ "$(grep -c '^loss ' "$dir/out")" = 1 ]
    floats "$dir/g" >"$dir/f"
    near "$mpi: gradients" "$dir/f5" "$dir/f" 2e-5
    does eval $ref --batch "$dir/b8" --mesh fsdp=2
    ok "$mpi: one loss" [ "$(grep -c '^loss ' "$dir/out")" = 1 ]
    does plan $ref --batch-size 4 --seq-len 8 --mesh fsdp=16
    ok "$mpi: one plan" [ "$(grep -c 'peak' "$dir/out")" = "$(grep -c peak "$dir/plan16")" ]
    # refuses TEXT ARGUMENTS...: exit code 2, and an error that stands once.
    refuses() {
        want=$1
        shift
        # shellcheck disable=SC2086
        $before "$tenon" "$@" >"$dir/out" 2>"$dir/err"
        ok "$mpi: tenon $*: exit code 2" [ $? = 2 ]
        ok "$mpi: tenon $*: $want, once" [ "$(grep -cF -e "$want" "$dir/err")" = 1 ]
    }
    refuses 'eval: --mesh fsdp=4 is of 4 ranks, but the launcher has started 2' eval $ref --batch "$dir/b8" --mesh fsdp=4
    # shellcheck disable=SC2043
    for none in '' '--mesh none'; do
        refuses 'eval: one rank runs without --mesh or with --mesh none, but the launcher has started 2' \
            eval $ref --batch "$dir/b8" $none
    done
    before="mpirun.$mpi -n 1"
    refuses 'eval: --mesh fsdp=2 is of 2 ranks, but the launcher has started 1' eval $ref --batch "$dir/b8" --mesh fsdp=2
    does eval $ref --batch "$dir/b8"
    # unlike TEXT ARGUMENTS...: those of the last of three ranks are other than $given.
    unlike() {
        [ -z "$tried" ] || [ -n "$TN_LONG" ] || return 0
        before="timeout 60 mpirun.$mpi -n 2 $tenon $given : -n 1"
        refuses "$@"
    }
    given="train $ref --batch $dir/b8 --steps 2 --mesh fsdp=3 --out $dir/unlike"
    unlike 'rank 2: train: --lr: rank 0 has 0.0003, found 0.01' $given --lr 1e-2
    unlike 'rank 2: train: --steps: rank 0 has 2, found 7' $given --steps 7
    unlike "rank 2: train: --out: rank 0 has \"$dir/unlike\", found \"$dir/other\"" $given --out "$dir/other"
    unlike 'rank 2: train: --save-every: rank 0 has none, found 1' $given --save-every 1
    unlike 'rank 2: train: --metrics: rank 0 has none, found' $given --metrics "$dir/other"
    unlike 'rank 2: train: --threads: rank 0 has none, found 1' $given --threads 1
    unlike 'rank 2: train: --overwrite: rank 0 has none, found it' $given --overwrite
    unlike "rank 2: train: arguments: rank 0 has [\"$ref\"], found [\"tests/ref/llama-tiny\"]" \
        train tests/ref/llama-tiny ${given#train $ref}
    unlike 'rank 2: train: expected 1 argument, found 0' train --out "$dir/unlike"
    unlike 'rank 2: train: --help: rank 0 has none, found it' train --help
    unlike 'rank 2: expected the command train, as rank 0 has, found eval' eval $ref --batch "$dir/b8" --mesh fsdp=3
    given="grad $ref --batch $dir/b8 --mesh fsdp=3 --out $dir/g"
    unlike "rank 2: grad: --batch: rank 0 has \"$dir/b8\", found \"$dir/b5\"" $given --batch "$dir/b5"
    given="eval $ref --batch $dir/b8 --mesh fsdp=3"
    unlike 'rank 2: eval: --dtype: rank 0 has "f32", found "bf16"' $given --dtype bf16
    given="bench step --batch-size 4 --seq-len 16 --runs 1 --mesh fsdp=3"
    unlike 'rank 2: bench: --runs: rank 0 has 1, found 2' $given --runs 2
    ok "$mpi: nothing was begun" [ ! -e "$dir/unlike" ]
    # A rank that has no memory for the streams of bench, where the others wait to begin a step. A machine of small
    # caches may need less.
    given="bench step --model $ref --batch-size 4 --seq-len 16 --runs 1 --threads 1 --mesh fsdp=2"
    if [ -n "$TN_LONG" ]; then # streams of gigabytes are measured
        # shellcheck disable=SC2086
        timeout 60 "mpirun.$mpi" -n 1 "$tenon" $given : -n 1 sh -c "ulimit -v 600000; exec $tenon $given" \
            >"$dir/out" 2>"$dir/err"
        got=$?
        ok "$mpi: bench: one rank without memory: exit code 0 or 1, found $got" [ $got -lt 2 ]
        [ $got = 0 ] || ok "$mpi: bench: a rank without memory is named" grep -q 'rank 1: .*out of memory' "$dir/err"
    fi
    tried=1 # one MPI tries what does not depend on it
    # What is the same is not refused for how it is written, nor what each may have its own of.
    given="eval $ref --batch $dir/b8 --mesh fsdp=3"
    before="mpirun.$mpi -n 2 $tenon $given : -n 1"
    does eval --mesh=fsdp=3 --batch="$dir/b8" $ref --comm-timeout 9 --log-ranks
    before="mpirun.$mpi -n 2"
    refuses 'unknown option "--mush"' train $ref --mush fsdp=2
    refuses 'generate: one rank generates: start it without' generate $ref --prompt a --tokens 3
    begin stopped-$mpi --mesh fsdp=2
    kill -USR1 $pid
    ends 130 'tenon: interrupted after step '
    ok "$mpi: saved" [ -e "$dir/stopped-$mpi/latest/model.safetensors" ]
    before=
done

totals
