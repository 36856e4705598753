#!/bin/sh
# --mesh and the options beside it from outside: what is refused, and rows that do not fill the data ranks.
# Usage: tests/mesh.sh BUILD
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
gives 2 '--reshard: expected always|never' plan $small --mesh fsdp=2 --reshard often
gives 2 '--sequence-parallel: expected on|off' plan $small --mesh tp=2 --sequence-parallel yes
for command in train grad eval generate; do
    gives 2 "$command: unknown option \"--mesh\"" $command $ref --mesh dp=2
done

# ---- meshes and ranks ----

gives 2 'mesh "dp": expected AXIS=SIZE, found "dp"' plan $small --mesh dp
gives 2 'mesh "dp=0": expected a size of "dp" from 1' plan $small --mesh dp=0
gives 2 'mesh "dp=2,dp=2": expected axes of different names' plan $small --mesh dp=2,dp=2
gives 2 'rank 4: the mesh dp=2,tp=2 has ranks 0 to 3' plan $small --mesh dp=2,tp=2 --rank 4
gives 2 'shard "lm_head.*": lm_head.weight is tied to "wte.weight", which stands for both' \
    plan $small --mesh fsdp=2 --shard 'lm_head.*=0:fsdp'

totals
