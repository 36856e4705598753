#!/bin/sh
# --machine: what plan prints for a name, a file, standard input; names and files that are wrong; that what runs
# refuses another processor before it makes anything; comparing; and that a run goes on on another machine, with a
# warning, where graph and decisions are the same. Usage: tests/scripts/machine.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors
demo='demo --batch-size 4 --seq-len 32'

# number KEY FILE: a number of a JSON object.
number() {
    sed -n "s/^ *\"$1\": \([-+0-9.e]*\),\{0,1\}$/\1/p" "$2"
}
# hash ARGUMENTS...: that of a plan.
hash() {
    "$tenon" plan "$@" --json | sed -n 's/.*"plan_hash": "\([0-9a-f]*\)".*/\1/p'
}
# less X Y
less() {
    awk -v x="$1" -v y="$2" 'BEGIN { exit !(x + 0 < y + 0) }'
}

# ---- what plan prints ----

gives 0 's a step  (h100)' plan llama3-8b --batch-size 1 --seq-len 2048 --dtype bf16 --machine h100
ok "the share of products" grep -qE '^  of it .* [0-9.]+ % product' "$dir/out"
gives 0 '"machine": "h100"' plan $demo --machine h100 --json
cp "$dir/out" "$dir/h100"
gives 0 '"machine": "x86_64"' plan $demo --machine x86_64 --json
ok "h100 is faster" less "$(number est_step_sec "$dir/h100")" "$(number est_step_sec "$dir/out")"
ok "no collectives" grep -q '"est_comm_sec": null' "$dir/out"
gives 0 ' us  %mm' plan $demo --machine h100 --recompute full --explain
ok "one hash" [ "$(hash $demo)" = "$(hash $demo --machine none)" ]
ok "another hash" [ "$(hash $demo --machine h100)" != "$(hash $demo --machine a100)" ]
"$tenon" plan $demo --machine avx2 --threads 1 --json >"$dir/one"
"$tenon" plan $demo --machine avx2 --threads 4 --json >"$dir/four"
ok "cores" less "$(number est_step_sec "$dir/four")" "$(number est_step_sec "$dir/one")"

# Promises by the table before its calibration: the file is that table, and h100 is it still.
rank="llama3-8b --batch-size 4 --seq-len 512 --dtype bf16 --mesh fsdp=2,tp=2 --overlap off --recompute full"
gives 0 '"machine": "h100_before"' plan $rank --machine bench/h100_before.machine --json
cp "$dir/out" "$dir/before"
gives 0 '"machine": "h100"' plan $rank --machine h100 --json
for key in est_step_sec est_comm_sec added_sec; do
    ok "the same $key" [ "$(number $key "$dir/out")" = "$(number $key "$dir/before")" ]
done
gives 0 's a step  (h100_measured)' plan $rank --machine h100_measured
gives 0 '"machine": "h100_measured"' plan $rank --machine h100_measured --json
ok "h100_measured is slower" less "$(number est_step_sec "$dir/before")" "$(number est_step_sec "$dir/out")"
ok "on the same links" [ "$(number est_comm_sec "$dir/out")" = "$(number est_comm_sec "$dir/before")" ]

# Sides that are alike differ in nothing.
gives 0 '' plan $demo --machine avx2 --compare '' '' --json
sed -n '/"difference"/,$p' "$dir/out" >"$dir/difference"
ok "a difference" grep -q '"product": 0.0' "$dir/difference"
ok "no difference" not grep -q '": -\{0,1\}[0-9.]*[1-9]' "$dir/difference"
gives 0 'estimate ' plan $demo --compare '--machine h100' '--machine a100'
ok "of classes too" grep -qE '^  of it product +[0-9.]+ +[0-9.]+ +\+[0-9.]+ ms' "$dir/out"
ok "in their own size" less "$(awk '/of it product/ { print $4 }' "$dir/out")" "$(awk '/^  estimate/ { print $2 }' "$dir/out")"

# ---- files ----

printf 'machine 1\nname mine\nlike avx2\nlaunch 1000\n' >"$dir/mine"
gives 0 '(mine, ' plan $demo --machine "$dir/mine"
gives 0 '(mine, ' plan $demo --machine - --recompute full <"$dir/mine"
# a pipe can be read once, by a pass or by the plan
gives 0 '(mine, ' plan $demo --machine /dev/fd/3 --recompute full 3<<END
$(cat "$dir/mine")
END
printf 'machine 1\nname mine\nlike avx2\nlunch 1000\n' >"$dir/wrong"
gives 1 "$dir/wrong:4:1: expected a figure of a machine, found \"lunch\"; did you mean launch?" plan $demo --machine "$dir/wrong"
gives 1 "$dir/none: cannot open" plan $demo --machine "$dir/none"
gives 2 'found "h1000"; did you mean h100?' plan $demo --machine h1000
gives 2 'machine: expected one of avx512_amx ' plan $demo --machine help
gives 2 '--html: ' plan $demo --machine "$dir/mine" --html "$dir/mine"

# What was measured: seconds of a node take the place of those that the figures give, ways are shown.
cat >"$dir/text.tn" <<'END'
tenon 1
graph g(%x: f32[64, 32], %w: f32[32, 48]) {
  %y: f32[64, 48] = mm(%x, %w)
  %z: f32[64, 48] = relu(%y)
  return %z
}
END
key='mm f32[64, 32] f32[32, 48] -> f32[64, 48]'
printf 'machine 1 name mine like avx2 sec "%s" 2 way "%s" onednn\n' "$key" "$key" >"$dir/mine"
gives 0 ' 2 s a step  (mine, ' plan "$dir/text.tn" --machine "$dir/mine"
ok "the way" grep -q '^  ways          mm.onednn 1$' "$dir/out"
gives 0 '"kernel": "onednn"' plan "$dir/text.tn" --machine "$dir/mine" --json
gives 0 'mm.onednn x@' plan "$dir/text.tn" --machine "$dir/mine" --steps
ok "in the hash" [ "$(hash "$dir/text.tn" --machine "$dir/mine")" != "$(hash "$dir/text.tn" --machine avx2)" ]
printf 'machine 1 name mine like avx2\nway "%s" fast\n' "$key" >"$dir/wrong"
gives 1 "$dir/wrong:2:5: key: expected a kernel of mm, found \"fast\"" plan "$dir/text.tn" --machine "$dir/wrong"
printf 'machine 1 name mine like avx2 threads 3\n' >"$dir/wrong"
gives 1 'found 3; give --threads 3, or measure again' plan "$dir/text.tn" --machine "$dir/wrong" --threads 2
gives 0 '(mine, 3 cores)' plan "$dir/text.tn" --machine "$dir/wrong" --threads 3

# ---- what runs ----

gives 2 'machine: h100 is not this processor, which is ' train $ref --batch $batch --steps 1 --out "$dir/no" --machine h100
ok "nothing was made" [ ! -e "$dir/no" ]
gives 2 'machine: h100 is not this processor' grad $ref --batch $batch --out "$dir/no" --machine h100
gives 2 'machine: h100 is not this processor' eval $ref --batch $batch --machine h100
here=$("$tenon" plan $demo --json | sed -n 's/.*"machine": "\(.*\)".*/\1/p')
gives 0 'loss ' eval $ref --batch $batch --machine "$here"

gives 0 '(h100)' plan tests/ir/flat.tn --machine h100 # a graph as it is written, by another machine

# ---- a run goes on ----

state=$dir/run/latest/state.json
gives 0 '' train $ref --batch $batch --steps 4 --out "$dir/whole" --machine "$here" --schedule constant --recompute full
tail -2 "$dir/out" >"$dir/want"
gives 0 '' train $ref --batch $batch --steps 2 --out "$dir/run" --schedule constant --recompute full
ok "the machine is stored" grep -q "\"machine\": \"$here\"" "$state"
cp -r "$dir/run" "$dir/kept"
# resumes CODE TEXT SED: goes on from a state that sed has changed.
resumes() {
    rm -rf "$dir/run"
    cp -r "$dir/kept" "$dir/run"
    sed -i -e '/"crc32c"/d' -e "$3" "$state"
    gives "$1" "$2" train --resume --steps 4 --out "$dir/run"
    [ "$1" != 0 ] || ok "the same steps: $3" cmp -s "$dir/out" "$dir/want"
}
# The state of a run on another processor; with other hashes; of a tenon that did not store the machine's file.
other='s/"machine": "'$here'"/"machine": "z80"/; s/"machine_file": "machine 1\\nname [a-z0-9_]*\\nlike [a-z0-9_]*/"machine_file": "machine 1\\nname z80\\nlike aarch64/'
hashes='s/"\(machine\|plan\|steps\)_hash": "[^"]*"/"\1_hash": "0123456789abcdef"/'
older='/"machine_file"/d'
resumes 0 "the run began on the machine z80, now $here: bits may differ" "$other"
resumes 0 "the run began on the machine z80" "$other; $hashes; s/\"sec\": [0-9.e-]*/\"sec\": 1/"
resumes 1 'steps_hash: stored "0123456789abcdef", now' "$hashes"
resumes 1 'machine: stored "z80", now' "$other; s/\"nodes\": [0-9]*/\"nodes\": 3/"
ok "what differs" grep -qF 'nodes: stored 3, now' "$dir/err"
resumes 0 'does not say which kernels the run had: bits may differ' "$older; $hashes"
resumes 0 'does not say which kernels' "$older; /\"machine_hash\"/d; /\"machine\": \"$here\"/d; /\"backend\": \"cpu\"/d; s/\(\"nodes\": [0-9]*\),/\1/; $hashes"
ok "one warning" [ "$(grep -c 'bits may differ' "$dir/err")" = 1 ]

# The figures with which it began stay, unless --machine names others.
launch='s/\\nlaunch [0-9.]*/\\nlaunch 123/; s/"machine_hash": "[^"]*"/"machine_hash": "0123456789abcdef"/'
resumes 0 '' "$launch"
ok "its own figures" grep -q '\\nlaunch 123' "$state"
ok "no warning" not grep -q 'bits may differ' "$dir/err"
rm -rf "$dir/run"
cp -r "$dir/kept" "$dir/run"
sed -i -e '/"crc32c"/d' -e "$launch" "$state"
gives 0 "the figures of the machine $here are others than when the run began" train --resume --steps 4 --out "$dir/run" --machine "$here"
ok "the same steps" cmp -s "$dir/out" "$dir/want"

totals
