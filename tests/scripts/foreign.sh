#!/bin/sh
# Folders of someone else's: a model or a run that was downloaded. Whatever its state.json names, no file of the
# user's is written; links and pipes in it are neither written through nor waited for.
# Usage: tests/scripts/foreign.sh BUILD
. tools/checks.sh
source=$PWD
ref=$source/tests/ref/llama-tiny
batch=$ref/batch.safetensors
for _ in 1 2 3; do cat LICENSE; done >"$dir/words"
cd "$dir" || exit 1
tenon="timeout 60 $tenon" # which a wait would end

# set_option NAME VALUE: what state.json says of an option of the run.
set_option() {
    sed -e '/"crc32c"/d' -e "/^  \"$1\": /d" -e "s|^ \"options\": {|&\n  \"$1\": $2,|" run/latest/state.json >state
    cp state run/latest/state.json
}
step=2
# goes_on CODE TEXT ARGUMENTS...: by one step.
goes_on() {
    code=$1 text=$2
    shift 2
    # shellcheck disable=SC2086
    $tenon train --resume --out run --steps $((step + 1)) "$@" >out 2>err
    ok "$*: expected exit code $code, found $?" [ $? = "$code" ]
    ok "expected the text: $text" grep -qF -e "$text" err
    [ "$code" != 0 ] || step=$((step + 1))
}
untouched() {
    ok "$1: the user's file is as it was" cmp -s mine kept
    ok "$1: nothing is made" [ ! -e made ]
}

# shellcheck disable=SC2086
$tenon train $ref --batch $batch --threads 1 --steps 2 --out run >out 2>err
ok "a run" [ -d run/step-2 ]
echo 'alias ls=ls' >mine
cp mine kept

# ---- what state.json names ----

for name in profile output html trace; do
    set_option $name "\"$dir/mine\""
done
goes_on 0 'goes on from run/step-2'
untouched profile
set_option profile "\"$dir/made\""
goes_on 0 'goes on from run/step-3'
untouched profile
set_option metrics "\"$dir/mine\""
goes_on 0 "mine does not have this run's metrics, though the checkpoint names it: none are written"
untouched metrics
set_option metrics "\"$dir/made\""
goes_on 0 "made does not have this run's metrics"
untouched metrics
set_option metrics '"run/../made"'
goes_on 0 "run/../made does not have this run's metrics"
untouched metrics
set_option metrics '"run/metrics"'
goes_on 0 'goes on from run/step-7'
ok "metrics in the folder go on" [ "$(wc -l <run/metrics)" = 1 ]
goes_on 0 'goes on from run/step-8'
ok "metrics in the folder go on" [ "$(wc -l <run/metrics)" = 2 ]
goes_on 0 'goes on from run/step-9' --metrics own
goes_on 0 'goes on from run/step-10'
ok "metrics that are the run's own go on anywhere" [ "$(wc -l <own)" = 2 ]
set_option overwrite true
goes_on 0 'goes on from run/step-11'
ok "it is no option of the run" [ ! -e run~1 ]

# ---- links and pipes in a run's folder ----

ln -s "$dir/made" run/link
ln -s "$dir/mine" run/other
mkfifo run/pipe
for name in link other pipe; do
    set_option metrics "\"run/$name\""
    goes_on 1 "run/$name: not a regular file, in the run's folder: it is not written to"
    untouched $name
    goes_on 1 "run/$name: not a regular file, in the run's folder" --metrics run/$name
    untouched $name
done
set_option metrics null
set_option machine "\"$dir/run/pipe\""
goes_on 1 '"machine": names what is no file; --machine names another'
goes_on 0 'goes on from run/step-12' --machine none

# Of a text the tokens would be written into the folder.
cp -r "$ref" model
cp "$source/tests/tokenizer/llama2.json" model/tokenizer.json
sed -i 's/"vocab_size": [0-9]*/"vocab_size": 1000/' model/config.json
rm model/*.safetensors
set -- train model/config.json --tokenizer model/tokenizer.json --data words --batch-size 2 --seq-len 8 --steps 1 --threads 1
mkdir text
mkfifo text/tokens.bin text/tokens.bin.json
# shellcheck disable=SC2086
$tenon "$@" --out text >out 2>err
ok "tokens are not written to a pipe" [ $? = 1 ]
ok "which is named" grep -qF 'text/tokens.bin: not a regular file' err
rm text/tokens.bin text/tokens.bin.json
ln -s "$dir/mine" text/tokens.bin
echo '{}' >text/tokens.bin.json
for pid in $(seq 0 400); do # the names that are written before they are renamed
    for name in tokens.bin.tmp tokens.bin.json.tmp .run.tmp .latest.tmp .probe.tmp; do
        ln -s "$dir/made" "text/$name$(($$ + pid))"
    done
done
# shellcheck disable=SC2086
$tenon "$@" --out text >out 2>err
ok "a link there is replaced, not followed" [ $? = 0 ]
ok "a link there is replaced, not followed" [ ! -L text/tokens.bin ]
untouched tokens

# ---- pipes in a model's folder ----

# shellcheck disable=SC2086
$tenon train $ref --batch $batch --threads 1 --steps 1 --out whole >out 2>err
cp whole/latest/config.json whole/latest/generation_config.json
for file in config.json generation_config.json model.safetensors model.safetensors.index.json optimizer.safetensors \
    state.json tokenizer.json tokenizer_config.json; do
    for command in 'eval M --batch B' 'train M --batch B --steps 1 --out o' \
        'generate M --prompt a --tokens 1 --tokenizer T' 'train --resume --out q --steps 2' 'plan M --batch-size 1 --seq-len 8'; do
        rm -rf o q
        mkdir -p q
        cp -r whole/step-1 q/step-1
        cp whole/.run q
        ln -s step-1 q/latest
        rm -f q/step-1/$file
        [ $file != model.safetensors.index.json ] || rm q/step-1/model.safetensors
        mkfifo q/step-1/$file
        # shellcheck disable=SC2086,SC2046
        $tenon $(echo "$command" | sed "s|M|q/step-1|; s|B|$batch|; s|T|$dir/model/tokenizer.json|") >out 2>err
        code=$?
        ok "$command: $file, a pipe, is not waited for: exit code $code" [ $code -le 1 ]
        [ $code = 0 ] || ok "$command: $file is named" grep -q "/$file: not a regular file" err
    done
done
mkfifo machine
$tenon tokenize words -o words.bin --tokenizer machine >out 2>err
ok "a tokenizer that is a pipe" [ $? = 1 ]
totals
