#!/bin/sh
# tenon tune: the file that it makes and that plans are made by, what ends it on the way, files that are no good,
# folders that cannot be written, and runs that keep the kernels with which they began. Usage: tests/scripts/tune.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny
batch=$ref/batch.safetensors
unset TENON_MACHINE XDG_CACHE_HOME
export TENON_CACHE="$dir/cache"
set -- $ref --batch-size 2 --seq-len 16 --threads 1 --clock cpu

# ---- the file ----

row=$("$tenon" plan $ref --batch-size 2 --seq-len 16 --threads 1 --json | sed -n 's/.*"machine": "\(.*\)".*/\1/p')
plan_hash() { "$tenon" plan $ref --batch-size 2 --seq-len 16 --threads 1 --json "$@" | sed -n 's/.*"plan_hash": "\(.*\)".*/\1/p'; }
before=$(plan_hash)

gives 0 'plans for 1 thread are made by it from now on' tune "$@"
ok "a line for each dtype" [ "$(grep -c 'T=16 .*  step .* s, estimated .* s, ratio ' "$dir/out")" = 2 ]
ok "one file, and nothing beside it" [ "$(ls "$dir/cache" | wc -l)" = 1 ]
cp "$dir/out" "$dir/tuned.out"
file=$(ls "$dir"/cache/*-1-thread.machine)
ok "of the library's version" sh -c "case $file in *onednn-*) ;; *) false ;; esac"
ok "seconds of nodes" [ "$(grep -c '^sec "' "$file")" -gt 20 ]
ok "for one thread" grep -q '^threads 1$' "$file"
cp "$file" "$dir/good"
gives 0 '(tuned, 1 core)' plan $ref --batch-size 2 --seq-len 16 --threads 1
ok "no warning" [ ! -s "$dir/err" ]
gives 0 "($row, 2 cores)" plan $ref --batch-size 2 --seq-len 16 --threads 2 # for others there is none
gives 0 "($row, 1 core)" plan $ref --batch-size 2 --seq-len 16 --threads 1 --machine none
ok "its hash is in the plan's" [ "$(plan_hash)" != "$before" ]
ok "same file, same hash" [ "$(plan_hash)" = "$(plan_hash --machine "$file")" ]
ok "none: as before" [ "$(plan_hash --machine none)" = "$before" ]
# The step measured last: of the one before it some nodes are in both and were measured again.
estimated() {
    "$tenon" plan $ref --batch-size 2 --seq-len 16 --dtype bf16 --threads 1 --json "$@" |
        sed -n 's/.*"est_step_sec": \([0-9.e-]*\).*/\1/p'
}
est=$(estimated)
ok "what tune said is estimated: $est" awk -v a="$est" '
    / bf16 .* step / { for (i = 1; i < NF; i++) if ($i == "estimated") m = $(i + 1) }
    END { exit !(m > 0 && a / m > 0.999 && a / m < 1.001) }' "$dir/tuned.out"
awk '$1 == "sec" { $NF *= 10 } 1' "$file" >"$dir/slow.machine"
slow=$(estimated --machine "$dir/slow.machine")
ok "from the seconds of the file: $est, of ten times those $slow" awk "BEGIN { exit !($slow > 9 * $est && $slow < 10.01 * $est) }"

gives 0 'nothing is new' tune "$@"
ok "nothing is announced" not grep -q 'minutes' "$dir/err"
ok "as it was" cmp "$dir/good" "$file"
gives 0 '  step ' tune "$@" --dtype f32 --again
ok "not of the other dtype" [ "$(grep -c 'T=16' "$dir/out")" = 1 ]
ok "all of it is there" [ "$(grep -c '^sec "' "$file")" = "$(grep -c '^sec "' "$dir/good")" ]
gives 0 'T=24 f32  step' tune $ref --batch-size 2 --seq-len 24 --threads 1 --clock cpu --dtype f32
ok "one file for all models" [ "$(grep -c '^sec "' "$file")" -gt "$(grep -c '^sec "' "$dir/good")" ]
cp "$dir/good" "$file"

# ---- TENON_MACHINE, and where the file is ----

machine_of() { "$tenon" plan $ref --batch-size 2 --seq-len 16 --threads 1 | sed -n 's/.*a step  (\(.*\))/\1/p'; }
ok "TENON_MACHINE=none" [ "$(TENON_MACHINE=none machine_of)" = "$row, 1 core" ]
ok "TENON_MACHINE=h100" [ "$(TENON_MACHINE=h100 machine_of)" = h100 ]
ok "TENON_MACHINE=FILE" [ "$(TENON_MACHINE=$dir/good machine_of)" = 'tuned, 1 core' ]
ok "an empty one is none" [ "$(TENON_MACHINE='' machine_of)" = 'tuned, 1 core' ]
export TENON_MACHINE=none
gives 0 'not used while TENON_MACHINE is set, which is "none"' tune "$@"
unset TENON_MACHINE
mkdir -p "$dir/xdg/tenon" "$dir/home/.cache/tenon"
cp "$file" "$dir/xdg/tenon"
ok "XDG_CACHE_HOME" [ "$(TENON_CACHE='' XDG_CACHE_HOME=$dir/xdg machine_of)" = 'tuned, 1 core' ]
ok "HOME" [ "$(TENON_CACHE='' HOME=$dir/home machine_of)" = "$row, 1 core" ]
cp "$file" "$dir/home/.cache/tenon"
ok "HOME with a file" [ "$(TENON_CACHE='' HOME=$dir/home machine_of)" = 'tuned, 1 core' ]
ok "a relative XDG_CACHE_HOME is none" [ "$(TENON_CACHE='' XDG_CACHE_HOME=xdg HOME=$dir/xdg machine_of)" = "$row, 1 core" ]
home=$HOME
unset TENON_CACHE HOME
gives 2 'tune: none of TENON_CACHE, XDG_CACHE_HOME and HOME says where the file should be; -o FILE does' tune "$@"
export TENON_CACHE="$dir/cache" HOME="$home"
ok "without a home plans are made" [ "$(TENON_CACHE='' HOME='' machine_of)" = "$row, 1 core" ]

# ---- files that are no good: one warning, and the shipped row ----

# ignored TEXT: the file in the cache is left alone, and why.
ignored() {
    gives 0 "($row, 1 core)" plan $ref --batch-size 2 --seq-len 16 --threads 1
    ok "$1: one warning" [ "$(grep -c '^tenon: warning: ' "$dir/err")" = 1 ]
    ok "expected the warning: $1" grep -qF -e "$1" "$dir/err"
    ok "$1: it says what to do" grep -q '^  the file is not used; `tenon tune` makes a new one$' "$dir/err"
    ok "$1: bits as without" [ "$(plan_hash 2>/dev/null)" = "$before" ]
}
: >"$file"
ignored 'expected "machine"'
head -c 1000 "$dir/good" >"$file"
ignored "$file:"
head -c 4000 /dev/urandom >"$file"
ignored "$file"
sed 's/^threads 1$/threads 3/' "$dir/good" >"$file"
ignored 'expected what was measured with 1 thread, found 3'
sed 's/^library .*/library "onednn 1.0.0"/' "$dir/good" >"$file"
ignored 'found onednn 1.0.0'
sed 's/^like .*/like aarch64/' "$dir/good" >"$file"
[ "$row" = aarch64 ] || ignored 'expected a machine that is like this processor, found like aarch64'
sed 's/^machine 1/machine 0/' "$dir/good" >"$file"
ignored 'a version'
sed '$i way "mm f32[4, 4] f32[4, 4] -> f32[4, 4]" nonsense' "$dir/good" >"$file"
ignored 'found "nonsense"'
for cut in 50 300 301 305 2000 5 4; do # bytes from the beginning, or few from the end
    [ $cut -gt 9 ] || cut=$(($(wc -c <"$dir/good") - cut))
    head -c $cut "$dir/good" >"$file"
    ignored "$file:"
done
sed '$d' "$dir/good" >"$file"
ignored 'expected end, with which a tuned file ends: it is cut off'
rm "$file"
mkdir "$file"
ignored 'not a regular file'
rmdir "$file"
mkfifo "$file"
ignored 'not a regular file'
rm "$file"
gives 1 'expected what was measured with 2 threads, found 1' plan $ref --batch-size 2 --seq-len 16 --threads 2 --machine "$dir/good"
for make in mkdir mkfifo; do
    $make "$file"
    gives 1 "$file: not a regular file" tune "$@"
    ok "$make: at once, and nothing beside it" [ ! -s "$dir/out" -a "$(ls "$dir/cache" | wc -l)" = 1 ]
    ok "$make: it stays" [ -d "$file" -o -p "$file" ]
    rm -r "$file"
done
echo nonsense >"$file"
gives 0 'the file is not gone on from' tune "$@" --dtype f32
ok "a new one is made" [ "$(machine_of)" = 'tuned, 1 core' ]
rm "$file"

# ---- ended on the way ----

# begin: tunes in the background, until something was measured.
begin() {
    "$tenon" tune $ref --batch-size 2 --seq-len 32 --threads 1 >"$dir/first.out" 2>"$dir/first.err" &
    pid=$!
    while ! grep -q '^\(way\|sec\) ' "$file.part" 2>/dev/null && kill -0 $pid 2>/dev/null; do :; done
}
begin
kill -9 $pid
wait $pid 2>/dev/null
ok "killed: no file yet" [ ! -e "$file" ]
ok "killed: what was measured is there" grep -q '^\(way\|sec\) ' "$file.part"
cp "$file.part" "$dir/part"
gives 0 'tuned' plan $ref --batch-size 2 --seq-len 16 --threads 1 --machine "$file.part"
gives 0 "goes on from $file.part" tune $ref --batch-size 2 --seq-len 32 --threads 1
ok "what was killed is kept" [ "$(grep -cxFf "$dir/part" "$file")" -ge "$(grep -c '^way' "$dir/part")" ]
ok "and nothing else is left" [ "$(ls "$dir/cache")" = "$(basename "$file")" ]

rm "$file"
begin
kill -STOP $pid
gives 1 'another `tenon tune` is measuring for this file' tune "$@"
ok "the other's is as it was" [ -s "$file.part" ]
gives 0 "($row, 1 core)" plan $ref --batch-size 2 --seq-len 16 --threads 1
kill -CONT $pid
wait $pid
ok "the first comes to its end" [ $? = 0 -a -s "$file" ]

cp "$dir/good" "$file"
begin
kill -INT $pid
wait $pid
ok "Ctrl-C: exit code 130" [ $? = 130 ]
ok "it says from where to go on" grep -q "^tenon: interrupted; the same call goes on from $file.part" "$dir/first.err"
ok "the file is as before" cmp "$file" "$dir/good"
ok "and what was measured beside it" [ "$(ls "$dir/cache" | wc -l)" = 2 ]
rm "$file.part"

# ---- beside another program, here one that stops it on its way ----

long="$ref --batch-size 16 --seq-len 64 --threads 1 --dtype f32"
gives 0 '  step ' tune $long --clock cpu -o "$dir/alone"
ok "alone there is nothing to tell" not grep -q 'what is estimated' "$dir/err"
grep -v '^sec ' "$dir/alone" >"$dir/disturbed"
"$tenon" tune $long -o "$dir/disturbed" >"$dir/out" 2>"$dir/err" &
pid=$!
while kill -STOP $pid 2>/dev/null && sleep 0.004; do
    kill -CONT $pid 2>/dev/null
    sleep 0.001
done
wait $pid
ok "disturbed: it comes to its end" [ $? = 0 ]
ok "disturbed: the ratio is told" grep -q 'warning: .*, batch 16, length 64, f32: what is estimated is 0\.' "$dir/err"
ok "disturbed: that of the step" grep -q 'ratio 0\.[0-8]' "$dir/out"

# ---- where it cannot be written ----

echo mine >"$dir/notes"
gives 1 "$dir/notes:1:1: expected" tune "$@" -o "$dir/notes"
ok "what is no machine's file stays" [ "$(cat "$dir/notes")" = mine -a "$(ls "$dir" | grep -c notes)" = 1 ]
gives 1 'cannot create: No such file' tune "$@" -o "$dir/none/machine"
gives 1 'not a regular file' tune "$@" -o /dev/full
gives 2 'expected a file, which grows as it measures' tune "$@" -o -
export TENON_CACHE="$dir/notes"
gives 1 'cannot create: ' tune "$@"
export TENON_CACHE="$dir/cache"
gives 0 "--machine $dir/own makes plans by it" tune "$@" --dtype f32 -o "$dir/own"
ok "the cache's is not touched" cmp "$file" "$dir/good"
gives 0 'tuned' plan $ref --batch-size 2 --seq-len 16 --threads 1 --machine "$dir/own"
mkdir "$dir/disk"
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=256k tenon "$dir/disk" 2>/dev/null; then
    mount=$dir/disk
    cp "$dir/good" "$dir/disk/$(basename "$file")"
    dd if=/dev/zero of="$dir/disk/zeros" bs=1k 2>/dev/null
    export TENON_CACHE="$dir/disk"
    gives 1 'No space left on device' tune "$@" --again
    ok "full: the file is as before" cmp "$dir/good" "$dir/disk/$(basename "$file")"
    ok "full: nothing is left" [ "$(ls "$dir/disk" | wc -l)" -le 3 ]
    ok "full: plans are made by it" [ "$(machine_of)" = 'tuned, 1 core' ]
    mount -o remount,ro "$dir/disk"
    gives 1 'Read-only file system' tune "$@" --again
    ok "read-only: plans are made by it" [ "$(machine_of)" = 'tuned, 1 core' ]
    mount -o remount,rw "$dir/disk"
    export TENON_CACHE="$dir/cache"
else
    echo "note: tune.sh: no tmpfs could be mounted: full and read-only folders are not tried"
fi

# ---- what does not fit ----

gives 3 'does not fit: a step needs ' tune gpt2 --batch-size 4096 --seq-len 1024 --threads 1 --dtype f32
gives 3 'none of the 2 steps fits' tune gpt2 --batch-size 4096 --seq-len 1024 --threads 1
ok "each is told of" [ "$(grep -c 'warning: gpt2, batch 4096, length 1024: left out: does not fit' "$dir/err")" = 2 ]
ok "the file is as before" cmp "$file" "$dir/good"
rm -f "$dir"/cache/*.part "$dir"/cache/*2-threads*

# ---- usage ----

gives 2 'is for a model that is named' tune --batch-size 2
gives 2 '--clock cpu is for one thread' tune "$@" --threads 2
gives 1 'no-such' tune no-such
gives 2 'the model has 32 positions' tune $ref tests/ref/gpt2-tiny --batch-size 2 --seq-len 40 --threads 1 -o "$dir/shapes"
ok "nothing was measured before" [ ! -s "$dir/out" -a ! -e "$dir/shapes.part" ]
gives 2 '--retune needs --resume' train $ref --batch $batch --steps 1 --out "$dir/no" --retune

# ---- on a device beside the processor, and a run on it that keeps its kernels ----

gives 2 '--clock cpu does not go with --backend cuda' tune "$@" --backend cuda
gives 2 '--device 1: expected --backend cuda, found emulated' tune "$@" --backend emulated --device 1
if [ ! -e /dev/nvidiactl ]; then
    "$tenon" tune $ref --batch-size 2 --seq-len 16 --backend cuda >"$dir/out" 2>"$dir/err"
    ok "without a GPU there is nothing to measure" [ $? -gt 0 ]
    ok "why" grep -q 'expected a GPU, found none\|was built without it' "$dir/err"
fi
on_device() { "$tenon" plan $ref --batch-size 2 --seq-len 16 --threads 1 --backend emulated "$@" 2>"$dir/err" |
    sed -n 's/.*a step  (\(.*\))/\1/p'; }
device_file=$(dirname "$file")/emulated-$(basename "$file")
ok "by the processor's file" [ "$(on_device)" = 'tuned, 1 core' ]
mv "$file" "$dir/cpu"
ok "by none" [ "$(on_device)" = "$row, 1 core" ]
tune_device="tune $ref --batch-size 2 --seq-len 16 --threads 1 --dtype f32 --backend emulated"
gives 0 '' train $ref --batch $batch --threads 1 --schedule constant --backend emulated --steps 4 --out "$dir/device-whole"
tail -2 "$dir/out" >"$dir/device-want"
gives 0 '' train $ref --batch $batch --threads 1 --schedule constant --backend emulated --steps 2 --out "$dir/device"
"$tenon" $tune_device >"$dir/first.out" 2>"$dir/first.err" &
pid=$!
while ! grep -q '^way ' "$device_file.part" 2>/dev/null && kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -INT $pid
wait $pid
ok "Ctrl-C on a device: exit code 130" [ $? = 130 ]
cp "$device_file.part" "$dir/part"
gives 0 "goes on from $device_file.part" $tune_device
ok "on a device: what was measured is kept" [ "$(grep -cxFf "$dir/part" "$device_file")" -ge "$(grep -c '^way' "$dir/part")" ]
ok "on a device: seconds of nodes" [ "$(grep -c '^sec "' "$device_file")" -gt 20 ]
ok "on a device: a file of its own alone" [ "$(ls "$dir/cache")" = "$(basename "$device_file")" ]
ok "plans for it are made by it" [ "$(on_device)" = 'tuned, 1 core' ]
ok "none: as before" [ "$(on_device --machine none)" = "$row, 1 core" ]
gives 0 "($row, 1 core)" plan $ref --batch-size 2 --seq-len 16 --threads 1 # it is not the processor's
gives 0 'nothing is new' $tune_device
gives 0 '' train --resume --steps 4 --out "$dir/device" --backend emulated
ok "on a device, tuned since: no warning" not grep -q 'bits may differ' "$dir/err"
ok "on a device, tuned since: the same steps" cmp -s "$dir/out" "$dir/device-want"
head -c 1000 "$device_file" >"$dir/cut"
cp "$dir/cut" "$device_file"
ok "damaged: by none" [ "$(on_device)" = "$row, 1 core" ]
ok "damaged: what to do" grep -q '^  the file is not used; `tenon tune --backend emulated` makes a new one$' "$dir/err"
rm "$device_file"
mv "$dir/cpu" "$file"

# ---- a run keeps its kernels ----

rm "$file"
run="$ref --batch $batch --threads 1 --schedule constant"
gives 0 '' train $run --steps 4 --out "$dir/whole"
tail -2 "$dir/out" >"$dir/want"
gives 0 '' train $run --steps 2 --out "$dir/run"
cp -r "$dir/run" "$dir/kept"
cp "$dir/good" "$file"
gives 0 '' train --resume --steps 4 --out "$dir/run"
ok "tuned since: no warning" not grep -q 'bits may differ' "$dir/err"
ok "tuned since: the same steps" cmp -s "$dir/out" "$dir/want"
again() {
    rm -rf "$dir/run"
    cp -r "$dir/kept" "$dir/run"
}
again
gives 0 'warning: --retune: kernels, and what --memory decides, may be others' train --resume --steps 4 --out "$dir/run" --retune
again
state=$dir/run/latest/state.json
sed -i '/"crc32c"/d; /"machine_file"/s/end\\n"/way \\"mm f32[4, 4] f32[4, 4] -> f32[4, 4]\\" nonsense\\nend\\n"/' "$state"
grep -q nonsense "$state" || ok "the state was changed" false
gives 1 'found "nonsense"' train --resume --steps 4 --out "$dir/run"
ok "it says what to do" grep -q '^  --retune goes on with the kernels that are the fastest here' "$dir/err"
gives 0 'warning: --retune' train --resume --steps 4 --out "$dir/run" --retune
# damaged SED: the stored machine is refused, and --retune goes on without.
damaged() {
    again
    sed -i '/"crc32c"/d' "$state"
    cp "$state" "$dir/before"
    sed -i "$1" "$state"
    cmp -s "$state" "$dir/before" && ok "the state was changed: $1" false
    gives 1 "$2" train --resume --steps 4 --out "$dir/run"
    gives 0 'warning: --retune' train --resume --steps 4 --out "$dir/run" --retune
}
no_text='"machine_file": expected the text of a machine file'
damaged 's/"machine_file": "[^"]*\(\\"[^"]*\)*"/"machine_file": "garbage"/' "$no_text"
damaged 's/"machine_file": "[^"]*\(\\"[^"]*\)*"/"machine_file": ""/' "$no_text"
damaged 's/"machine_file": "[^"]*\(\\"[^"]*\)*"/"machine_file": 3/' "$no_text"
damaged 's/"machine_file": "[^"]*\(\\"[^"]*\)*"/"machine_file": "machine 1\\ngarbage"/' 'found "garbage"'
damaged 's/\\nname [a-z0-9_]*\\nlike [a-z0-9_]*/\\nname own\\nlike h100/' 'own is not this processor'
gives 0 '' train $run --steps 2 --out "$dir/named" --machine "$dir/good"
gives 0 'goes on as with --machine none' train --resume --steps 4 --out "$dir/named" --threads 2
ok "why" grep -q 'expected what was measured with 2 threads, found 1' "$dir/err"
echo nonsense >"$file"
again
gives 0 '' train --resume --steps 4 --out "$dir/run" --machine none
train="$ref --data README.md --tokenizer bytes --seq-len 16 --batch-size 2 --threads 1 --machine none"
gives 0 'of product peak' train $train --steps 2 --out "$dir/text"
ok "--machine none: the file is not read" not grep -q 'warning: .*machine:' "$dir/err"
gives 0 'of product peak' train --resume --steps 4 --out "$dir/text" --machine none
ok "resumed: the file is not read" not grep -q 'warning: .*machine:' "$dir/err"
cp "$dir/good" "$file"
gives 0 '' train $run --steps 2 --out "$dir/tuned"
rm "$file"
gives 0 '' train --resume --steps 4 --out "$dir/tuned"
ok "the file is gone: no warning" not grep -q 'bits may differ' "$dir/err"
cp "$dir/good" "$file"
gives 0 '' train $run --steps 4 --out "$dir/tuned2"
ok "the same bits as with it" cmp "$dir/tuned/step-4/model.safetensors" "$dir/tuned2/step-4/model.safetensors"

# ---- ranks: rank 0's file is that of all ----

gives 0 '' train $run --steps 2 --mesh dp=2 --out "$dir/ranks"
ok "ranks: the tuned one" grep -q '"machine": "tuned"' "$dir/ranks/latest/state.json"
echo nonsense >"$file"
gives 0 '' train $run --steps 2 --mesh dp=2 --out "$dir/ranks2"
ok "ranks: one warning" [ "$(grep -c '^tenon: warning: .*cache' "$dir/err")" = 1 ]

totals
