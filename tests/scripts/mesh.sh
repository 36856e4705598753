#!/bin/sh
# --mesh and the options beside it from outside: what is refused, and rows that do not fill the data ranks.
# Usage: tests/scripts/mesh.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny
small="$ref --batch-size 4 --seq-len 8"

# ---- options that nothing would read ----

gives 2 'plan: --rank needs --mesh' plan $small --rank 1
gives 2 'plan: --shard needs --mesh' plan $small --shard 'wte.weight=0:tp'
gives 2 'plan: --sequence-parallel needs --mesh' plan $small --sequence-parallel off
gives 2 'plan: --reshard needs --mesh, or the pass remat of' plan $small --reshard never
gives 2 'plan: --mesh changes nothing in a graph without --passes' plan tests/ir/flat.tn --mesh dp=2
gives 2 'plan: --mesh changes nothing without the pass spmd' plan $small --mesh dp=2 --passes gradients.x,cse
gives 2 'opt: --mesh changes nothing without the pass spmd' opt tests/ir/flat.tn --mesh dp=2 --passes cse
gives 2 'opt: --rank needs --mesh' opt tests/ir/flat.tn --rank 1 --passes cse,spmd
gives 2 'opt: --reshard needs --mesh' opt tests/ir/flat.tn --reshard never --passes cse
gives 2 'plan: --sequence-parallel needs a mesh with an axis tp' plan $small --mesh fsdp=2 --sequence-parallel off
gives 2 'plan: --bucket needs --mesh' plan $small --bucket off
gives 2 'plan: --gpu-comm needs --mesh' plan $small --gpu-comm nccl
gives 2 'plan: --gpu-comm needs --backend cuda' plan $small --mesh fsdp=2 --gpu-comm nccl
gives 2 'opt: --bucket needs --mesh' opt tests/ir/flat.tn --bucket off --passes cse
gives 0 '' opt tests/ir/flat.tn --bucket off --passes bucket
gives 2 'bucket: expected auto, off, block or a number of bytes above 0, found "often"' plan $small --mesh fsdp=2 --bucket often
gives 2 '--reshard: expected auto|always|never' plan $small --mesh fsdp=2 --reshard often
gives 2 '--sequence-parallel: expected on|off' plan $small --mesh tp=2 --sequence-parallel yes
gives 2 'plan: --reshard needs --mesh' plan $small --mesh none --reshard never
gives 2 'run: unknown option "--mesh"' run tests/ir/flat.tn --mesh dp=2

# ---- a rank's graph: planned as it is written, unless moving its collectives is asked for ----

sed '/^---/,$d' tests/pass/bucket/repeated.tn >"$dir/rank.tn"
gives 2 'plan: --overlap needs --mesh' plan $small --overlap off
gives 2 '--overlap: expected on|off' plan "$dir/rank.tn" --overlap often
exposed() { gives 0 'of it exposed' plan "$dir/rank.tn" --machine h100 "$@" && sed -n 's/.* us a step, \([0-9]*\).*/\1/p' "$dir/out"; }
ok "as it is written" [ "$(exposed)" = 136 ]
ok "not moved" [ "$(exposed --overlap off)" = 136 ]
ok "moved" [ "$(exposed --overlap on)" -lt 70 ]
ok "joined and moved" [ "$(exposed --overlap on --passes bucket)" -lt 20 ]

# No call moves across one that is not ours: the same stand before it and behind it, in whatever order.
sed 's/^\( *\)%vg2/\1%send: f32[0] = opaque(%t, call="lib.send", size=[0], dtype=f32)  backward\n&/' "$dir/rank.tn" \
    >"$dir/barrier.tn"
before() {
    "$tenon" plan "$dir/barrier.tn" --machine h100 --steps "$@" |
        sed -n '/opaque\.opaque/q; s/^ *[0-9]* \([a-z_]*\)\..* -> \([a-z0-9]*\)@.*/\1 \2/p' >"$dir/steps"
    sort "$dir/steps"
}
before >"$dir/first"
before --overlap on >"$dir/second"
mv "$dir/steps" "$dir/order"
before >/dev/null
ok "some stand before the barrier" [ "$(wc -l <"$dir/first")" -gt 10 ]
ok "the same with overlap" cmp -s "$dir/first" "$dir/second"
ok "in another order" not cmp -s "$dir/steps" "$dir/order"

# ---- meshes and ranks ----

gives 2 'mesh "dp": expected AXIS=SIZE, found "dp"' plan $small --mesh dp
gives 2 'mesh "dp=0": expected a size of "dp" from 1' plan $small --mesh dp=0
gives 2 'mesh "dp=2,dp=2": expected axes of different names' plan $small --mesh dp=2,dp=2
gives 2 'rank 4: the mesh dp=2,tp=2 has ranks 0 to 3' plan $small --mesh dp=2,tp=2 --rank 4
gives 2 'rank 2147483646: the mesh dp=2 has ranks 0 to 1' plan $small --mesh dp=2 --rank 2147483646
gives 2 '--rank: expected an integer from 0 to 2147483646' plan $small --mesh dp=2 --rank 2147483647
gives 2 'shard "lm_head.*": lm_head.weight is tied to "wte.weight", which stands for both' \
    plan $small --mesh fsdp=2 --shard 'lm_head.*=0:fsdp'

gives 0 ' 3 ranks, estimated as on 3 hosts' plan $small --mesh fsdp=3
gives 0 ' 3 ranks, estimated as on 1 host' plan $small --mesh fsdp=3 --machine h100
gives 2 'rank 2: the mesh dp=2 has ranks 0 to 1' opt tests/ir/flat.tn --passes spmd --mesh dp=2 --rank 2

# ---- axes and rules that cannot be obeyed: the rule, the parameter, the sizes (test_sharding has all) ----

gives 2 'mesh axis "x" of 2 ranks cuts nothing: no --shard names it' plan $small --mesh dp=2,x=2
gives 2 'shard "h.*.c_attn.wight": matches no parameter; the nearest is "h.' \
    plan $small --mesh fsdp=2 --shard 'h.*.c_attn.wight=0:fsdp'
gives 2 'shard "wpe.weight=0:fsdp": contradicts "wpe.weight=1:fsdp", which holds for all that it matches, such as "wpe.weight" f32[' \
    plan $small --mesh fsdp=2 --shard wpe.weight=0:fsdp --shard wpe.weight=1:fsdp
gives 2 'has 4 key heads for 4 heads, and the heads of a key stay together: the largest tp up to 8 that works is 4' \
    plan $small --mesh tp=8
gives 2 'has 8 key heads for 32 heads, and the heads of a key stay together: the largest tp up to 16 that works is 8' \
    plan llama3-8b --batch-size 1 --seq-len 16 --mesh tp=16
gives 0 'reshard never changes nothing on the mesh dp=2: no parameter is gathered' \
    plan $small --mesh dp=2 --reshard never
gives 0 'reshard never changes nothing on the mesh fsdp=2: no parameter is gathered' \
    plan $small --mesh fsdp=2 --shard '*=' --reshard never
gives 0 '' plan $small --mesh fsdp=2 --shard '*.weight=' --reshard never
ok "biases are gathered" not grep -q 'changes nothing' "$dir/err"

# ---- rows and vocabulary that do not divide ----

gives 0 'rows of a step: 7, and 1 of padding without labels that count' \
    plan $ref --batch-size 7 --seq-len 8 --mesh dp=2,fsdp=2 --accumulate 2
ok "two rows an iteration on each of four ranks" [ "$(grep -c '^rows of a step' "$dir/out")" = 1 ]
gives 0 '' plan $small --mesh dp=2,fsdp=2
ok "rows that divide" not grep -q '^rows of a step' "$dir/out"
gives 2 'accumulate: 5 rows in 4 iterations of 2 leave an iteration empty' \
    plan $ref --batch-size 5 --seq-len 8 --mesh dp=2 --accumulate 4
gives 0 '"persistent_bytes": 186667776' plan gpt2 --batch-size 8 --seq-len 64 --mesh fsdp=8 --json
ok "the padding stays with the parameter" not grep -q '"constant_pad_nd"' "$dir/out"
gives 0 '"persistent_bytes": 373353984' \
    plan gpt2 --batch-size 8 --seq-len 64 --mesh tp=2,fsdp=2 --dtype bf16 --align 16 --accumulate 2 --json
ok "rows of 50272 / 2 logits begin at 16 bytes, and are the parameter's" not grep -q '"constant_pad_nd"' "$dir/out"
ok "only the gradient of the positions that are read is padded" grep -q '"slice_backward": 1,' "$dir/out"
printf 'tenon 1\ngraph g(%%x: f32[4, 8] batch, %%w: f32[8, 8] param "w") {
  %%y: f32[4, 8] = mm(%%x, %%w)  forward
  %%l: f32[] = sum(%%y)  loss
  return loss %%l\n}\n' >"$dir/rows.tn"
gives 2 '%x: 4 rows in 2 microbatches are 2 in each, which 4 data ranks cannot share evenly: expected a multiple of 8 rows' \
    opt "$dir/rows.tn" --passes grad,accumulate,spmd --mesh dp=2,fsdp=2 --accumulate 2

# What a graph pads itself is stored so where that is zeros behind, as the mesh wants.
padded() {
    printf 'tenon 1\ngraph g(%%w: f32[3, 8] param "w") {
  %%p: f32[6, 8] = constant_pad_nd(%%w, pad=[0, 0, %s], value=%s)  forward
  return %%p\n}\n' "$1" "$2" >"$dir/padded.tn"
}
while read -r pad value rows; do
    padded "$pad" "$value"
    gives 0 "%w: f32[$rows, 8] param" opt "$dir/padded.tn" --passes spmd --mesh fsdp=2
done <<end
0,3 0.0 3
3,0 0.0 2
0,3 7.0 2
end

totals
