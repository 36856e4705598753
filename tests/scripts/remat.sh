#!/bin/sh
# Recomputation from outside: the peaks of GPT-2, PyTorch's two graphs of activation checkpointing, rules and
# their errors, a run that is resumed. (That bits are kept: test_remat, test_prop.)
# Usage: tests/scripts/remat.sh BUILD
. tools/checks.sh

# peak RECOMPUTE: MiB of GPT-2's step.
peak() {
    "$tenon" plan gpt2 --batch-size 4 --seq-len 1024 --recompute "$1" --json 2>"$dir/err" |
        sed -n 's/^ *"peak_bytes": \([0-9]*\),*$/\1/p' | head -1 | awk '{ printf "%d\n", $1 / 1048576 }'
}

none=$(peak none)
full=$(peak full)
ok "gpt2: full: $full MiB, expected less than 2600" [ "$full" -lt 2600 ]
for policy in every=2 every=3 selective; do
    now=$(peak $policy)
    ok "gpt2: $policy: $now MiB, expected between $full and $none" [ "$full" -lt "$now" ] && [ "$now" -lt "$none" ]
done

# Weights in bf16 that a loop over microbatches reads in each iteration are not held twice.
parameters() {
    "$tenon" plan demo --batch-size 8 --seq-len 64 --dtype bf16 --accumulate 2 --recompute "$1" --json |
        sed -n 's/^ *"parameters": \([0-9]*\),*$/\1/p' | head -1
}
for policy in full selective; do
    ok "bf16, accumulate 2, $policy: more weights than with none" [ "$(parameters $policy)" = "$(parameters none)" ]
done

# What is alive at the peak, saved and computed again: of blocks alike a line.
gives 0 'layers.0-11               12 x        93.11        12.00       192.25' \
    plan gpt2 --batch-size 4 --seq-len 1024 --recompute full
gives 0 'saved for the backward: 18 values, 999604232 bytes, 953.30 MiB' \
    plan gpt2 --batch-size 4 --seq-len 1024 --recompute full
gives 0 'computed again: 156 values, 2419064832 bytes, 2307.00 MiB, 546.3 GFLOP (14.1 % of the step' \
    plan gpt2 --batch-size 4 --seq-len 1024 --recompute full

# What one loop collects for another.
gives 0 '%k  overrules prefer_recompute: the loop keeps it for another loop, and is not computed' \
    plan tests/pass/remat/loop_prefers.tn --passes=grad,remat --explain
gives 0 '%y  overrules prefer_recompute: what its body makes must be saved' \
    plan tests/pass/remat/loop_prefers.tn --passes=grad,remat --explain

# Gathered parameters: again in the backward, kept, or as a rule says.
gathers() {
    "$tenon" plan demo --batch-size 8 --seq-len 64 --mesh fsdp=2 --bucket off "$@" --json 2>"$dir/err" |
        sed -n 's/^ *"all_gather_into_tensor": \([0-9]*\),*$/\1/p' | head -1
}
kept=$(gathers --reshard never)
again=$(gathers)
ok "reshard: $kept gathers with never, $again with always" [ "$kept" -gt 0 ] && [ "$again" -gt "$kept" ]
one=$(gathers --save 'layers.1.self_attn.q_proj::all_gather_into_tensor')
ok "reshard: --save of one gather: expected $((again - 1)), found $one" [ "$one" = $((again - 1)) ]
one=$(gathers --reshard never --recompute-rule 'layers.1.self_attn.q_proj::wait_tensor')
ok "reshard never: a rule for one wait: expected $((kept + 1)), found $one" [ "$one" = $((kept + 1)) ]
gives 0 '@layers.1.self_attn.q_proj  must_recompute by --reshard auto: takes no memory until %' \
    plan demo --batch-size 8 --seq-len 64 --mesh fsdp=2 --explain

# The first of these graphs was traced with mm computed again, the second asked for it and lost it.
passes=canonicalize,cse,dce,remat
for graph in vanilla_ac sac; do
    from=tests/fx/$graph
    inputs=$from/inputs.safetensors
    "$tenon" import fx $from/graph.txt --inputs $inputs -o "$dir/$graph.tn" >"$dir/out" 2>"$dir/err"
    ok "import $graph" [ $? = 0 ]
    rule='*::nothing'
    [ $graph = vanilla_ac ] && rule='*::sum' # its products are computed again already
    [ $graph = sac ] && rule='*::mm'
    gives 0 '' opt "$dir/$graph.tn" --passes=$passes --recompute-rule "$rule" -o "$dir/once.tn"
    ok "$graph: expected 6 mm" [ "$(grep -c '= mm(' "$dir/once.tn")" = 6 ]
    gives 0 '' opt "$dir/once.tn" --passes=$passes --recompute-rule "$rule" -o "$dir/again.tn"
    gives 0 '' run "$dir/$graph.tn" --inputs $inputs --outputs "$dir/saved.safetensors"
    for compiled in once again; do
        gives 0 '' run "$dir/$compiled.tn" --inputs $inputs --outputs "$dir/$compiled.safetensors"
        ok "$graph, $compiled: other results" cmp -s "$dir/saved.safetensors" "$dir/$compiled.safetensors"
    done
done
ok "gelu_backward reads what was saved, not the copy" grep -q 'gelu_backward(%mm_3, %mm_r)' "$dir/once.tn"

# What was traced as computed again has an origin and stays, unless asked otherwise.
clean=canonicalize,cse,dce
gives 0 'mm(%x_1, %w1_1)  backward origin=%mm' opt "$dir/vanilla_ac.tn" --passes=$clean -o -
gives 0 'computed again: 2 values' plan "$dir/vanilla_ac.tn" --passes=$clean
gives 0 '' opt "$dir/vanilla_ac.tn" --passes=$clean --dedupe-recompute -o "$dir/merged.tn"
ok "vanilla_ac merged: expected 5 mm" [ "$(grep -c '= mm(' "$dir/merged.tn")" = 5 ]
ok "vanilla_ac merged: expected 1 gelu" [ "$(grep -c '= gelu(' "$dir/merged.tn")" = 1 ]
gives 0 equal check "$dir/vanilla_ac.tn" "$dir/merged.tn"
gives 0 'saved for the backward: 2 values' plan "$dir/vanilla_ac.tn" --passes=$clean --dedupe-recompute
gives 2 'changes nothing in a graph without --passes' plan "$dir/vanilla_ac.tn" --dedupe-recompute
gives 2 '--dedupe-recompute changes nothing without the pass cse' plan "$dir/vanilla_ac.tn" --passes=dce --dedupe-recompute

# What must be saved is read in place of what was traced; of what was compiled so and has no original, refused.
gives 0 'gelu_backward(%mm_4, %mm_2)' opt "$dir/vanilla_ac.tn" --passes=$clean,remat --save '*::gelu' -o -
gives 0 '' opt "$dir/vanilla_ac.tn" --passes=$clean,remat --save '*::mm' --save '*::gelu' -o "$dir/merged.tn"
ok "vanilla_ac saved: expected 5 mm" [ "$(grep -c '= mm(' "$dir/merged.tn")" = 5 ]
ok "vanilla_ac saved: expected 1 gelu" [ "$(grep -c '= gelu(' "$dir/merged.tn")" = 1 ]
gives 0 equal check "$dir/vanilla_ac.tn" "$dir/merged.tn"

# A step that is there already is not made again: the whole pipeline keeps the values of its own result.
step="$dir/step.tn"
cat >"$dir/forward.tn" <<'END'
tenon 1
graph g(%x: f32[8, 8] batch, %w: f32[8, 8] param "w", %v: f32[8, 8] param "v") {
  %a: f32[8, 8] = mm(%x, %w)  @"layers.0" forward
  %b: f32[8, 8] = silu(%a)  @"layers.0" forward
  %c: f32[8, 8] = mul(%b, %x)  @"layers.0" forward
  %d: f32[8, 8] = mm(%c, %v)  @"layers.1" forward
  %e: f32[8, 8] = gelu(%d)  @"layers.1" forward
  %l: f32[] = sum(%e)  loss
  return loss %l
}
END
gives 0 '' opt "$dir/forward.tn" --recompute full --accumulate 2 --dtype bf16 -o "$step"
gives 2 'changes nothing without the pass precision: the graph is a training step already' \
    opt "$step" --recompute full --accumulate 2 --dtype bf16 -o "$dir/again.tn"
gives 0 'the graph is a training step already: default is compiled (unfuse,' \
    opt "$step" --recompute full -o "$dir/again.tn"
gives 0 equal check "$step" "$dir/again.tn"
gives 0 '' opt "$step" --passes=unfuse,default -o "$dir/again.tn"
ok "unfuse,default made no fused nodes" grep -q '= fused(' "$dir/again.tn"
gives 0 'remat: the graph has no backward yet' opt "$dir/forward.tn" --passes=remat,grad --recompute full -o "$dir/again.tn"
for policy in full selective every=2; do
    text="recompute \"$policy\": no node's scope names a block (a part that is a number)"
    gives 2 "$text" opt "$dir/vanilla_ac.tn" --passes=remat --recompute $policy
    gives 2 "$text" plan "$dir/vanilla_ac.tn" --passes=remat --recompute $policy
done
gives 0 '' plan "$dir/vanilla_ac.tn" --passes=remat --recompute none
for list in fuse $clean,fuse fuse,unfuse; do
    gives 2 '--fuse off and --passes with fuse exclude each other' plan "$dir/vanilla_ac.tn" --passes=$list --fuse off
done
gives 0 '' plan "$dir/vanilla_ac.tn" --passes=unfuse,$clean --fuse off
gives 0 '' plan "$dir/vanilla_ac.tn" --passes=fuse --fuse on
gives 2 'is for graphs, not for models' plan demo --batch-size 2 --seq-len 16 --dedupe-recompute

demo="plan demo --batch-size 2 --seq-len 16"
gives 2 'recompute: expected auto, none, full, every=K (K at least 1) or selective' $demo --recompute half
gives 2 'the nearest scope with silu is "layers.' $demo --save 'layers.77.*::silu'
gives 2 '"layers.1.*::mm" is for all that begin so, such as "layers.1.self_attn.q_proj"' $demo --save 'layers.1::mm'
gives 2 'layers.?1' $demo --save "$(printf 'layers.\0331::mm')"
gives 2 'found "every=+2"' $demo --recompute every=+2
gives 2 '--json and --steps exclude each other' $demo --json --steps
gives 3 'takes no memory until %' $demo --recompute full --memory 1KiB --explain
gives 2 'the forward has no sillu; the nearest is silu' $demo --recompute-rule '*::sillu'
gives 2 'expected PATTERN::OP' $demo --save silu
gives 2 'changes nothing in a graph without --passes' plan "$dir/once.tn" --recompute full
gives 0 'must_recompute: takes no memory until %' $demo --save '*::*' --recompute-rule '*::silu' --explain
gives 0 'must_save: the backward reads it' $demo --recompute full --save '*::silu' --explain
gives 0 '"honoured": true' $demo --recompute full --json

# The same weights with and without; a run that goes on has the same rules, in their order.
yes 'What is computed again is the same again.' | head -300 >"$dir/text"
train="--batch-size 2 --seq-len 16 --steps 4"
rules="--save layers.0*::silu --recompute-rule layers.0.mlp*::silu --save layers.1*::mm"
set -f
gives 0 '' train demo --data "$dir/text" $train --recompute full $rules --save-every 2 --out "$dir/run"
gives 0 '' train demo --data "$dir/text" $train --out "$dir/plain"
ok "training gives other weights" cmp -s "$dir/run/step-4/model.safetensors" "$dir/plain/step-4/model.safetensors"
rm -rf "$dir/run/step-4" "$dir/run/latest"
gives 0 '' train --resume --out "$dir/run"
ok "going on gives other weights" cmp -s "$dir/run/step-4/model.safetensors" "$dir/plain/step-4/model.safetensors"
rm -rf "$dir/run/step-4" "$dir/run/latest"
gives 2 '--save: the run began with' train --resume --out "$dir/run" --save 'layers.1*::mm'
gives 2 '--recompute-rule: the run began with' train --resume --out "$dir/run" --recompute-rule '*::mm'
gives 2 '--recompute: the run began with "full", found "none"' train --resume --out "$dir/run" --recompute none

# What cannot do anything is refused.
gives 2 'changes nothing without the pass remat' plan demo --batch-size 2 --seq-len 16 --passes=grad --recompute full
gives 2 'changes nothing without the pass remat' opt tests/pass/remat/chain.tn --passes=cse --save '*::mm'
gives 2 'whose number K divides' opt tests/pass/remat/chain.tn --passes=remat --recompute every=99

totals
