#!/bin/sh
# What a command reads, from outside: outputs that are inputs, empty names, token files taken as bytes, and
# runs that go on with their data, model and options where they are now. Runs in the root of the project.
# Usage: tests/scripts/inputs.sh BUILD
. tools/checks.sh
ref=tests/ref/gpt2-tiny

# keeps FILE: that it is what $dir/kept/ has.
keeps() {
    ok "$1 is as it was" cmp "$dir/$1" "$dir/kept/$1"
}

# ---- outputs that are inputs ----

mkdir "$dir/kept" "$dir/M" "$dir/kept/M"
for _ in 1 2 3; do cat LICENSE; done >"$dir/text"
cp $ref/config.json $ref/model.safetensors "$dir/M"
cp $ref/batch.safetensors "$dir/batch"
printf '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.4}\n' >"$dir/m.jsonl"
cp "$dir/text" "$dir/batch" "$dir/m.jsonl" "$dir/kept"
cp "$dir"/M/* "$dir/kept/M"
ln "$dir/text" "$dir/hard"
ln -s text "$dir/soft"
cd "$dir" || exit 1
gives 2 'tokenize: --output: text is an input (text)' tokenize text -o text
gives 2 'tokenize: --output: hard is an input (text)' tokenize text -o hard
gives 2 'tokenize: --output: soft is an input (./text)' tokenize ./text -o soft
"$tenon" tokenize - -o text <text 2>err
ok "onto standard input: exit code 2" [ $? = 2 ]
gives 0 '3222 tokens, u16, of 256 ids; to train on them: --token-type u16' tokenize text -o t.bin
cp t.bin kept
gives 2 'detokenize: --output: t.bin is an input (t.bin)' detokenize t.bin -o t.bin
keeps t.bin
gives 2 'plot: --output: m.jsonl is an input (m.jsonl)' plot m.jsonl -o m.jsonl
set -- train demo --batch-size 1 --seq-len 8 --steps 1 --out o
gives 2 'train: --metrics: text is an input (--data)' "$@" --data text --metrics text
gives 2 'train: --metrics: text is an input (--data)' "$@" --data m.jsonl --data '[st]e*t' --metrics text
gives 2 'train: --profile: soft is an input (--data)' "$@" --data text --profile soft
gives 2 'train: --profile: p is an output already (--metrics)' "$@" --data text --metrics p --profile p
gives 2 'train: --metrics: batch is an input (--batch)' train M --batch batch --steps 1 --out o --metrics batch
gives 2 'grad: --out: batch is an input (--batch)' grad M --batch batch --out batch
gives 2 'grad: --out: M/model.safetensors is an input (M)' grad M --batch batch --out M/model.safetensors
gives 2 'grad: --out: M/config.json is an input (M/config.json)' grad M/config.json --batch batch --out M/config.json
gives 2 'eval: --logits: batch is an input (--batch)' eval M --batch batch --logits batch
gives 0 '' grad M --batch batch --out M/grad.safetensors
gives 0 '' grad M --batch batch --out M/grad.safetensors
printf 'tenon 1\ngraph g(%%x: f32[1]) {\n  return %%x\n}\n' >g.tn
cp g.tn kept
gives 2 'run: --outputs: g.tn is an input (g.tn)' run g.tn --inputs batch --outputs g.tn
gives 2 'run: --outputs: batch is an input (--inputs)' run g.tn --inputs batch --outputs batch
gives 2 'run: --profile: batch is an input (--inputs)' run g.tn --inputs batch --profile batch
gives 2 'import: --output: g.tn is an input (g.tn)' import fx g.tn -o g.tn
gives 0 '' opt g.tn --passes=cse -o g.tn
for file in text batch m.jsonl M/config.json M/model.safetensors g.tn; do keeps "$file"; done
ok "nothing was begun" [ ! -e o ]

# ---- a trace takes the place of traces alone ----

echo precious >notes
for args in 'train demo --data text --token-type byte --steps 1 --batch-size 1 --seq-len 8 --out o --profile notes' \
    'run g.tn --inputs o --profile notes' 'plan demo --batch-size 1 --seq-len 8 --trace notes'; do
    # shellcheck disable=SC2086
    gives 2 'notes is there already and no trace: it is not replaced' $args
    ok "it is as it was" [ "$(cat notes)" = precious ]
done
: >empty.json
for _ in 1 2; do
    gives 0 '' plan demo --batch-size 1 --seq-len 8 --trace empty.json
done

# ---- empty names ----

for option in data batch out metrics profile tokenizer; do
    gives 2 "train: --$option: expected a path, found \"\"" train demo --$option ''
done
gives 2 '--out: expected a path' grad M --batch batch --out=
gives 2 '--output: expected a path' opt g.tn -o ''
gives 2 'argument 1 is empty' show ''
gives 2 'argument 1 is empty' train '' --data text

# ---- token files, and text that is taken as bytes ----

warned='each byte is taken as a token, but the model has a vocabulary of 97; --token-type u16 or u32'
head -c 400 /dev/zero >zero
set -- train M --batch-size 1 --seq-len 8 --steps 1 --out o --overwrite --data
refused='zero: expected text, found bytes that are none'
gives 2 "$refused" "$@" zero
said '--token-type u16 or u32 where these are token ids, byte where each byte is a token'
gives 2 "$refused" eval M --data zero
head -c 400 /dev/zero | tr '\0' 'A' >letters
gives 0 "letters: $warned" "$@" letters
gives 0 "letters: $warned" eval M --data letters
set -- "$@" zero
for more in '--token-type byte' '--token-type u16' '--tokenizer bytes'; do
    # shellcheck disable=SC2086
    gives 0 'trained 1 steps' "$@" $more
    ok "no warning with $more" [ "$(grep -c 'is taken as a token' err)" = 0 ]
done
gives 0 'trained 1 steps' train demo --batch-size 1 --seq-len 8 --steps 1 --out o --overwrite --data zero
ok "no warning with 256 tokens" [ "$(grep -c 'is taken as a token' err)" = 0 ]

# ---- a run whose data has moved ----

mkdir old new
cp text old/a
tr a-z A-Z <text | head -c 3210 >old/b
set -- train demo --batch-size 1 --seq-len 8 --out run --seed 3
gives 0 'trained 2 steps' "$@" --data old/a --data old/b --steps 2
mv old/a old/b new
again="train --resume --out run --steps 3"
gives 1 "old/a: no such file, and no file matches it, in $PWD" $again
ok "how to name the new place" grep -q '^  where data has moved, --data names the new place$' err
gives 1 'data files, now there are 1' $again --data new/a
gives 1 'new/b: the run began with 3' $again --data new/b --data new/a
gives 2 'train: --metrics: new/a is an input (--data)' $again --data 'new/*' --metrics new/a
gives 2 '--metrics: run/step-2/state.json is an input (run/step-2)' $again --data 'new/*' --metrics run/step-2/state.json
cp new/a kept/a
sed -i '1s/./#/' new/a
gives 1 'new/a: the run began with other content' $again --data new/a --data new/b
cp kept/a new/a
gives 0 'goes on from run/step-2' $again --data 'new/*'
gives 0 'goes on from run/step-3' train --resume --out run --steps 4
gives 0 "begins with step 1" train M --resume --out other --batch batch --steps 1
gives 2 'began with the model M, found demo' train demo --resume --out other
gives 0 'goes on from other/step-1' train ./M/ --resume --out other --steps 2
gives 0 'goes on from other/step-2' train ./other --resume --out other --steps 3
mv batch moved
gives 1 'if it has moved: --batch names the new place' train --resume --out other --steps 4
gives 0 'goes on from other/step-3' train --resume --out other --steps 4 --batch moved

# ---- options that were not given at first ----

set -- train --resume --out run --steps 5
gives 2 'train: --min-lr: the run began without it, found 4e-5' "$@" --min-lr 4e-5
gives 2 'train: --document-token: the run began without it, found 10' "$@" --document-token 10
gives 2 'train: --freeze: the run began without it, found ["x"]' "$@" --freeze x
gives 2 'train: --warmup: the run began with 0, found 3' "$@" --warmup 3
gives 0 'goes on from' "$@" --min-lr 3e-5 --memory 3GiB

# ---- a state that contradicts itself ----

state=run/step-5/state.json
sed '/"crc32c"/d' $state >kept/state # its checksum, without which it may be changed
for key in data_position batch_size seq_len seed; do
    sed "0,/\"$key\": [0-9]*/s//\"$key\": 77/" kept/state >$state
    gives 1 "run/step-5/state.json: \"$key\": expected" train --resume --out run --steps 6
done
for version in 0.1.1 0.10.0 1.0.0; do
    sed "s/\"version\": \"[0-9.]*\"/\"version\": \"$version\"/" kept/state >$state
    gives 1 "\"version\": written by tenon $version, which is later than this one" train --resume --out run
done
sed 's/"version": "[0-9.]*"/"version": "0.0.9"/' kept/state >$state
gives 0 'goes on from run/step-5' train --resume --out run --steps 6

# ---- files that are not what they must be ----

# tensors HEADER: a safetensors file with one f32 of 0, beside what the header has after it.
tensors() {
    n=$(printf %s "$1" | wc -c)
    # shellcheck disable=SC2059
    printf "$(printf '\\%03o\\0\\0\\0\\0\\0\\0\\0' "$n")" >x.safetensors
    printf '%s\0\0\300\177' "$1" >>x.safetensors # a NaN
}
x='"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
printf 'tenon 1\ngraph g(%%x: f32[1]) {\n  %%y: f32[1] = neg(%%x)\n  return %%y\n}\n' >n.tn
for metadata in '{"a":1}' '{"a":null}' '{"a":{}}' '[]' '"a"'; do
    tensors "{\"__metadata__\":$metadata,$x}"
    gives 1 'x.safetensors: ' run n.tn --inputs x.safetensors
    ok "it is the metadata" grep -q '__metadata__' err
done
for metadata in '{"a":"1"}' '{}' null; do
    tensors "{\"__metadata__\":$metadata,$x}"
    gives 0 '' run n.tn --inputs x.safetensors
done

# Weights that make the loss a NaN, whose sign is nobody's.
cp M/model.safetensors kept/weights
size=$(wc -c <kept/weights)
head -c $((size / 2)) kept/weights >M/model.safetensors
for _ in $(seq 4000); do printf '\0\0\300\377'; done >>M/model.safetensors
tail -c +$(($(wc -c <M/model.safetensors) + 1)) kept/weights >>M/model.safetensors
gives 1 'loss nan' grad M --batch moved --out g
gives 1 'the loss is nan' eval M --batch moved
gives 1 'has 4000 values that are not finite' train M --batch moved --steps 1 --out nan
cp kept/weights M/model.safetensors

# A checkpoint that may not be read; root may always.
as=
[ "$(id -u)" != 0 ] || as='setpriv --reuid=65534 --regid=65534 --clear-groups'
chmod 755 . run
chmod 000 run/step-6
if $as "$tenon" --version >out 2>err && ! $as ls run/step-6 >out 2>err; then
    $as "$tenon" eval run --data text >out 2>err
    ok "a checkpoint that may not be read" grep -q '^tenon: run/latest/: cannot be read: Permission denied$' err
    chmod 755 run/step-6
    chmod 000 run/step-6/config.json
    $as "$tenon" eval run --data text >out 2>err
    ok "a config.json that may not be read" grep -q 'config.json: cannot .*: Permission denied$' err
else
    echo "note: nobody here who may not read a file: messages of permissions are not tested"
fi
chmod 755 run/step-6

# ---- links that lead nowhere, and pipes ----

# linked FILE [HOW]: a model whose FILE is a link to nothing, then one to itself: it is never taken for a file that is
# not there. HOW: what makes the model before.
linked() {
    for to in nowhere/x "$(basename "$1")"; do
        rm -rf L
        cp -r other/step-2 L
        eval "$2"
        ln -sfn "$to" "L/$1"
        case $to in
        nowhere/x) told="L/$1: expected a file, found a link to \"nowhere/x\", which is not there" ;;
        *) told="L/$1: expected a file, found a link that leads back to itself, by \"$to\"" ;;
        esac
        for command in 'plan L --batch-size 1 --seq-len 8' 'eval L --data text' 'generate L --prompt a --tokens 1' \
            'train L --data text --batch-size 1 --seq-len 8 --steps 1 --out o --overwrite'; do
            # shellcheck disable=SC2086
            gives 1 "$told" $command
        done
    done
}
for file in config.json model.safetensors tokenizer.json tokenizer.model generation_config.json state.json; do
    linked $file
done
linked model.safetensors.index.json 'rm L/model.safetensors'
linked latest 'mv L L0; mkdir L; rm -r L0'
for to in nowhere link; do
    ln -sfn $to link
    for command in 'plan link --batch-size 1 --seq-len 8' 'eval M --batch link' 'eval M --data link' 'show link' \
        'tokenize text --tokenizer link -o ids' 'tokenize link -o ids' 'detokenize link -o back' \
        'generate M --prompt a --tokens 1 --tokenizer link' 'plan M/config.json --batch-size 1 --seq-len 8 --machine ./link'; do
        # shellcheck disable=SC2086
        gives 1 "link: expected a file, found a link" $command
    done
done
mkfifo pipe
gives 1 'pipe: not a regular file but a pipe; standard input may be one: `COMMAND | tenon ...` with - in its place' \
    eval M --data pipe
gives 1 'pipe: not a regular file but a pipe; standard input may be one' eval M --batch pipe
# shellcheck disable=SC2002
cat zero | "$tenon" eval M --data - --token-type u16 >out 2>err
ok "as that says" [ $? = 0 ]

# ---- next to no memory ----

# From the least memory on in which the program starts: oneDNN, and CUDA's runtime before main, crash where they
# cannot map or register their code. Sanitizers need far more than any of these limits.
crashed=0
if (ulimit -v 300000 && "$tenon" --version >out 2>err); then
    least=300000
    while (ulimit -v $((least - 500)) && exec "$tenon" --version >out 2>err); do
        least=$((least - 500))
    done 2>/dev/null
    for more in 0 250 500 1000 2000 3000 4000 6000; do
        (ulimit -v $((least + more)) && exec "$tenon" plan demo --batch-size 1 --seq-len 8 --threads 1 >out 2>err)
        [ $? -lt 128 ] || crashed=$((crashed + 1))
    done
else
    echo "note: this build does not start in 300 MB: next to no memory is not tested"
fi
ok "no crash without memory" [ $crashed = 0 ]

totals
