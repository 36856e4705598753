#!/bin/sh
# Text for a model with a tokenizer, from outside: tokenized once into a file beside the run, taken again where
# nothing has changed and made again where something has; eval, generate, train and --resume of a run read data
# as it did. Usage: tests/scripts/text.sh BUILD
# shellcheck disable=SC2086 # $run is options
. tools/checks.sh
ref=tests/ref/gpt2-tiny
source=$PWD

# field NAME FILE: a number of a JSON object, of the last line that has it.
field() {
    sed -n "s/.*\"$1\": \\([^,}]*\\).*/\\1/p" "$2" | tail -1
}
# config FOLDER VOCABULARY: a model of 2 layers, without weights.
config() {
    mkdir -p "$1"
    cat >"$1/config.json" <<END
{"model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "n_embd": 16, "n_head": 2,
 "n_layer": 1, "n_positions": 32, "vocab_size": $2, "eos_token_id": 0}
END
}
# A folder as it comes from Hugging Face: weights, and the tokenizer of its config.json's folder.
config "$dir/M" 512
cp tests/tokenizer/gpt2.json "$dir/M/tokenizer.json"
gives 0 "" train "$dir/M/config.json" --batch $ref/batch.safetensors --steps 1 --out "$dir/seed"
ok "the tokenizer beside a config.json" cmp "$dir/M/tokenizer.json" "$dir/seed/latest/tokenizer.json"
cp "$dir/seed/latest/model.safetensors" "$dir/M"

for _ in 1 2 3 4 5 6; do cat LICENSE; done >"$dir/text.txt"
cp LICENSE "$dir"
cp docs/tutorial.md "$dir/held.txt"
cd "$dir" || exit 1
for name in text held; do
    gives 0 "" tokenize $name.txt --tokenizer M -o $name.bin
done
run="--steps 4 --batch-size 2 --seq-len 16 --lr 1e-2"

# ---- the shortest command ----

train() {
    gives "$1" "$2" train M $run --out "$3" --metrics m.jsonl "$4" "$5" $6
}
train 0 "written to a/tokens.bin" a --data text.txt
mv m.jsonl a.jsonl
said "data: text of $(wc -c <text.txt) bytes, $(($(wc -c <text.bin) / 2)) tokens by M/tokenizer.json"
ok "no warning" not grep -q warning err
ok "the ids of tokenize" cmp a/tokens.bin text.bin
ok "a folder for Hugging Face" cmp M/tokenizer.json a/latest/tokenizer.json
train 0 "tokens to train on" b --data text.bin "--token-type u16"
ok "the weights that its token file gives" cmp a/latest/model.safetensors b/latest/model.safetensors
ok "and its held-out loss" [ "$(field eval_loss a.jsonl)" = "$(field eval_loss m.jsonl)" ]
train 0 "written to c/tokens.bin" c --data - <text.txt
ok "standard input" cmp c/tokens.bin text.bin
# shellcheck disable=SC2002
cat text.txt | "$tenon" train M $run --out d --data - 2>err
ok "a pipe" cmp d/tokens.bin text.bin

# ---- what a run was trained on ----

loss() {
    gives 0 "loss" eval "$@"
    loss=$(sed -n 's/^loss //p' out)
}
loss b --data held.bin
least=$loss
ok "a loss of tokens: $least" awk -v x="$least" 'BEGIN { exit !(x > 4 && x < 6.5) }'
loss b --data held.bin --token-type u16
ok "eval takes the run's token type" [ "$loss" = "$least" ]
for from in a b; do
    loss $from --data held.txt
    ok "and text by its tokenizer, of $from" [ "$loss" = "$least" ]
    loss $from --data - <held.txt
    ok "from standard input, of $from" [ "$loss" = "$least" ]
    gives 0 "prompt: $(printf 'of the' | "$tenon" tokenize - --tokenizer M -o - 2>/dev/null | wc -c | awk '{ print $1 / 2 }') tokens" \
        generate $from --prompt "of the" --tokens 5
done
ok "nothing is left of a tokenized text" [ -z "$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'tenon-*' -user "$(id -un)" -newer a.jsonl)" ]
gives 2 "text.bin: expected text, found bytes that are none" eval a --data text.bin
said "--token-type u16 or u32 where these are token ids"
gives 2 "text.bin: expected text" train M $run --data text.bin --out x
gives 0 "written to e/tokens.bin" train a $run --data text.txt --out e --sample-tokens 8 --prompt "of the"
ok "a sample is text" grep -q '^of the' out
gives 0 "tokens to train on" train b $run --data text.bin --out f
ok "train takes the run's token type" cmp e/latest/model.safetensors f/latest/model.safetensors

# ---- bytes ----

train 0 "data: each byte is a token (--token-type byte)" bytes --data text.txt "--token-type byte --sample-tokens 4"
ok "one line" [ "$(grep -c 'byte' err)" -ge 1 ]
ok "no token file" [ ! -e bytes/tokens.bin ]
gives 0 "data: each byte is a token (as the model was trained)" eval bytes --data held.txt --json
ok "as many tokens as bytes" [ "$(field tokens out)" = $(($(wc -c <held.txt) - 1)) ]
gives 0 "prompt: 6 tokens" generate bytes --prompt "of the" --tokens 3
gives 0 "data: each byte is a token (as the model was trained)" train bytes $run --data text.txt --out bytes2
gives 0 "already at step 4" train --resume --out bytes
ok "said in state.json" grep -q '"token_type": "byte"' bytes/latest/state.json
sed -i '/"crc32c"/d; /"token_type"/d' bytes/latest/state.json
sed -i 's/"token-type": "byte"/"token-type": "auto"/' bytes/latest/state.json
gives 0 "data: each byte is a token" train --resume --out bytes --steps 5
ok "a run from before text was tokenized goes on with bytes" [ ! -e bytes/tokens.bin ]
mkdir none
cp M/config.json M/model.safetensors none
gives 2 "text.bin: expected text, found bytes that are none" train none $run --data text.bin --out none0
said "--token-type u16 or u32 where these are token ids"
gives 0 "" tokenize text.txt --token-type u16 -o bytes.u16
gives 1 "bytes.u16: expected text, found text in UTF-16" train none $run --data bytes.u16 --out none0
said "--token-type u16 or u32 takes it as token ids, byte its bytes as they are"
ok "nothing was begun" [ ! -e none0 ]
gives 0 "warning: text.txt: each byte is taken as a token, but the model has a vocabulary of 512" \
    train none $run --data text.txt --out none1
said "--tokenizer where they are text"
gives 0 "written to none2/tokens.bin" train none $run --data text.txt --out none2 --tokenizer M
ok "a tokenizer that is named" cmp a/latest/model.safetensors none2/latest/model.safetensors
ok "goes into the checkpoint" cmp M/tokenizer.json none2/latest/tokenizer.json
gives 0 "written to none3/tokens.bin" train none $run --data text.txt --out none3 --tokenizer none2
ok "that of a run" cmp M/tokenizer.json none3/latest/tokenizer.json
gives 0 "" tokenize text.txt --tokenizer none3 -o none.bin
ok "and its ids" cmp text.bin none.bin
gives 0 "as they are in none2/tokens.bin" train --resume --out none2 --steps 5
gives 0 "data: each byte is a token (the model has no tokenizer)" train demo $run --data text.txt --out demo1

# ---- a run in the folder of its data ----

mkdir D
cp text.txt D
for data in "--data D" "--data ./D/" "--data D/*" "--data text.txt --val-data D"; do
    set -f
    gives 2 "train: --out D: the run makes D/" train M $run $data --out D
    set +f
done
said "expected another folder"
for out in ./D D/ "$PWD/D"; do # however the folder is spelled
    gives 2 "train: --out $out: the run makes $out" train M $run --data 'D/*' --out "$out"
done
gives 2 "train: --out D: the run makes D/latest" train demo $run --data 'D/*' --token-type byte --out D
ok "nothing was begun" [ "$(ls -A D)" = text.txt ]
gives 0 "written to D/tokens.bin" train M $run --data 'D/*.txt' --out D
gives 0 "as they are in D/tokens.bin" train --resume --out D --steps 5

# ---- ids in a byte each ----

config small 49
cp "$source/tests/tokenizer/small.json" small/tokenizer.json
seq 1 400 | sed 's/.*/word wo rd bcd/' >few.txt
gives 0 " tokens, u16, of 49 ids; to train on them: --token-type u16" tokenize few.txt --tokenizer small -o few.u16
gives 0 " tokens, byte, of 49 ids; to train on them: --token-type byte" \
    tokenize few.txt --tokenizer small -o few.byte --token-type byte
ok "a byte each" [ "$((2 * $(wc -c <few.byte)))" = "$(wc -c <few.u16)" ]
gives 0 "" detokenize few.u16 --tokenizer small -o few.want
gives 0 "" detokenize few.byte --tokenizer small --token-type byte -o few.again
ok "and back" cmp few.want few.again
"$tenon" detokenize - --tokenizer small --token-type byte <few.byte >few.again 2>err
ok "from standard input" cmp few.want few.again
for type in u16 byte; do
    gives 0 "" train small/config.json $run --data few.$type --token-type $type --out few-$type
    loss few-$type --data few.$type
    echo "$loss" >few-$type/loss
done
ok "train: the same tokens" cmp few-u16/latest/model.safetensors few-byte/latest/model.safetensors
ok "eval: the same tokens, as the model was trained" cmp few-u16/loss few-byte/loss
gives 1 "does not fit 8 bits; use --token-type u16" tokenize text.txt --tokenizer M -o x.byte --token-type byte
gives 0 "" tokenize few.txt -o few.bytes --token-type byte
ok "the bytes of a text" cmp few.txt few.bytes

# ---- a run that goes on ----

rm -r d
gives 0 "" train M $run --data text.txt --out d
inode=$(ls -i d/tokens.bin)
cp -r d kept
gives 0 "as they are in d/tokens.bin" train --resume --out d --steps 6
ok "the tokens are not made again" [ "$inode" = "$(ls -i d/tokens.bin)" ]
resumed() {
    ok "$1" cmp all/latest/model.safetensors d/latest/model.safetensors
    rm -r d
    cp -r kept d
}
mv d all
cp -r kept d
touch text.txt
gives 0 "as they are in d/tokens.bin" train --resume --out d --steps 6
resumed "a text that was touched is the same"
for damage in 'rm d/tokens.bin' 'rm d/tokens.bin.json' 'truncate -s -2 d/tokens.bin' 'echo >d/tokens.bin.json'; do
    eval "$damage"
    gives 0 "written to d/tokens.bin" train --resume --out d --steps 6
    ok "the same ids after $damage" cmp d/tokens.bin text.bin
    resumed "the same weights after $damage"
done
for _ in 1 2 3 4 5 6; do cat LICENSE; done | tr e E >text.txt
gives 1 "text.txt: the run began with other content" train --resume --out d --steps 6
ok "its tokens stay" cmp d/tokens.bin text.bin
mv text.txt other.txt
gives 1 "where data has moved, --data names the new place" train --resume --out d --steps 6
for _ in 1 2 3 4 5 6; do cat LICENSE; done >moved.txt
gives 0 "as they are in d/tokens.bin" train --resume --out d --steps 6 --data moved.txt
resumed "a text that has moved"
mv moved.txt text.txt

# A change that no block of the fingerprint has is seen by the time and the hash of the whole.
for _ in $(seq 40); do cat text.txt; done >large.txt
gives 0 "written to l/tokens.bin" train M $run --data large.txt --out l
cp l/tokens.bin large.bin
printf 'QQQQ' | dd of=large.txt bs=1 seek=100000 conv=notrunc 2>/dev/null
gives 1 "large.txt: the run began with other content, of which l/tokens.bin has the tokens" \
    train --resume --out l --steps 5
ok "its tokens stay, too" cmp l/tokens.bin large.bin
rm l/tokens.bin
gives 1 "l/tokens.bin: the run began with other tokens" train --resume --out l --steps 5
gives 0 "" tokenize large.txt --tokenizer M -o other.bin
ok "the change changes tokens" not cmp -s large.bin other.bin

# ---- texts of few tokens, or none ----

printf 'a b' >few.txt
gives 1 "few.txt: expected at least 17 tokens to train on, found " train M $run --data few.txt --out few --val-fraction 0
gives 1 "few.txt and 1 more: expected at least 17 tokens" \
    train M $run --data few.txt --data few.txt --out few --val-fraction 0
mkdir T
cp M/config.json M/model.safetensors T
sed 's/"normalizer": *null/"normalizer": {"type": "Strip", "strip_left": true, "strip_right": true}/' M/tokenizer.json >T/tokenizer.json
ok "a tokenizer that removes white space" not cmp -s M/tokenizer.json T/tokenizer.json
printf ' \n' >blank.txt
gives 1 "blank.txt: no token comes of it" train T $run --data blank.txt --out blank
ok "nor a file of them" [ ! -e blank/tokens.bin ]
gives 1 "blank.txt: no token comes of it" eval T --data blank.txt

head -c 1200000 /dev/zero | tr '\0' a >long.txt
gives 1 "long.txt: before byte " train M $run --data long.txt --out long
said "white space or line breaks in it end it; --token-type byte takes each byte as a token"
gives 0 "" train M $run --data long.txt --out long --token-type byte

# ---- several texts ----

printf 'a text of its own, which is short\n' >s1.txt
printf 'and another one\n' >s2.txt
gives 0 "" train M $run --data text.txt --data 's?.txt' --out several
for name in text s1 s2; do
    gives 0 "" tokenize $name.txt --tokenizer M -o $name.bin
done
{
    cat text.bin
    printf '\0\0'
    cat s1.bin
    printf '\0\0'
    cat s2.bin
} >want
ok "the end of text between them" cmp several/tokens.bin want
gives 0 "as they are in" train --resume --out several --steps 5

# ---- wide ids, ids that the model does not have ----

config W 70000
awk 'BEGIN { printf "{\"model\": {\"type\": \"BPE\", \"vocab\": {"
    for (i = 2; i < 69999; i++) printf "\"t%d\": %d, ", i, i
    printf "\"a\": 1, \"b\": 69999}, \"merges\": []}, \"added_tokens\": [], \"normalizer\": null, \"post_processor\": null, "
    printf "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, "
    printf "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true}}" }' \
    >W/tokenizer.json
seq 1 400 | sed 's/.*/abba/' | tr -d '\n' >ab.txt
gives 0 "written to wide/tokens.bin" train W/config.json $run --data ab.txt --out wide
ok "four bytes a token" [ "$(wc -c <wide/tokens.bin)" = 6400 ]
gives 0 "loss" eval wide --data ab.txt
config N 60000
cp W/tokenizer.json N
gives 1 "ab.txt: token 1 is 69999, but the model has 60000 tokens" train N/config.json $run --data ab.txt --out narrow
said "the tokenizer is N/tokenizer.json"
ok "no step" not grep -q '^step' err
ok "no tokens" [ -z "$(find narrow -type f)" ]

# ---- a tokenizer of SentencePiece's kind ----

mkdir P
cp M/config.json M/model.safetensors P
cp "$source/tests/tokenizer/llama2.json" P/tokenizer.json
gives 0 "written to p/tokens.bin" train P $run --data text.txt --out p
gives 0 "tokens, u16" tokenize text.txt --tokenizer P -o p.bin
ok "the ids of tokenize" cmp p/tokens.bin p.bin
gives 0 "tokens" detokenize p.bin --tokenizer P -o p.txt
ok "the text" cmp p.txt text.txt
printf '\377\303text of\342 no encoding' >bad.txt
cat text.txt >>bad.txt
train 0 "written to b8/tokens.bin" b8 --data bad.txt
said "tenon: warning: bad.txt: byte 0: not UTF-8; 3 such places in 1 of 1 texts: each became U+FFFD"
mv P/tokenizer.json llama2.json
cp text.txt P/tokenizer.model
gives 1 "P/tokenizer.model: a SentencePiece model" train P $run --data text.txt --out q
said "T.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' 'P'"
gives 1 "P/tokenizer.model: a SentencePiece model" generate P --prompt "of the" --tokens 5
gives 0 "written" train P $run --data text.txt --out q --tokenizer llama2.json
gives 0 "bytes" train P $run --data text.txt --out q8 --token-type byte

# ---- what goes wrong ----

for _ in $(seq 100); do cat large.txt; done >huge.txt
# killed SIGNAL: while it tokenizes; its exit code in $status.
killed() {
    rm -rf killed
    "$tenon" train M $run --data huge.txt --out killed >out 2>err &
    pid=$!
    for _ in $(seq 1200); do
        [ -s "killed/tokens.bin.tmp$pid" ] && break
        sleep 0.05
    done
    ok "tokens are seen" [ -s "killed/tokens.bin.tmp$pid" ]
    kill "-$1" $pid
    wait $pid 2>/dev/null
    status=$?
    ok "no part of the tokens is taken for whole" [ ! -e killed/tokens.bin ]
}
killed TERM
ok "exit code 130" [ $status = 130 ]
said "tenon: interrupted while text was tokenized; the same command begins again"
ok "nothing is left at once" [ -z "$(find killed -type f)" ]
killed KILL
gives 0 "written to killed/tokens.bin" train M $run --data text.txt --out killed
ok "the tokens" cmp killed/tokens.bin text.bin
ok "nothing is left of the killed" [ -z "$(find killed -name '*.tmp*')" ]
head -c 2048 /dev/zero >shard
printf '\210\330\064\001\001\000\000\000\000\002\000\000' | dd of=shard conv=notrunc 2>/dev/null
gives 0 "461 tokens to train on" train M $run --data shard --out shards
gives 1 "text.txt: text or bytes, but shard has tokens of 2 bytes" train M $run --data shard --data text.txt --out x
(
    ulimit -f 200 # the files of a checkpoint are shorter
    trap '' XFSZ
    "$tenon" train M $run --data large.txt --out limit >out 2>err
)
ok "a file that cannot be written: exit code 1" [ $? = 1 ]
said "limit/tokens.bin: cannot write"
ok "nothing is left" [ -z "$(find limit -type f)" ]
# ---- a token of white space that strips on both sides ----

cat >"$dir/lines.json" <<'END'
{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
 "post_processor": null, "decoder": null,
 "added_tokens": [{"id": 2, "content": "\n", "single_word": false, "lstrip": true, "rstrip": true,
   "normalized": false, "special": true}],
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": {"a": 0, "b": 1}, "merges": []}}
END
printf 'ab\n\na' >"$dir/lines.txt"
gives 0 '4 tokens' tokenize "$dir/lines.txt" --tokenizer "$dir/lines.json" -o "$dir/lines.bin" # Hugging Face's 0 1 2 0
ok "one token for both lines" [ "$(od -A n -t u2 "$dir/lines.bin" | tr -s ' ')" = " 0 1 2 0" ]

totals
