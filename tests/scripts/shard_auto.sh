#!/bin/sh
# --shard auto, --pin, --what-if and tenon shard M from outside: what is printed and written, the same again, a run
# of ranks against one rank, wrong arguments. Usage: tests/scripts/shard_auto.sh BUILD
. tools/checks.sh
model=tests/ref/llama-tiny
sed 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' $model/config.json >"$dir/one.json"
shape="--batch-size 8 --seq-len 16 --mesh fsdp=2,tp=2"
step="$dir/one.json $shape"

# ---- the problem of a model that is a file ----

gives 0 'ms a step' shard $step --output "$dir/problem.json"
gives 0 'feasible yes' shard "$dir/problem.json"

# ---- a plan ----

gives 0 'sharding chosen for the shortest step:' plan $step --shard auto --explain
ok "a gap of nothing" grep -q '^  gap  *0\.000 %' "$dir/out"
ok "four ways or more, of which one is taken" [ "$(grep -c 'a step by the clock' "$dir/out")" -ge 4 ]
ok "one is taken" [ "$(grep -c ', taken$' "$dir/out")" = 1 ]
ok "forms of nodes" grep -q '^form .* @layers\.0\.mlp\.down_proj: ' "$dir/out"
ok "forms of parameters" grep -q '^form .* ports .* model\.layers\.0\.mlp\.down_proj\.weight: ' "$dir/out"
ok "who reads them" grep -q '^           read as .* by mm %' "$dir/out"
ok "what others cost" grep -q '^           else shard(0: tp): +' "$dir/out"
ok "nodes that no axis can cut" grep -q '^  whole on all  .*clip_scale' "$dir/out"
same='^  objective  *\([0-9.]* .\{0,1\}s\) a step without overlap, \1 of the nodes emitted$'
ok "the objective is the sum of what is emitted: $(grep '^  objective' "$dir/out")" grep -q "$same" "$dir/out"
grep -v '^  took ' "$dir/out" >"$dir/first"
if [ -n "$TN_LONG" ]; then
    gives 0 '' plan $step --shard auto --explain
    grep -v '^  took ' "$dir/out" >"$dir/second"
    ok "the same again" cmp "$dir/first" "$dir/second"
fi

gives 0 '' plan $step --shard auto --dtype bf16 --accumulate 2 --machine h100
ok "a loop over microbatches gathers in its body, of what is cast before it: $(grep '^  objective' "$dir/out")" \
    grep -q "$same" "$dir/out"
gives 0 '' plan tests/ref/gpt2-tiny --batch-size 8 --seq-len 16 --mesh fsdp=2 --dropout 0.1 --shard auto --explain
ok "blocks are equal though each draws from a stream of its own" \
    grep -q '^form  *2 nodes .* dropout .*@layers\.0\.mlp\.dropout: ' "$dir/out"

# The embedding reads the cast table as it was made, the last product a form that is made of it.
if [ -n "$TN_LONG" ]; then
    gives 0 'objective ' plan llama3-1b --batch-size 64 --seq-len 1024 --mesh fsdp=8 --reshard never --dtype bf16 \
        --machine h100 --shard auto --explain
    ok "a reader of the form that was made pays nothing: $(grep '^  objective' "$dir/out")" grep -q "$same" "$dir/out"
fi

# ---- what it takes ----

gives 2 'shard auto: expected at most 67108864 pairs of ways to cut' plan $model --batch-size 8 --seq-len 16 \
    --mesh dp=2,fsdp=2,tp=2,ep=2 --shard auto
few="ulimit -v 150000" # KiB of addresses, which are too few for a sanitized program
if (eval "$few" && "$tenon" ops) >/dev/null 2>&1; then
    (eval "$few" && "$tenon" plan $model --batch-size 8 --seq-len 16 --mesh fsdp=4,tp=2 --shard auto) >"$dir/few" 2>&1
    ok "a tiny model in few addresses: $(tail -n 1 "$dir/few")" grep -q 'ms a step' "$dir/few"
fi

# ---- rules and pins hold ----

gives 0 '' plan $step --shard auto --shard '*.up_proj.weight=1:fsdp' --pin 'layers.*.mlp.down_proj::mm=0:fsdp;1:tp' --explain
ok "a rule holds" grep -q '^sharding .*up_proj_weight param: shard(1: fsdp)$' "$dir/out"
ok "a pin holds" [ "$(grep -c '^form .* mm .*@layers\.[0-9]*\.mlp\.down_proj: shard(0: fsdp) shard(1: tp)$' "$dir/out")" -ge 1 ]
ok "without recipes, which do not obey" not grep -q "^  recipes .*a step by the clock" "$dir/out"
gives 0 '' plan $step --shard auto --accumulate 2 --pin 'layers.*.mlp.down_proj::mm=0:fsdp;1:tp' --explain
ok "in a loop too" grep -q '^form .* mm %mm_6 @layers\.0\.mlp\.down_proj: shard(0: fsdp) shard(1: tp)$' "$dir/out"
ok "of which a sum leaves" grep -q "^form .* sum over parts %.* @layers\.[0-9]*\.mlp\.down_proj: " "$dir/out"
gives 0 'what if           layers.0::add=1:tp: +' plan $step --shard auto --what-if 'layers.0::add=1:tp'
ok "by both measures" grep -q '^  what if .* of the objective, [+-].* by the clock$' "$dir/out"
ok "the recipes too" grep -q "^  recipes .*a step by the clock" "$dir/out"
gives 0 'what if           layers.0::add=0:fsdp: -' plan $step --shard auto --pin 'layers.0::add=1:tp' --what-if 'layers.0::add=0:fsdp'
gives 0 '  whole on all ' plan $step --shard auto --pin 'layers.*.mlp.down_proj::mm='
ok "an axis could cut what a pin has whole: $(grep '^  whole on' "$dir/out")" not grep -q '^  whole on .*down_proj' "$dir/out"
gives 0 'sharding chosen' plan "$dir/one.json" --batch-size 8 --seq-len 16 --mesh fsdp=1 --shard auto
ok "one rank cuts nothing" not grep -q '^  whole on' "$dir/out"

# ---- beside the recipes, in the memory that they need ----

# The choices fit because the vocabulary is padded as for the recipes.
MESHES=fsdp=8,tp=4 bench/recipes.sh "$tenon" gpt2 >"$dir/table"
ok "no slower, at least 2 % faster: $(tail -n 1 "$dir/table")" \
    grep -qx 'recipes: 1 steps, 0 slower, 1 at least 2 % faster, 0 refused or failed' "$dir/table"

# ---- where the recipes' step is taken ----

gives 0 "forms      of the fastest choice; the recipes' step, which is taken" plan gpt2 --batch-size 8 --seq-len 512 \
    --mesh dp=8 --machine h100 --shard auto --explain
ok "the recipes are taken" grep -q '^  recipes .* a step by the clock, .*, taken$' "$dir/out"
ok "the choice's forms have prices" grep -q '^           else .*: +' "$dir/out"
gives 0 "" plan gpt2 --batch-size 8 --seq-len 512 --mesh fsdp=4,tp=2 --machine avx2 --shard auto --explain
ok "a share is renewed" [ "$(grep -c ' % exposed .* a step by the clock' "$dir/out")" -ge 4 ]

# ---- as data, as a page ----

gives 0 '"sharding": {' plan $step --shard auto --what-if 'layers.0::add=1:tp' --explain --json
for key in taken objective_sec emitted_sec rest_sec gap form readers others added_sec pin; do
    ok "key $key" grep -q "\"$key\": " "$dir/out"
done
said=$(sed -n '/"pin": /,/}/s/^ *"[a-z_]*sec": \([^,]*\),*$/\1/p' "$dir/out")
gives 0 '' plan $step --shard auto --pin 'layers.0::add=1:tp' --json
ok "what if says what the plan with that pin has, by both measures" [ "$said" = "$(
    sed -n 's/^ *"objective_sec": \([^,]*\),*$/\1/p' "$dir/out" | head -n 1
    sed -n 's/^ *"est_step_sec": \([^,]*\),*$/\1/p' "$dir/out"
)" ]
gives 0 '' plan $step --machine tests/seeds/machine/fast_links.machine --shard auto --html "$dir/page.html"
ok "boxes in the colours of forms" grep -q '<title>mm %.*: shard(.*rx="4" .*fill:var(--c' "$dir/page.html"
ok "arrows with bytes and seconds" grep -q 'class="reshard" .*KiB, .* us' "$dir/page.html"

# ---- a problem ----

gives 0 'gap 0 ' shard $model $shape -o "$dir/problem.json"
cp "$dir/out" "$dir/first"
gives 0 'feasible yes' shard "$dir/problem.json"
ok "the problem that was solved is the one that was written" \
    [ "$(sed 's/ sec.*//' "$dir/out")" = "$(sed 's/ sec.*//; q' "$dir/first")" ]
ok "of which units costs are" grep -q '^costs are nanoseconds of a step' "$dir/first"
ok "nodes have names" grep -q '"name": "mm layers' "$dir/problem.json"

# ---- a run ----

head -c 20000 README.md >"$dir/text"
run="train $model --data $dir/text --token-type byte --batch-size 8 --seq-len 16 --steps 3 --eval-every 2"
for way in one all ${TN_LONG:+loop}; do
    rm -rf "$dir/out.$way"
    case $way in
    one) more= ;;
    all) more="--mesh fsdp=4,tp=2 --shard auto" ;;
    loop) more="--mesh fsdp=2,tp=2 --shard auto --accumulate 2" ;;
    esac
    gives 0 'step 3/3' $run --out "$dir/out.$way" $more
    grep -ho 'loss [0-9.]*' "$dir/out" "$dir/err" >"$dir/loss.$way"
done
ok "the losses of one rank and of eight" cmp "$dir/loss.one" "$dir/loss.all"
[ -z "$TN_LONG" ] || ok "of four in two parts of a batch" cmp "$dir/loss.one" "$dir/loss.loop"

# ---- what is refused ----

gives 2 'pin "a=0:fsdp": expected shard auto beside it, found none' plan $step --pin a=0:fsdp
gives 2 'what-if "a=0:fsdp": expected shard auto' plan $step --what-if a=0:fsdp
gives 2 'result by its name, such as "layers.0.self_attn.q_proj::mm" or "mm"' plan $step --shard auto --pin a=0:fsdp
gives 2 'pin "*::mm=0:x": the mesh fsdp=2,tp=2 has no axis "x"' plan $step --shard auto --pin '*::mm=0:x'
gives 2 'pin "*::mm": expected PATTERN=AXIS:MESH_AXES' plan $step --shard auto --pin '*::mm'
gives 2 'pin "*::mm=0:fsdp": contradicts later ones, such as "*::mm=1:fsdp", which hold for all that it matches' \
    plan $step --shard auto --pin '*::mm=0:fsdp' --pin '*::mm=1:fsdp'
gives 2 'pin "*::norm_of=0:fsdp"' plan $step --shard auto --pin '*::norm_of=0:fsdp'
gives 2 'it makes it as: whole' plan $step --shard auto --pin '*.down_proj::mm=0:7,fsdp'
sed '/^---/,$d' tests/pass/dce/loop_carry.tn >"$dir/carry.tn"
gives 2 'shard auto: expected loops over equal parts of the batch, as --accumulate makes them, found carry in %q' \
    opt "$dir/carry.tn" --passes spmd --mesh dp=2 --shard auto
gives 2 '--batch-size is missing' shard $model -o "$dir/x.json"
gives 2 '--output is missing' shard $model $shape
gives 2 'expected a file for the problem, found "-"' shard $model $shape -o -
gives 2 '--mesh is for a model, not for a problem' shard "$dir/problem.json" --mesh fsdp=2
gives 0 '--mesh TEXT' shard --help
ok "it takes no mesh that is to be found" [ "$(grep -c 'auto (plan' "$dir/out")" = 0 ]
gives 1 'cannot' shard $model $shape -o "$dir/none/x.json"
totals
