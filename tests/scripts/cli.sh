#!/bin/sh
# The program from outside: exit codes and messages of every command, wrong usage, broken files, standard
# input and output, checkpoints, interrupts, full and read-only disks. Runs in the root of the project.
# Usage: tests/scripts/cli.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny
batch=$ref/batch.safetensors

# ---- help and versions ----

"$tenon" >"$dir/out" 2>"$dir/err"
ok "no arguments: exit code 2" [ $? = 2 ]
ok "no arguments: usage" grep -q '^usage: tenon' "$dir/err"
gives 0 "usage: tenon" --help
cp "$dir/out" "$dir/help"
gives 0 "" help
ok "help is --help" cmp "$dir/help" "$dir/out"
gives 0 "usage: tenon train" help train
gives 2 'unknown command "trian"; the nearest is "train"' help trian
gives 0 "usage: tenon" -h
gives 0 "onednn " --version
ok "the first line of --version" grep -Eqx 'tenon [0-9]+\.[0-9]+\.[0-9]+' "$dir/out"
for command in train grad plan opt run check show place ops passes bench; do
    gives 0 "usage: tenon $command" $command --help
    gives 0 "usage: tenon $command" $command -h
    gives 2 "$command: unknown option \"--sede\"" $command --sede 3
done
gives 2 'unknown command "trian"; the nearest is "train"' trian
# A nearest name is shown only where it is near: of commands, options, models, passes, ops, parameters.
for far in coffee "plan demo --coffee 3" "plan coffee --batch-size 1 --seq-len 8" "ops coffee" \
    "opt tests/ir/identity.tn --passes=coffee"; do
    # shellcheck disable=SC2086
    "$tenon" $far >"$dir/out" 2>"$dir/err"
    ok "$far: names nothing" not grep -q nearest "$dir/err"
done
gives 2 'freeze "coffee": matches no parameter, such as "wte.weight"' plan $ref --batch-size 1 --seq-len 8 --freeze coffee
gives 2 'matches nothing; a scope with gelu is "layers.0.mlp' plan $ref --batch-size 1 --seq-len 8 --save 'coffee::gelu'

# ---- wrong usage ----

gives 2 'the nearest is "--batch-size"' train demo --batchsize 3
gives 2 'train: --steps, --batch-size, --seq-len and --out are missing' train demo --data x
ok "a command to paste" grep -qFx \
    "  for example: $tenon train demo --data x --steps 1000 --batch-size 8 --seq-len 256 --out run" "$dir/err"
gives 2 'train: --seq-len is missing' train tests/ref/gpt2-tiny --data x --steps 5 --batch-size 2 --out "$dir/o"
ok "what the model has positions for" grep -q -- '--seq-len 32$' "$dir/err"
gives 2 'train: --data, --batch-size and --seq-len are missing' train demo --steps 1 --out "$dir/o"
gives 2 'train: --steps and --out are missing' train demo --batch x
gives 2 'train: --out is missing' train demo --data x --max-sec 1 --batch-size 2 --seq-len 4
gives 2 'train: --batch-size is missing' train none --steps 1 --out "$dir/o" --data x --seq-len 4
gives 2 'exclude each other' train demo --steps 1 --out "$dir/o" --data x --batch y
gives 2 '--seq-len is for --data' train $ref --steps 1 --out "$dir/o" --batch $batch --seq-len 4
gives 2 'needs --sample-tokens' train demo --steps 1 --out "$dir/o" --data x --batch-size 1 --seq-len 8 --prompt a
gives 2 'holds nothing out' train demo --steps 1 --out "$dir/o" --data x --batch-size 1 --seq-len 8 \
    --val-fraction 0 --eval-every 1
gives 2 'a vocabulary of 97' train $ref --steps 1 --out "$dir/o" --data docs/formats.md --batch-size 1 --seq-len 8 \
    --sample-tokens 9
gives 2 '--steps: expected an integer from 1' train demo --steps 1.5
gives 2 '--steps: expected an integer from 1' train demo --steps 0
gives 2 '--lr: expected a number' train demo --lr fast
gives 2 '--lr: expected a number' train demo --lr nan
gives 2 '--lr: expected a number from 0 to' train demo --lr -1e-3
gives 2 'expected a number from 1.2e-38 to 1000000, found "0": where gradients are 0 it alone keeps 0 / 0' train demo --eps 0
gives 2 '--beta1: expected a number from 0 to below 1, found "1": at 1 the correction 1 - beta1^step is 0' train demo --beta1 1
gives 2 '--beta2: expected a number from 0 to below 1, found "1"' plan demo --beta2=1
# The reason is of one limit alone.
for beyond in 'eps 1e7' 'eps nan' 'eps small' 'beta1 -1' 'beta1 x' 'dropout -1'; do
    # shellcheck disable=SC2086
    gives 2 "found \"${beyond#* }\"" train demo --$beyond
    ok "--$beyond: no reason" not grep -qE '": |NaN|divided' "$dir/err"
done
gives 2 'is above 1: weights would change sign' train demo --lr 20 --weight-decay 0.1 --steps 1 --out "$dir/o" --data x \
    --batch-size 1 --seq-len 8
gives 1 'found 4294967296 (M: rows); of a model' plan gpt2 --batch-size 4194304 --seq-len 1024
cat >"$dir/wide.tn" <<'END'
tenon 1
graph g(%x: f32[1, 3], %w: f32[3, 4294967296]) {
  %a: f32[1, 4294967296] = mm(%x, %w)
  return %a
}
END
gives 1 'found 4294967296 (N: columns)' plan "$dir/wide.tn"
ok 'too many columns: no word of a batch' [ -z "$(grep batch "$dir/err")" ]
gives 2 '--dropout: expected a number' train demo --dropout 1
gives 2 '--memory: expected bytes such as 3GiB, from 1 to 4194304TiB, or auto, found "3 apples"' train demo --memory '3 apples'
for bytes in 0 0.5 12.5 0GiB 0.0001kB -1 nan; do
    gives 2 "--memory: expected bytes such as 3GiB, from 1 to 4194304TiB, or auto, found \"$bytes\"" plan demo --batch-size 2 --seq-len 16 --memory $bytes
done
gives 2 '--shard-size: expected bytes such as 3GiB, found "0.5"' train demo --shard-size 0.5
for bytes in 3G 3gib '3 gb'; do
    gives 2 '  3GiB is 3 x 2^30 bytes, 3GB is 3 x 10^9' plan demo --batch-size 2 --seq-len 16 --memory "$bytes"
done
gives 2 '  2.5KiB is 2.5 x 2^10 bytes, 2.5kB is 2.5 x 10^3' train demo --shard-size 2.5k
gives 2 '--dtype: expected f32|bf16, found "f16"' train demo --dtype f16
gives 2 '--schedule: expected cosine|linear|constant, found "cos"' train demo --schedule=cos
gives 2 '--steps needs a value' train demo --steps
gives 2 '--lora needs a value, found the option --data' train demo --lora --data a.jsonl --out x
said '  --lora=--data if that is the value'
gives 2 'expected at most 1 argument, found 2' train demo --data a.txt b.txt --out x
said '  "b.txt" is none of --data, which takes one path: quote a pattern, or repeat it'
gives 2 '--check takes no value' train demo --check=1
gives 2 'expected 1 argument, found 0' train --steps 3
gives 2 'expected 1 argument, found 2' show a.tn b.tn
gives 2 'expected 2 arguments, found 1' check a.tn
gives 2 'grad: --batch is missing' grad $ref --out x
gives 2 'grad: --out is missing' grad $ref --batch x
gives 2 'plan: --batch-size is missing' plan demo --seq-len 8
gives 2 'plan: --seq-len is missing' plan demo --batch-size 8
gives 2 '--dropout is for models' plan tests/ir/flat.tn --dropout 0.1
gives 2 'without --passes' plan tests/ir/flat.tn --accumulate 2
# Options that none of the passes reads: of a list, and of the pipeline that the graph as it is goes through.
"$tenon" opt tests/ref/gpt2-tiny --batch-size 2 --seq-len 8 -o "$dir/step.tn"
for option in "dtype bf16" "param-dtype bf16" "optimizer sgd" "weight-decay 0" "beta1 0.5" "clip 0" "align 3" "freeze nosuch" \
    "no-decay nosuch" "accumulate 2" "rounding nearest"; do
    # shellcheck disable=SC2086 # words
    for command in "plan $dir/step.tn" "opt $dir/step.tn" "export json $dir/step.tn"; do
        gives 2 "--${option% *} changes nothing without the pass" $command --passes dce --$option
    done
    case $option in align*) continue ;; esac
    # shellcheck disable=SC2086
    gives 2 ': the graph is a training step already' plan "$dir/step.tn" --passes default --$option
    ok "--$option of a step" grep -q -e "--${option% *} changes nothing without the pass" "$dir/err"
done
gives 2 'clip changes nothing without the pass optimizer: the graph is' opt "$dir/step.tn" --clip 0
gives 2 'clip changes nothing without the pass optimizer: the graph is' export json "$dir/step.tn" --passes default --clip 0
gives 2 'plan: --compare, A: --clip changes nothing' plan "$dir/step.tn" --passes default --compare '--clip 0' ''
gives 0 '' plan "$dir/step.tn" --passes default --recompute full
# A wrong name in the list comes first; an option that asks for what there is without a pass is none of these.
gives 2 'unknown pass "defalt"; the nearest is "default"' plan "$dir/step.tn" --passes defalt --clip 0
gives 0 '' plan "$dir/step.tn" --passes dce --optimizer none --accumulate 1
for command in "plan" "opt" "export fx"; do
    gives 2 'beta1 is for --optimizer adamw' $command tests/ref/gpt2-tiny --passes default --optimizer sgd --beta1 0.5
done
# A rounding that no weight has, and one without an update.
for command in plan opt tune "bench plan --model"; do
    gives 2 'rounding is for --param-dtype bf16' $command tests/ref/gpt2-tiny --batch-size 2 --seq-len 8 --rounding nearest
    gives 2 'rounding means nothing with --optimizer none' $command tests/ref/gpt2-tiny --batch-size 2 --seq-len 8 \
        --param-dtype bf16 --optimizer none --rounding nearest
done
gives 2 'comm-timeout is for the graphs of ranks' run tests/ir/flat.tn --inputs x --comm-timeout 5
gives 2 'log-ranks is for the graphs of ranks' run tests/ir/flat.tn --inputs x --log-ranks
gives 2 'run: --inputs is missing' run tests/ir/flat.tn
gives 2 'exclude each other' run tests/ir/flat.tn --inputs x --outputs - --json
gives 2 'unknown pass "cs"' opt tests/ir/identity.tn --passes=cs
gives 2 '--after: pass "dce" did not run' opt tests/ir/identity.tn --passes=cse --after=dce
gives 2 'needs a graph with' opt tests/ir/identity.tn --passes=optimizer
gives 2 '--show: expected infer|diff|cost|factors' ops mm --show kernel
gives 2 'bench: expected step, ops, time or plan' bench coffee
gives 2 'bench: a graph is for ops' bench step tests/ir/flat.tn
gives 2 'bench: --clock cpu is for one thread' bench --clock cpu --threads 2

# ---- files that are missing or broken ----

gives 1 'model "dem": no such folder and no preset of that name; the nearest is "demo"' plan dem --batch-size 1 --seq-len 8
gives 1 'no config.json there' plan "$dir" --batch-size 1 --seq-len 8
gives 1 "$dir/none.tn: cannot open" show "$dir/none.tn"
gives 1 "no such file" train demo --data "$dir/none.txt" --batch-size 1 --seq-len 8 --steps 1 --out "$dir/o"
gives 1 "$dir/none: cannot open" grad $ref --batch "$dir/none" --out "$dir/g"
gives 1 "not a regular file" grad $ref --batch /dev/null --out "$dir/g"
gives 1 "input_ids" grad $ref --batch $ref/model.safetensors --out "$dir/g"
printf 'tenon 1\ngraph g(%%x: f32[2]) {\n  %%y: f32[2] = ad(%%x, %%x)\n  return %%y\n}\n' >"$dir/bad.tn"
for command in "show" "plan" "opt --passes=cse" "run --inputs x" "check $dir/bad.tn"; do
    gives 1 "$dir/bad.tn:3:" $command "$dir/bad.tn"
done
gives 1 'standard input:1:1' show - </dev/null
gives 2 'unknown op "gellu"' ops gellu
for command in plan "opt --passes=default"; do # no value says that it is not given
    gives 2 '--align: expected an integer from 1 to 4096, found "0": a power of two; where it is not given, as the back end wants' \
        $command tests/ir/flat.tn --align 0
done
gives 2 'align: expected a power of two from 1 to 4096, found 3' plan demo --batch-size 1 --seq-len 8 --align 3
gives 0 '' plan demo --batch-size 1 --seq-len 8 --align 16

# A model's file cut short, wherever it is cut, and one with more than it says.
mkdir "$dir/cut"
cp $ref/config.json "$dir/cut"
size=$(wc -c <$ref/model.safetensors)
for cut in 0 7 8 100 2000 $((size - 1)); do
    head -c "$cut" $ref/model.safetensors >"$dir/cut/model.safetensors"
    gives 1 "$dir/cut/model.safetensors: " plan "$dir/cut" --batch-size 1 --seq-len 8
done
cat $ref/model.safetensors $batch >"$dir/cut/model.safetensors"
gives 1 "$dir/cut/model.safetensors: " plan "$dir/cut" --batch-size 1 --seq-len 8
rm "$dir/cut/model.safetensors"
gives 1 "$dir/cut/model.safetensors: cannot open" plan "$dir/cut" --batch-size 1 --seq-len 8
cp $ref/model.safetensors "$dir/cut"
head -c 30 $ref/config.json >"$dir/cut/config.json"
gives 1 "$dir/cut/config.json:" plan "$dir/cut" --batch-size 1 --seq-len 8
sed 's/"n_embd": 48/"n_embd": 64/' $ref/config.json >"$dir/cut/config.json"
gives 1 'wte.weight' plan "$dir/cut" --batch-size 1 --seq-len 8
sed 's/"n_head"/"rope_scaling": {"type": "x"}, "n_head"/' $ref/config.json >"$dir/cut/config.json"
gives 1 'rope_scaling' plan "$dir/cut" --batch-size 1 --seq-len 8

# ---- graphs ----

cat >"$dir/g.tn" <<'END'
tenon 1
graph g(%x: f32[2], %seed: i64[] seed, %step: i64[] step) {
  %d: f32[2] = dropout(%x, %seed, %step, p=0.5)  forward stream=0
  %s: f32[2] = add(%x, %x)  forward
  %n: f32[2] = log(%x)  forward
  return %d, %s, metric "logs" %n
}
END
header='{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"step":{"dtype":"I64","shape":[],"data_offsets":[8,16]}}'
tensors "$dir/in" "$header" '\0\0\200\77\0\0\0\100\3\0\0\0\0\0\0\0' # 1, 2; 3
gives 0 "" run "$dir/g.tn" --inputs "$dir/in" --outputs "$dir/y"
ok "outputs are named" grep -qa '"out0".*"out1".*"metric.logs"' "$dir/y"
gives 0 '"step": 3, "loss": null, "grad_norm": null, "lr": null, "tokens": null, "step_sec": ' \
    run "$dir/g.tn" --inputs "$dir/in" --json
planned=$(sed 's/.*"planned_peak_bytes": \([0-9]*\).*/\1/' "$dir/out")
ok "the peak is what was written" grep -q "\"measured_peak_bytes\": $planned, \"rss_peak_bytes\"" "$dir/out"
(
    large=$(head -c 300000000 /dev/zero | tr '\0' a) # makes what starts it large
    "$tenon" run "$dir/g.tn" --inputs "$dir/in" --json >"$dir/out"
    [ ${#large} = 300000000 ]
)
rss=$(sed 's/.*"rss_peak_bytes": \([0-9]*\).*/\1/' "$dir/out")
ok "the resident peak is of the program, not of who started it: $rss" [ "$rss" -lt 200000000 ]
"$tenon" run "$dir/g.tn" --inputs - --outputs - <"$dir/in" >"$dir/y2"
ok "standard input and output" cmp "$dir/y" "$dir/y2"
cat "$dir/in" | "$tenon" run "$dir/g.tn" --inputs - --outputs - | cat >"$dir/y2"
ok "pipes" cmp "$dir/y" "$dir/y2"
gives 0 "" run "$dir/g.tn" --inputs "$dir/in" --outputs "$dir/y3" --seed 3
gives 0 "" run "$dir/g.tn" --inputs "$dir/in" --outputs "$dir/y4" --seed 3 --check --threads 1
ok "the same seed" cmp "$dir/y3" "$dir/y4"
seeds=0
for seed in 1 2 3 4 5 6 7 8; do
    "$tenon" run "$dir/g.tn" --inputs "$dir/in" --outputs "$dir/y5" --seed $seed
    cmp -s "$dir/y" "$dir/y5" || seeds=$((seeds + 1))
done
ok "the seed counts" [ $seeds -gt 0 ]
tensors "$dir/in" "$header" '\0\0\200\277\0\0\0\100\3\0\0\0\0\0\0\0' # -1, 2
gives 0 'log %n gave a value that is not finite' run "$dir/g.tn" --inputs "$dir/in" --check
cat >"$dir/mask.tn" <<'EOF'
tenon 1
graph mask(%x: f32[2]) {
  %full: f32[2] = full(size=[2], fill_value=-inf)  forward
  %copy: bf16[2] = _to_copy(%full, dtype=bf16)  forward
  %y: f32[2] = maximum(%x, %full)  forward
  return %y, %copy
}
EOF
tensors "$dir/in" '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' '\0\0\200\77\0\0\0\100'
gives 0 "" run "$dir/mask.tn" --inputs "$dir/in" --check
ok "a constant is meant to be infinite" [ ! -s "$dir/err" ]
tensors "$dir/in" '{"y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' '\0\0\200\77\0\0\0\100'
gives 1 'input "x": expected f32[2], found no such tensor' run "$dir/g.tn" --inputs "$dir/in"
tensors "$dir/in" '{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' '\0\0\200\77'
gives 1 'input "x": expected f32[2], found f32[1]' run "$dir/g.tn" --inputs "$dir/in"
tensors "$dir/in" '{"x":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}}' '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
gives 1 'x' run "$dir/g.tn" --inputs "$dir/in"
gives 1 'not a regular file' run "$dir/g.tn" --inputs /dev/null
sed 's/add(%x, %x)/mul(%x, %x)/' "$dir/g.tn" >"$dir/h.tn"
tensors "$dir/h.in" "$header" '\0\0\200\77\0\0\0\100\3\0\0\0\0\0\0\0'
printf 'tenon 1\ngraph g(%%x: f32[2]) {\n  return %%x\n}\n' >"$dir/x.tn"
tensors "$dir/in" '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' '\0\0\200\77\0\0\0\100'
gives 2 'no input of role seed' run "$dir/x.tn" --inputs "$dir/in" --seed 1
gives 3 'does not fit' run "$dir/x.tn" --inputs "$dir/in" --memory 10
gives 1 'cannot write: No space' run "$dir/x.tn" --inputs "$dir/in" --outputs /dev/full

"$tenon" show - <tests/ir/flat.tn >"$dir/out"
ok "show prints what it reads" cmp tests/ir/flat.tn "$dir/out"
gives 0 'digraph' show --dot tests/ir/loop.tn
gives 0 'param   qkv         f32[192, 32]  f32[24, 32]  shard(0: 3, tp, 4, fsdp) ' show --mesh tests/ir/mesh.tn
gives 0 'fsdp  4      3   128               input 1, batch 1, param 2, state 2,' show --mesh tests/ir/mesh.tn
gives 0 'persistent: 7040 bytes of 57472' show --mesh tests/ir/mesh.tn
gives 1 'graph train_step: expected a mesh, found none' show --mesh tests/ir/flat.tn
gives 2 'show: --dot and --mesh exclude each other' show --mesh --dot tests/ir/mesh.tn
"$tenon" show tests/ir/flat.tn >/dev/full 2>"$dir/err"
ok "show to a full disk: exit code 1" [ $? = 1 ]
"$tenon" --help >/dev/full 2>"$dir/err"
ok "help to a full disk: exit code 1" [ $? = 1 ]
# A pipe that nobody reads any longer ends a command quietly, by SIGPIPE, as it does other tools.
mkfifo "$dir/closed"
: <"$dir/closed" &
exec 4>"$dir/closed"
wait $!
closed() { # ARGUMENTS...
    "$tenon" "$@" >&4 2>"$dir/err"
    code=$?
    ok "tenon $*: expected to end by SIGPIPE, found exit code $code" [ $code = 141 ]
    ok "tenon $*: quietly" not grep -q -e 'tenon: [^wn]' -e 'cannot write' "$dir/err"
}
head -c 3000 docs/formats.md >"$dir/some"
gives 0 "" tokenize "$dir/some" -o "$dir/some.tokens"
for command in --help --version ops passes "ops mm" "train --help" "show tests/ir/flat.tn" "plan tests/ir/flat.tn" \
    "plan $ref --batch-size 1 --seq-len 8 --explain" "plan $ref --batch-size 1 --seq-len 8 --html -" \
    "plan $ref --batch-size 1 --seq-len 8 --json" "opt tests/ir/flat.tn --passes=cse" "check $dir/g.tn $dir/g.tn" \
    "grad $ref --batch $batch --out -" "eval $ref --batch $batch" "detokenize $dir/some.tokens" \
    "generate demo --prompt a --tokens 1000000000 --context 64" "run $dir/h.tn --inputs $dir/h.in --json" \
    "import fx tests/fx/vanilla_ac/graph.txt --inputs tests/fx/vanilla_ac/inputs.safetensors -o -"; do
    # shellcheck disable=SC2086
    closed $command
done
# But a run of training goes on to its end, whatever nobody reads, and is saved.
closed train $ref --batch $batch --steps 9 --out "$dir/unread"
ok "training goes on without a reader" [ -s "$dir/unread/step-9/state.json" ]
"$tenon" train $ref --batch $batch --steps 9 --out "$dir/unread2" 2>&4 >"$dir/out"
ok "and without one of its progress" [ $? = 0 ]
ok "to its end" [ "$(wc -l <"$dir/out")" = 9 ]
closed train $ref --batch $batch --steps 9 --out "$dir/unread3" --metrics -
ok "and without one of its metrics, of which it warns once" \
    [ -s "$dir/unread3/step-9/state.json" -a "$(grep -c 'warning: .*nobody reads' "$dir/err")" = 1 ]
exec 4>&-
cp tests/ir/identity.tn "$dir/id.tn"
gives 0 "" opt "$dir/id.tn" --passes=cse,dce -o "$dir/id.tn"
ok "opt onto its input" cmp tests/ir/identity.tn "$dir/id.tn"
"$tenon" opt - --passes=dce -o - <tests/ir/flat.tn >"$dir/out" 2>"$dir/err"
ok "opt as a filter" grep -q '^graph' "$dir/out"
gives 1 'cannot write: No space' opt tests/ir/identity.tn --passes=cse -o /dev/full
gives 1 'cannot create' opt tests/ir/identity.tn --passes=cse -o "$dir/none/x.tn"
ok "nothing is left aside" [ -z "$(find "$dir" -name '*.tmp*')" ]
gives 0 'graph' opt tests/ir/flat.tn --passes=cse,dce --after=cse --timing
ok "times of passes" grep -Eq '^dce +[0-9]+ changes +[0-9.]+ s$' "$dir/err"
gives 0 'equal' check "$dir/g.tn" "$dir/g.tn" --seed 4
gives 1 'largest relative error' check "$dir/g.tn" "$dir/h.tn"
ok "and where" grep -q ' at s$' "$dir/out"
gives 0 'largest relative error' check "$dir/g.tn" "$dir/h.tn" --tolerance 1e9
gives 1 'have' check "$dir/g.tn" "$dir/x.tn"
# Integers that doubles do not tell apart; a tensor that is another input's; names that are no text.
for i in 0 1; do
    printf 'tenon 1\ngraph g(%%x: f32[0]) {\n  %%y = arange(start=900719925474099%d, end=900719925474099%d)\n  return %%y\n}\n' \
        $((2 + i)) $((3 + i)) >"$dir/far$i.tn"
done
gives 1 'largest relative error' check "$dir/far0.tn" "$dir/far1.tn"
printf 'tenon 1\ngraph g(%%a: f32[1] param "b", %%b: f32[1]) {\n  %%y = add(%%a, %%b)\n  return %%y\n}\n' >"$dir/named.tn"
tensors "$dir/b.safetensors" '{"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' '\0\0\0\0'
gives 1 'input "a": expected f32[1], found no such tensor' run "$dir/named.tn" --inputs "$dir/b.safetensors"
printf 'tenon 1\ngraph g(%%a: f32[1] param "a\377") {\n  %%y = neg(%%a)\n  return new "a\377" %%y\n}\n' >"$dir/bytes.tn"
tensors "$dir/a.safetensors" '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' '\0\0\0\0'
gives 1 'expected names of tensors in UTF-8' run "$dir/bytes.tn" --inputs "$dir/a.safetensors" --outputs "$dir/bytes.safetensors"
printf 'tenon 1\ngraph g(%%a: f32[1]) {\n  %%y = neg(%%a)  @"b\\"c"\n  return %%y\n}\n' >"$dir/quote.tn"
gives 0 'label="neg\nb\"c"' show --dot "$dir/quote.tn"
sed 's/"vocab_size"/"rope_scaling": {"type": "linear", "factor": 1e300}, "vocab_size"/' tests/ref/llama-tiny/config.json >"$dir/longest.json"
echo '{"model_type": null}' >"$dir/null.json"
gives 1 'key "model_type" is null' plan "$dir/null.json" --batch-size 1 --seq-len 8
gives 0 '' plan "$dir/longest.json" --batch-size 1 --seq-len 8
cat >"$dir/ids.tn" <<'END'
tenon 1
graph forward(%w: f32[4, 3], %i: i64[8]) {
  %one: i64[] = full(size=[], fill_value=1.0, dtype=i64)  forward
  %j: i64[8] = sub(%i, %one)  forward
  %e: f32[8, 3] = embedding(%w, %j)  forward
  return %e
}
END
gives 0 'equal' check "$dir/ids.tn" "$dir/ids.tn"
sed 's/=1.0/=9.0/' "$dir/ids.tn" >"$dir/far.tn"
gives 1 'no inputs that are drawn let the first graph run (integers 0 or 1, all 1, all 0): embedding %e: id -9' \
    check "$dir/far.tn" "$dir/far.tn"
gives 1 'the second graph fails where the first runs: embedding' check "$dir/ids.tn" "$dir/far.tn"
gives 0 'mm' ops
gives 0 'reference: yes' ops mm
gives 0 'nodes 21: forward 4, backward 17' \
    import fx tests/fx/vanilla_ac/graph.txt --inputs tests/fx/vanilla_ac/inputs.safetensors -o "$dir/fx.tn"
gives 0 '' run "$dir/fx.tn" --inputs tests/fx/vanilla_ac/inputs.safetensors --outputs "$dir/fx.safetensors"
gives 0 'return loss %sum_1, %mm_5' import fx tests/fx/vanilla_ac/graph.txt \
    --shapes 'x_1=f32[2,4], w1_1=f32[4,8], w2_1=f32[8,4]' --loss sum_1 -o -
cat >"$dir/forward.txt" <<'EOF'
def forward(self, x, w):
    y = torch.ops.aten.mm.default(x, w)
    loss = torch.ops.aten.mean.default(y)
    return (loss, y)
EOF
gives 0 'all is forward' import fx "$dir/forward.txt" --shapes 'x=f32[2,4], w=f32[4,3]' --loss loss --params w \
    -o "$dir/forward.tn"
gives 0 'grad "w" %' opt "$dir/forward.tn" --passes=grad
gives 1 'vanilla_ac/graph.txt:1:19: input "x_1" has no type' import fx tests/fx/vanilla_ac/graph.txt -o -
gives 1 '--shapes:1:5: ' import fx tests/fx/vanilla_ac/graph.txt --shapes 'x_1=x' -o -
gives 0 '' import fx tests/fx/gpt2_step/graph.txt --list-unknown
cat >"$dir/alias.txt" <<'EOF'
def forward(self, w: "f32[4]", x: "f32[4]"):
    mul = torch.ops.aten.mul.Tensor(x, w)
    alias = torch.ops.aten.alias.default(mul)
    sum_1 = torch.ops.aten.sum.default(alias)
    return sum_1
EOF
gives 0 'aliases 1: gradient unknown (--alias pass: gradients pass; stop: it came of detach())' \
    import fx "$dir/alias.txt" --loss sum_1 --params w -o "$dir/alias.tn"
gives 1 'alias.tn:4:3: alias %alias: whether a gradient passes is not known' opt "$dir/alias.tn" --passes=grad
gives 1 'with --alias pass or --alias stop' opt "$dir/alias.tn" --passes=canonicalize,cse,grad
gives 0 'aliases 1: gradient pass' import fx "$dir/alias.txt" --loss sum_1 --params w --alias pass -o "$dir/alias.tn"
gives 0 'grad "w" %dw' opt "$dir/alias.tn" --passes=grad
gives 0 'gradient="stop"' import fx "$dir/alias.txt" --alias stop -o -
gives 2 'alias' import fx "$dir/alias.txt" --alias maybe -o -
gives 2 '--unknown: expected refuse|barrier' import fx "$dir/alias.txt" --unknown maybe -o -
sed 's/aten.alias.default(mul)/lib.send.default(mul)/; s/sum.default(alias)/sum.default(mul)/' "$dir/alias.txt" >"$dir/send.txt"
gives 1 'unknown op lib.send.default' import fx "$dir/send.txt" -o -
gives 0 'opaque(%mul, call="lib.send.default"' import fx "$dir/send.txt" --unknown barrier -o -
gives 0 'mesh(group_0=4, group_1=2) at(3, 1)' import fx tests/fx/text/repro.fx -o -
gives 0 '%primals_2: f32[2, 2, 2]' import fx tests/fx/text/repro.fx -o -
ranks=tests/fx_ranks/fsdp_tp/graph.3.txt
gives 0 'group_size=2, group="fsdp")' import fx $ranks --mesh fsdp=2,tp=2 --rank 3 --group 2=fsdp --group 4=tp --group 0=fsdp,tp -o -
ok "the rank's place in the mesh" grep -q 'mesh(fsdp=2, tp=2) at(1, 1)' "$dir/out"
gives 1 "expected --group '2=AXIS' with axes of the mesh fsdp=2,tp=2" import fx $ranks --mesh fsdp=2,tp=2 -o -
gives 1 'no collective of tests/fx_ranks/fsdp_tp/graph.3.txt has this group; theirs: "2", "4", "0"' \
    import fx $ranks --mesh fsdp=2,tp=2 --group 2=fsdp --group 4=tp --group 0=fsdp,tp --group 7=tp -o -
gives 2 '--group 0=dp: expected axes of the mesh fsdp=2' import fx $ranks --mesh fsdp=2 --group 0=dp -o -
gives 2 '--group 0=dp: expected --mesh beside it' import fx $ranks --group 0=dp -o -
gives 2 '--rank: expected 0 to 3, found 4' import fx $ranks --mesh fsdp=2,tp=2 --rank 4 -o -
gives 2 'mesh "fsdp": expected AXIS=SIZE' import fx $ranks --mesh fsdp -o -
gives 0 'group="2")' import fx $ranks -o -
printf 'def forward(self, x):\n    c = self.m.b\n    return x * c\n' >"$dir/fx.txt"
gives 0 '%m.b: f32[4] const "m.b"' import fx "$dir/fx.txt" --shapes 'x=f32[2,4],m.b=f32[4],x=f32[2,4]' -o -
gives 1 '--shapes:1:23: input "x": expected one type, found f32[2, 4] and f32[2, 5]' \
    import fx "$dir/fx.txt" --shapes 'x=f32[2,4],m.b=f32[4],x=f32[2,5]' -o -
gives 1 'fx.txt has no input "y"; its inputs are: x, m.b' import fx "$dir/fx.txt" --shapes 'y=f32[3]' -o -
cat >"$dir/fx.txt" <<'EOF'
def forward(self, x):
    y = torch.ops.aten.foo.default(x)
    y = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '0')
    return y
EOF
"$tenon" import fx "$dir/fx.txt" --list-unknown >"$dir/out" 2>"$dir/err"
ok "import --list-unknown: exit code 1 where there are some" [ $? = 1 ]
ok "import --list-unknown names them" grep -q 'fx.txt:2: torch.ops.aten.foo.default, 1 time' "$dir/out"
gives 1 'fx.txt:2:5: unknown op aten.foo.default; nothing is near' import fx "$dir/fx.txt" --shapes 'x=f32[1]' -o -
sed -i 2d "$dir/fx.txt"
gives 0 '' import fx "$dir/fx.txt" --shapes 'x=f32[1]' -o "$dir/fx.tn"
gives 0 '' plan "$dir/fx.tn"
tensors "$dir/x.safetensors" '{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' '\0\0\0\0'
gives 1 'runs on several ranks (group "0")' run "$dir/fx.tn" --inputs "$dir/x.safetensors"
gives 2 'expected fx' import onnx "$dir/fx.txt" -o -
gives 2 '-o is missing' import fx "$dir/fx.txt"
gives 0 'mm(%x0, %x1)' ops mm --show infer
gives 0 'mm(' ops mm --show diff
gives 0 'flops' ops mm --show cost
gives 0 'parallel' ops mm --show factors
gives 0 'accumulate' passes

# ---- plans ----

gives 0 'lower bound' plan $ref --batch-size 2 --seq-len 16
gives 0 'mm' plan $ref --batch-size 2 --seq-len 16 --steps
gives 0 '"decisions": []' plan $ref --batch-size 2 --seq-len 16 --json
peak=$(sed -n 's/^ "peak_bytes": \([0-9]*\),/\1/p' "$dir/out")
reserve=$(sed -n 's/^ "library_reserve_bytes": \([0-9]*\),/\1/p' "$dir/out")
gives 0 '"peak_bytes"' plan $ref --batch-size 2 --seq-len 16 --json --memory $((peak + reserve))
gives 3 "needs $((peak + reserve)) bytes" plan $ref --batch-size 2 --seq-len 16 --json --recompute none \
    --memory $((peak + reserve - 1))
least=$(sed -n 's/.*the least that would do is \([0-9]*\).*/\1/p' "$dir/err")
ok "the least, as JSON" grep -qx " \"least_feasible_bytes\": $least," "$dir/out"
ok "what holds the peak, as JSON" grep -q '"peak_values": \[' "$dir/out"
ok "refused, as JSON" [ "$(sed -n '2p;4p' "$dir/out")" = " \"status\": \"refused\",
  \"limit_bytes\": $((peak + reserve - 1))," ]
gives 0 '"status": "planned"' plan $ref --batch-size 2 --seq-len 16 --json --memory 1GiB
gives 0 'warning: plan: --memory is given twice: 1GiB, which counts for nothing, and 2GiB' \
    plan $ref --batch-size 2 --seq-len 16 --memory 1GiB --memory=2GiB
gives 0 'lower bound' plan $ref --batch-size 2 --seq-len 16 --batch-size 2 --save '*::mm' --save '*::addmm'
ok "the same value twice, and options that may repeat: no warning" [ ! -s "$dir/err" ]
gives 3 'parameters' plan $ref --batch-size 2 --seq-len 16 --recompute none --memory 1MiB
gives 3 'does not fit' train $ref --batch $batch --steps 1 --out "$dir/unfit" --recompute none --memory 1MiB
ok "nothing is made where it does not fit" [ ! -e "$dir/unfit" ]
gives 3 'does not fit' grad $ref --batch $batch --out "$dir/g" --recompute none --memory 1MiB
gives 2 'accumulate' plan $ref --batch-size 5 --seq-len 16 --accumulate 4
gives 2 'positions' plan $ref --batch-size 2 --seq-len 33

# ---- training ----

gives 0 'step 1 loss 4.53796' train $ref --batch $batch --steps 3 --out "$dir/o/p" --lr 1e-3 --metrics "$dir/m"
ok "three lines" [ "$(wc -l <"$dir/out")" = 3 ]
ok "metrics" [ "$(grep -c '^{"step": [123], "loss": .*, "lr": .*, "tokens": .*"rss_peak_bytes": [0-9]*, "run": "[0-9a-f]*"}$' "$dir/m")" = 3 ]
ok "latest" [ "$(readlink "$dir/o/p/latest")" = step-3 ]
for file in config.json model.safetensors optimizer.safetensors state.json; do
    ok "step-3/$file" [ -s "$dir/o/p/step-3/$file" ]
done
ok "state" grep -q '"step": 3' "$dir/o/p/step-3/state.json"
cp "$dir/out" "$dir/first"
gives 0 'step 3' train $ref --batch $batch --steps 3 --out "$dir/o/p" --overwrite --lr 1e-3
ok "the same bits again, onto the same folder" cmp "$dir/out" "$dir/first"
ok "only what belongs there" [ "$(ls -A "$dir/o/p" | sort | tr '\n' ' ')" = ".run latest step-3 " ]
gives 0 'step 1 loss' train "$dir/o/p" --batch $batch --steps 1 --out "$dir/o/p1" --schedule constant
# Measurements: what is printed for a small model; that the JSON is JSON is seen by its reader, which then
# wants an object.
gives 2 'recompute: expected auto, none' bench plan --model demo --recompute half
gives 2 'the model has' bench step --model $ref --seq-len 99999 --json
for option in "model gpt2" "batch-size 2" "seq-len 8" "dtype bf16" "param-dtype bf16" "accumulate 2" "optimizer sgd" \
    "rounding nearest" "recompute full" "fuse off" "mesh dp=2" "chunk 2"; do
    # shellcheck disable=SC2086 # words
    gives 2 "--${option% *} is for a model, not for a graph" bench ops tests/ir/flat.tn --$option
done
# Names tell settings apart, and each run of plan solves anew.
plain="bench plan --model $ref --batch-size 4 --seq-len 8"
# shellcheck disable=SC2086 # words
gives 0 '' $plain --runs 1
ok "bench: the name of a plain step" grep -q "^$ref B=4 T=8 f32  planned peak" "$dir/out"
# shellcheck disable=SC2086
gives 0 '' $plain --runs 1 --accumulate 2 --optimizer sgd --param-dtype bf16 --rounding nearest --fuse off
ok "bench: what was given is in the name" grep -q \
    "^$ref B=4 T=8 f32 param-dtype bf16 accumulate 2 optimizer sgd rounding nearest fuse off  planned peak" "$dir/out"
# shellcheck disable=SC2086
gives 0 '' $plain --mesh dp=2 --shard auto --runs 2 --json
ok "bench plan: no run has what another one solved" awk '/graph, passes and plan/ {
    match($0, /"min": [0-9.e-]*/); min = substr($0, RSTART + 7, RLENGTH - 7) + 0
    match($0, /"max": [0-9.e-]*/); max = substr($0, RSTART + 7, RLENGTH - 7) + 0 }
    END { exit !(min > 0 && max < 10 * min) }' "$dir/out"
# Of more calls than are recorded those behind have no seconds, which is said.
gives 0 '' bench ops --model $ref --seq-len 1 --batch-size 13000 --accumulate 13000 --runs 1 --clock cpu --json
ok "bench ops: what is not recorded is said" grep -q 'warning: of the runs. [0-9]* calls [0-9]* are recorded' "$dir/err"
ok "bench ops: null where nothing was recorded" grep -q '"value": null.*"runs": 0, "min": null, "max": null' "$dir/out"
ok "bench ops: numbers that JSON has" [ "$(grep -c 'inf\|nan\|"value": 0,.*"runs": 0' "$dir/out")" = 0 ]
# The limits take ten seconds each: the calls of a graph alone with TN_LONG=1.
for measured in ops step; do
    if [ $measured = step ]; then
        what="--model $ref --batch-size 2 --seq-len 16"
    elif [ -n "$TN_LONG" ]; then
        what=tests/ir/flat.tn
    else
        continue
    fi
    # shellcheck disable=SC2086 # words
    gives 0 "limit: streams" bench $measured $what --runs 1 --clock cpu --json
    ok "bench $measured: keys" awk '!/^[][]$/ && !/"name": ".*", "value": .*, "unit": ".*, "limit": .*, "ratio": .*, "runs": .*, "min": .*, "max": / { bad = 1 }
        END { exit bad || NR < 10 }' "$dir/out"
    ok "bench $measured: a product has a limit" grep -q 'mm.*"limit": [0-9].*"lost": ' "$dir/out"
    [ $measured = step ] || ok "bench ops: which kernel, of which tensors, among which ways" \
        grep -q 'mm (onednn[a-z_]*) f32\[2, 8\], f32\[8, 4\] -> f32\[2, 4\].*"ways": [1-9].*"way": "onednn[a-z_]*", "best": "onednn' "$dir/out"
    mv "$dir/out" "$dir/$measured.json"
    gives 1 "expected a JSON object" plan "$dir/$measured.json" --batch-size 1 --seq-len 8
done
# On a device beside the host the same lines, with limits of its own.
gives 0 "limit: streams, update" bench step --model $ref --batch-size 2 --seq-len 16 --backend emulated --runs 1 --clock cpu --json
names() {
    sed -n 's/.*"name": "\([^"]*\)".*/\1/p' "$1" | grep -v '^way of ' | sort -u
}
ok "bench step: emulated: the lines of the processor" [ "$(names "$dir/out" | sed 's/ f32 backend emulated / f32 /')" = "$(names "$dir/step.json")" ]
gives 2 'bench: --clock cpu counts the processor' bench step --backend cuda --clock cpu
ok "bench step: the ratio" grep -q 'step / products alone", "value": [0-9]' "$dir/step.json"
ok "bench step: products by their ways" \
    grep -q 'products alone, by the ways taken", "value": [0-9.e-]*, "unit": "s", "limit": [0-9]' "$dir/step.json"
printf '%s\n' 'gpt2 B=4 T=64 f32  step / products alone  1.4 times' 'llama B=4 T=1024 bf16  step / products alone  1.36 times' \
    'gpt2  products alone, by the ways taken  2 s  limit  1.9  ratio 0.95' 'nothing is asked 3' \
    '  1.3  5  2.5  40 GF/s  0.34  flash_attention (tiles) bf16[4, 64], f32[2]' >"$dir/in"
ok "bench/asked.awk: what is asked, and whether it is met" \
    [ "$(awk -f bench/asked.awk "$dir/in" | sed 's/.*(asked//' | tr '\n' ,)" = \
        " <= 1.4: met), <= 1.35: MISSED), >= 0.95: met),nothing is asked 3, >= 0.35 with AMX: MISSED)," ]
gives 0 "peak resident" bench time --model $ref --batch-size 2 --seq-len 16 --runs 2 --json
ok "bench time: seconds and bytes alone" [ "$(grep -c '"name"' "$dir/out")" -eq 4 ]

# A config.json by itself: random weights, drawn by the seed.
gives 0 'step 1 loss' train $ref/config.json --batch $batch --steps 1 --out "$dir/o/c" --seed 1
cp "$dir/out" "$dir/seed1"
gives 0 'step 1 loss' train $ref/config.json --batch $batch --steps 1 --out "$dir/o/c1" --seed 1
ok "config.json alone: the same weights" cmp "$dir/out" "$dir/seed1"
gives 0 'step 1 loss' train $ref/config.json --batch $batch --steps 1 --out "$dir/o/c2" --seed 2
ok "config.json alone: other weights" [ "$(cat "$dir/out")" != "$(cat "$dir/seed1")" ]
gives 1 'missing.json' train "$dir/missing.json" --batch $batch --steps 1 --out "$dir/o/c"
from_latest=$(cat "$dir/out")
gives 0 "$from_latest" train "$dir/o/p/step-3" --batch $batch --steps 1 --out "$dir/o/q"
gives 0 "loss" grad "$dir/o/p" --batch $batch --out "$dir/g"
"$tenon" grad "$dir/o/p" --batch - --out - <$batch >"$dir/g2" 2>"$dir/err"
ok "gradients to standard output" cmp "$dir/g" "$dir/g2"
gives 1 'cannot write: No space' grad $ref --batch $batch --out /dev/full
gives 1 'cannot create' grad $ref --batch $batch --out "$dir/none/g"
head -c 1000 "$dir/o/p/step-3/model.safetensors" >"$dir/part" && cp "$dir/part" "$dir/o/p/step-3/model.safetensors"
gives 1 "$dir/o/p/step-3/model.safetensors: " train "$dir/o/p" --batch $batch --steps 1 --out "$dir/o/q"

# One batch: its loss, its logits.
gives 0 'loss ' grad $ref --batch $batch --out "$dir/g1"
cp "$dir/out" "$dir/loss"
gives 0 '' eval $ref --batch $batch --logits "$dir/logits"
ok "eval's loss of a batch is grad's" cmp "$dir/out" "$dir/loss"
ok "logits in f32" grep -qaF '"logits":{"dtype":"F32","shape":[32,97]' "$dir/logits"
gives 0 '"tokens": 32, "windows": 2' eval $ref --batch $batch --json
gives 2 'eval: --data or --batch is missing' eval $ref
gives 2 'does not go with --batch' eval $ref --batch $batch --seq-len 4
gives 2 'needs --batch' eval $ref --data "$dir/text" --logits "$dir/logits"
gives 1 'No space' eval $ref --batch $batch --logits /dev/full

# Weights in several files: the same numbers; a checkpoint that lacks one is not whole.
gives 0 'step 2 loss' train $ref --batch $batch --steps 2 --out "$dir/o/w1"
gives 0 'step 2 loss' train $ref --batch $batch --steps 2 --save-every 1 --out "$dir/o/w2" --shard-size 40kB
ok "weights in 7 files and an index" [ "$(ls "$dir/o/w2/step-2" | grep -c '^model')" = 8 ]
gives 0 'loss' grad "$dir/o/w1" --batch $batch --out "$dir/g1"
gives 0 'loss' grad "$dir/o/w2" --batch $batch --out "$dir/g2"
ok "the same from one file and from several" cmp "$dir/g1" "$dir/g2"
rm "$dir/o/w2/step-2/model-00003-of-00007.safetensors"
gives 1 'model-00003-of-00007.safetensors: cannot open' grad "$dir/o/w2" --batch $batch --out "$dir/g2"
gives 0 'step-1, the newest that is whole' train --resume --out "$dir/o/w2" --shard-size 0
ok "weights in one file" [ "$(ls "$dir/o/w2/step-2" | grep -c '^model')" = 1 ]

# Text: evaluation, samples, memory.
cat docs/*.md >"$dir/text"
gives 0 'held-out loss' train demo --data "$dir/text" --steps 3 --batch-size 2 --seq-len 16 --out "$dir/o/t" \
    --eval-every 2 --eval-windows all --save-every 2 --sample-tokens 5 --val-fraction 0.01 --metrics "$dir/m"
ok "a sample" grep -q -- '---- sample ----' "$dir/out"
ok "evaluations" [ "$(grep -c '"eval_loss": [0-9]' "$dir/m")" = 2 ]
ok "epochs" grep -q '"tokens": 96, "epoch": 0.0' "$dir/m"
ok "an epoch begins" grep -q '^epoch 1 begins with step 1$' "$dir/err"
ok "how much was evaluated" grep -q 'held-out loss .* tokens in \([0-9]*\) of \1 windows$' "$dir/err"
ok "the epoch in state.json" grep -q '"epoch": 1,' "$dir/o/t/latest/state.json"
gives 0 '"tokens"' eval "$dir/o/t" --data "$dir/text" --val-fraction 0.01 --document-token 10 --json
sed -n 's/.*"tokens": \([0-9]*\).*/\1/p' "$dir/out" >"$dir/fewer"
gives 0 '"tokens"' eval "$dir/o/t" --data "$dir/text" --val-fraction 0.01 --json
ok "labels after the document token are left out" [ "$(cat "$dir/fewer")" -lt \
    "$(sed -n 's/.*"tokens": \([0-9]*\).*/\1/p' "$dir/out")" ]
gives 2 'eval: --document-token does not go with --batch' eval "$dir/o/t" --batch $batch --document-token 10
gives 2 'train: --min-lr does not go with --schedule constant' train demo --data "$dir/text" --steps 1 --batch-size 1 \
    --seq-len 8 --out "$dir/o/s" --schedule constant --min-lr 1e-5
gives 2 'document-token: expected an id below 256, found 256' train demo --data "$dir/text" --steps 1 --batch-size 1 \
    --seq-len 8 --out "$dir/o/s" --document-token 256
ok "checkpoints" [ "$(ls "$dir/o/t" | tr '\n' ' ')" = "best latest step-2 step-3 " ]
ok "the plan comes first" awk '/^plan: / { plan = NR } /^step 1/ { exit !(plan && plan < NR) }' "$dir/err"
ok "planned and measured agree" sed -n 's/^memory: planned \([0-9]*\) bytes, highest byte written \([0-9]*\),.*/\1 \2/p' \
    "$dir/err" | awk '{ exit $1 != $2 }'
cat "$dir/text" | gives 0 'trained 1 steps' train demo --data - --steps 1 --batch-size 1 --seq-len 8 --out "$dir/o/t1" --val-fraction 0
printf 'ab' >"$dir/short"
gives 1 'no file has 2 tokens that are held out' train demo --data "$dir/text" --steps 1 --batch-size 1 --seq-len 8 \
    --out "$dir/o/s" --val-fraction 1e-6 --eval-every 1
gives 1 'expected at least 9 tokens to train on, found 2' train demo --data "$dir/short" --steps 1 --batch-size 1 --seq-len 8 --out "$dir/o/s"
gives 1 'cannot create' train $ref --batch $batch --steps 1 --out "$dir/o/s" --metrics "$dir/none/m"
gives 1 '/dev/full: cannot write: No space left' train $ref --batch $batch --steps 1 --out "$dir/o/s" --metrics /dev/full
gives 1 "$dir/text" train $ref --batch $batch --steps 1 --out "$dir/text/o"

# ---- interrupts ----

# wait_for COMMAND...: until it succeeds, at most a minute.
wait_for() {
    for i in $(seq 600); do
        "$@" && return
        sleep 0.1
    done
    return 1
}
lines() { [ "$(wc -l <"$dir/out")" -ge "$1" ]; }

: >"$dir/out"
"$tenon" train $ref --batch $batch --steps 1000000000 --out "$dir/o/i" >"$dir/out" 2>"$dir/err" &
pid=$!
ok "steps are seen at once" wait_for lines 3
kill -INT $pid
wait $pid
ok "exit code 130 after an interrupt" [ $? = 130 ]
last=$(sed -n '$s/step \([0-9]*\) .*/\1/p' "$dir/out")
ok "the step is finished and saved" [ -s "$dir/o/i/step-$last/state.json" ]
ok "latest after an interrupt" [ "$(readlink "$dir/o/i/latest")" = "step-$last" ]
ok "the interrupt is reported" grep -q "interrupted after step $last; saved in $dir/o/i/step-$last" "$dir/err"

# A run that hangs in writing metrics, as nobody reads the pipe: an interrupt cannot end it.
mkfifo "$dir/pipe"
sleep 600 <"$dir/pipe" &
reader=$!
: >"$dir/out"
"$tenon" train $ref --batch $batch --steps 1000000000 --out "$dir/o/j" --metrics "$dir/pipe" >"$dir/out" 2>"$dir/err" &
pid=$!
stuck() {
    before=$(wc -l <"$dir/out")
    sleep 1
    [ "$before" -gt 100 ] && lines "$before" && ! lines $((before + 1)) && grep -q '^State:.S' /proc/$pid/status
}
ok "a full pipe stops the run" wait_for stuck
for _ in 1 2 3; do
    kill -INT $pid
    sleep 0.3
done
wait $pid
ok "exit code 1 after three interrupts" [ $? = 1 ]
ok "the third stops at once" [ ! -e "$dir/o/j/latest" ]
kill $reader
wait $reader 2>/dev/null

# ---- full and read-only disks ----

mkdir "$dir/disk"
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=500k tenon "$dir/disk" 2>/dev/null; then
    mount=$dir/disk
    gives 1 'too little room' train $ref --batch $batch --steps 1 --out "$dir/disk/o"
    ok "nothing is left on a full disk" [ ! -e "$dir/disk/o" ]
    mount -o remount,ro,size=20m "$dir/disk"
    gives 1 'Read-only' train $ref --batch $batch --steps 1 --out "$dir/disk/o"
    ok "a read-only folder is seen before training" [ ! -s "$dir/out" ]
    gives 1 'Read-only' grad $ref --batch $batch --out "$dir/disk/g"
    gives 1 'Read-only' opt tests/ir/identity.tn --passes=cse -o "$dir/disk/g.tn"
else
    echo "note: no tmpfs could be mounted: full disks are tested by /dev/full alone"
    chmod 555 "$dir/disk"
    if [ ! -w "$dir/disk" ]; then
        gives 1 'Permission denied' train $ref --batch $batch --steps 1 --out "$dir/disk/o"
        gives 1 'Permission denied' grad $ref --batch $batch --out "$dir/disk/g"
    fi
fi


# ---- ways out ----

project=$PWD
cd "$dir" || exit 1
for _ in 1 2 3 4; do echo 'a text of a few words, and a few more'; done >words
few="--data words --batch-size 1 --seq-len 8"
# shellcheck disable=SC2086
{
    gives 1 'model "nosuch": no such folder and no preset of that name' train nosuch $few --steps 1 --out ways
    said '  presets: gpt2, gpt2-medium, llama3-1b'
    gives 2 'train: --steps is missing; --epochs or --max-sec may stand for --steps' train demo $few --out ways
    echo '{"steps": 2}' >steps.json
    gives 0 'trained 2 steps' train demo --config - $few --out ways <steps.json
    gives 1 '--config: -:1: expected a JSON object' train demo --config - $few --out ways </dev/null
}
gives 2 'merge: --output: expected a folder, found "-"; ./- is one of that name' merge ways -o -
gives 2 'train: --out: expected a folder, found "-"' train demo --out -
cp words ./-dash.txt
gives 2 'unknown option "-dash.txt"; the file of that name is ./-dash.txt' tokenize -dash.txt -o dash.bin
gives 0 '' tokenize -o dash.bin -- -dash.txt
gives 1 '--threads: cannot open' tokenize -o dash.bin -- -dash.txt --threads
# shellcheck disable=SC2086
gives 2 'train: --out is missing' train $few --steps 1 -- -x
said ' train --data words --batch-size 1 --seq-len 8 --steps 1 ./-x --out run'
if [ -c /dev/full ]; then
    for args in 'plan demo --batch-size 1 --seq-len 8' 'plan demo --batch-size 1 --seq-len 8 --json' 'ops' \
        'generate ways --prompt a --tokens 3'; do
        # shellcheck disable=SC2086
        "$tenon" $args >/dev/full 2>err
        ok "$args: why it cannot write" grep -q 'standard output: cannot write: No space left on device' err
    done
fi

# ---- the line of progress ----

if command -v script >/dev/null; then
    for columns in 30 200; do
        script -qc "stty cols $columns; '$tenon' train demo $few --steps 2 --out line --overwrite" /dev/null \
            </dev/null >typed 2>&1
        tr '\r' '\n' <typed | grep 'epoch 0' | sed "s/$(printf '\033')\[K//" >lines
        ok "a line of progress" [ -s lines ]
        ok "no wider than $columns columns" awk -v most=$columns 'length($0) >= most { bad = 1 } END { exit bad }' lines
    done
    ok "whole where there is room" grep -q 's left' lines
else
    echo 'note: without script the line of progress is not tested'
fi
cd "$project" || exit 1

totals
