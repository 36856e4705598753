#!/bin/sh
# Chats and other records, from outside: the forms they come in, what is learned of them, runs that go on, answers,
# and damaged files, each of whose errors names file and line. tests/python/test_chat.py has the numbers.
# Usage: tests/scripts/chat.sh BUILD
. tools/checks.sh
source=$PWD

mkdir "$dir/M"
cat >"$dir/M/config.json" <<'END'
{"model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "n_embd": 16, "n_head": 2,
 "n_layer": 1, "n_positions": 128, "vocab_size": 512, "eos_token_id": 0}
END
cp tests/tokenizer/gpt2.json "$dir/M/tokenizer.json"
gives 0 '' train "$dir/M/config.json" --batch tests/ref/gpt2-tiny/batch.safetensors --steps 1 --out "$dir/seed"
cp "$dir/seed/latest/model.safetensors" "$dir/M"
cp tests/chat/chat_template.jinja "$dir/M"
cd "$dir" || exit 1
run="--steps 2 --batch-size 2 --seq-len 100 --threads 1"
# trains FILE OUT OPTIONS...
trains() {
    file=$1 to=$2
    shift 2
    # shellcheck disable=SC2086
    gives 0 'of them learned, written to' train M $run --data "$file" --out "$to" "$@"
}
# refuses TEXT FILE: train's error.
refuses() {
    # shellcheck disable=SC2086
    gives 1 "$1" train M $run --data "$2" --out refused
    ok "$2: nothing is left" [ ! -e refused ]
    rm -rf refused
}

# ---- forms: the same rows of each ----

cat >chats.jsonl <<'END'
{"messages": [{"role": "user", "content": "Say it"}, {"role": "assistant", "content": "I say é, \"it\""}]}

{"conversations": [{"from": "human", "value": "and"}, {"from": "gpt", "value": "more"}, {"from": "human", "value": "?"}, {"from": "gpt", "value": ""}]}
{"instruction": "Add", "input": "1 and 2", "output": "3"}
{"messages": [{"role": "user", "content": "no answer"}]}
{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}
{"messages": [{"role": "user", "content": "a long one, a long one, a long one, a long one"}, {"role": "assistant", "content": "that is cut, that is cut, that is cut, that is cut, that is cut"}]}
END
trains chats.jsonl a --metrics m.jsonl
said 'data: 5 rows, '
said '2 of 6 rows were longer than --seq-len: cut to 101 tokens'
said '1 of 6 documents have nothing that is learned in as many tokens: left out, the first chats.jsonl:5'
said 'epoch: 5 rows of 100 tokens'
awk 'BEGIN { print "[" } /./ { printf "%s %s\n", (n++ ? "," : ""), $0 } END { print "]" }' chats.jsonl >chats.json
trains chats.json b
ok "an array" cmp a/rows.bin b/rows.bin
grep . chats.jsonl | sed 's/{"role"/\n  {"role"/g; s/, "completion"/,\n"completion"/; s/"\(conversations\|instruction\)"/\n"\1"/' >pretty
trains pretty c
ok "objects of several lines" cmp a/rows.bin c/rows.bin
printf '\357\273\277' | cat - chats.jsonl | sed 's/$/\r/' >marked.jsonl
trains marked.jsonl d
ok "with a mark and other line ends" cmp a/rows.bin d/rows.bin
trains - e <chats.jsonl
ok "standard input" cmp a/rows.bin e/rows.bin
# Escapes stand on every place of the file, on the last of what is read at once too.
for odd in '' x; do
    awk -v odd=$odd 'BEGIN {
        while (n++ < 9000) text = text "\\n\\\""
        printf "[{\"text\": \"%s%s\"},\n {\"text\": \"b\"}]\n", odd, text
    }' >long$odd.json
    tr -d '[]\n' <long$odd.json | sed 's/}, *{/}\n{/' >long$odd.jsonl
    # shellcheck disable=SC2086
    gives 0 '' train M ${run#--steps 2} --steps 1 --data long$odd.json --out lo$odd
    # shellcheck disable=SC2086
    gives 0 '' train M ${run#--steps 2} --steps 1 --data long$odd.jsonl --out ll$odd
    ok "escapes in an array" cmp lo$odd/tokens.bin ll$odd/tokens.bin
done
# Another tokenizer comes without the files of the model's own.
mkdir T
cp M/tokenizer.json T
cp M/tokenizer_config.json T 2>/dev/null
# shellcheck disable=SC2086
gives 0 '' train M ${run#--steps 2} --steps 1 --data long.jsonl --tokenizer T --out other
ok "the template of the model's own tokenizer is not saved" [ -e M/chat_template.jinja -a ! -e other/step-1/chat_template.jinja ]
gives 0 'goes on from' train --resume --out other --steps 2
mkdir parts
head -3 chats.jsonl >parts/1.jsonl
sed 1,3d chats.jsonl >parts/2
trains parts f
ok "a folder" cmp a/rows.bin f/rows.bin
for name in gzip zstd; do
    end=$(echo $name | sed 's/gzip/gz/; s/zstd/zst/')
    if ! command -v $name >/dev/null || ! "$tenon" --version | grep -q "^$(echo $name | sed 's/gzip/zlib/')"; then
        echo "note: $name: there is no such program, or this build has no library for it"
        continue
    fi
    head -3 chats.jsonl | $name -c >chats.$end
    sed 1,3d chats.jsonl | $name -c >>chats.$end
    trains chats.$end g$end
    ok "$name, of two streams" cmp a/rows.bin g$end/rows.bin
    head -c 80 chats.$end >cut.$end
    refuses "cut.$end: $name: expected the end of the compressed stream, found the end of the file" cut.$end
    printf x | dd of=chats.$end bs=1 seek=40 conv=notrunc 2>/dev/null
    refuses "chats.$end: " chats.$end
done
cat >pairs.jsonl <<'END'
{"prompt": "one, two,", "completion": " three"}
{"prompt": "say \"a\",\nthen", "completion": " b"}
END
printf 'prompt;completion\n"one, two,"; three\n"say ""a"",\nthen"; b\n' >pairs.csv
trains pairs.jsonl h
trains pairs.csv i
ok "a table" cmp h/rows.bin i/rows.bin
printf 'prompt , "completion"\r"one, two,", three\r "say ""a"",\nthen" , b\r' >blanks.csv
trains blanks.csv ib
ok "blanks around quotes and names, lines that end by CR" cmp h/rows.bin ib/rows.bin
tr '\n' '\r' <pairs.jsonl >cr.jsonl
trains cr.jsonl ic
ok "JSON lines that end by CR" cmp h/rows.bin ic/rows.bin
mkdir about
cp pairs.jsonl about
echo 'What this is.' >about/README.md
trains about id
ok "a README beside records is no data" cmp h/rows.bin id/rows.bin
printf '{"text": "a b"}\n{"text": ""}\n{"text": "c"}' >texts.jsonl
printf 'a b' >t1
printf c >t2
short="--steps 1 --batch-size 1 --seq-len 2 --val-fraction 0"
# shellcheck disable=SC2086
gives 0 'text of' train M $short --data texts.jsonl --out j && cp j/tokens.bin j.bin
# shellcheck disable=SC2086
gives 0 'text of' train M $short --data t1 --data t2 --out k
ok "texts in records are texts" cmp j.bin k/tokens.bin

# ---- runs ----

gives 0 'goes on from a/step-2' train --resume --out a --steps 4 --metrics m.jsonl
said 'as they are in a/rows.bin'
# shellcheck disable=SC2086
gives 0 '' train M ${run#--steps 2} --steps 4 --data chats.jsonl --out whole
ok "it goes on to other weights" not cmp -s a/step-2/model.safetensors a/step-4/model.safetensors
cp a/rows.bin rows
printf x | dd of=a/rows.bin bs=1 seek=20 conv=notrunc 2>/dev/null
gives 0 'written to a/rows.bin' train --resume --out a --steps 5
ok "rows that are damaged are made again" cmp a/rows.bin rows
sed 's/bars/more/; s/im_end/im_END/' M/chat_template.jinja >a/step-5/chat_template.jinja
gives 1 'the run began with other content' train --resume --out a --steps 6
gives 0 'loss ' eval whole --data chats.jsonl
said '5 rows, '
# shellcheck disable=SC2086
gives 0 'held-out loss' train M $run --data chats.jsonl --val-fraction 0.4 --out held
said ' held out'
# shellcheck disable=SC2086
gives 2 'document-token: each row of chats.jsonl is a document already' train M $run --data chats.jsonl --document-token 3 --out refused
# shellcheck disable=SC2086
gives 0 'step 5/5' train M ${run#--steps 2} --epochs 2 --data chats.jsonl --out passes --val-fraction 0
gives 0 'step 8/8' train --resume --out passes --epochs 3
gives 0 'step 9/9' train --resume --out passes --steps 9
gives 2 'the run is already at step 9' train --resume --out passes --epochs 3
gives 2 'rows: expected a --batch-size of at most' train M --data chats.jsonl --epochs 1 --batch-size 99 --seq-len 100 --out refused
ok "nothing is left of it" [ ! -e refused ]
gives 2 '--steps and --epochs exclude each other' train M --data chats.jsonl --steps 1 --epochs 1 --batch-size 1 --seq-len 8 --out refused

head -1 chats.jsonl >held.jsonl
# shellcheck disable=SC2086
gives 0 'held-out loss' train M $run --data chats.jsonl --val-data held.jsonl --eval-every 1 --out apart --metrics apart.jsonl
said 'held-out data: 1 row, '
ok "all of --data is trained on" cmp apart/rows.bin a/rows.bin
ok "the loss is that of eval" [ "$(sed -n 's/.*"eval_loss": \([^,]*\).*/\1/p' apart.jsonl | tail -1)" = "$("$tenon" eval apart --data held.jsonl --seq-len 100 2>err | sed 's/loss //')" ]
gives 0 'goes on' train --resume --out apart --steps 3
sed -n 3p chats.jsonl >held.jsonl
gives 1 'held.jsonl: the run began with' train --resume --out apart --steps 4
gives 2 '--val-data and --val-fraction exclude each other' train M --data chats.jsonl --val-data held.jsonl --val-fraction 0.1 --steps 1 --batch-size 1 --seq-len 8 --out refused

# ---- several sources ----

head -c 3000 "$source/LICENSE" >plain.txt
mixed="--data chats.jsonl --weight 1 --data plain.txt --weight 2.5"
# shellcheck disable=SC2086
gives 0 '2-tokens.bin' train M ${run#--steps 2} --steps 5 $mixed --schedule constant --out mix --eval-every 2
said 'mixture: 28.57 % of the rows from chats.jsonl, whose '
said 'mixture: 71.43 % of the rows from plain.txt, whose '
ok "an epoch's rows are those of both" awk '
    /^mixture:/ { share += $2; rows += $10; seen += $10 * $13 } /^epoch: [0-9]/ { all = $2 }
    END { exit !(share > 99.9 && rows == all && seen > 0.99 * all && seen < 1.01 * all) }' "$dir/err"
said 'data: text of '
# shellcheck disable=SC2086
gives 0 '' train M ${run#--steps 2} --steps 3 $mixed --schedule constant --out mixcut --eval-every 2
gives 0 'goes on' train --resume --out mixcut --steps 5
ok "a mixture goes on to the same bits" cmp mix/latest/model.safetensors mixcut/latest/model.safetensors
gives 2 'train: --weight: the run began with' train --resume --out mix --steps 6 --weight 1 --weight 1
# shellcheck disable=SC2086
gives 2 'train: --weight: expected as many as --data, one for each in order, 2, found 1' train M $run --data chats.jsonl --weight 1 --data plain.txt --out refused
# shellcheck disable=SC2086
gives 2 'expected a number above 0, to 1e9, found "no"' train M $run --data plain.txt --weight no --out refused

# ---- options from a file ----

echo '{"data": ["chats.jsonl"], "steps": 9, "batch-size": 2, "seq-len": 100, "threads": 1, "lr": 3e-4, "shard-size": "1GB", "overwrite": true}' >run.json
gives 0 'step 2/2' train M --config run.json --steps 2 --out config
ok "the same run" cmp config/latest/model.safetensors a/step-2/model.safetensors
gives 0 '' train M --config run.json --epochs 1 --out epochs
ok "of steps in the file and epochs on the line the line counts" awk '
    /^epoch: / { for (i = 2; i <= NF; i++) if ($i ~ /^steps/) all = $(i - 1) } /^trained / { done = $2 } END { exit !(done != 9 && done >= all && done < all + 1) }' "$dir/err"
gives 2 '--steps and --epochs exclude each other' train M --config run.json --steps 2 --epochs 1
echo '{"stepz": 3}' >bad.json
gives 2 'unknown option "stepz"; the nearest is "--steps"' train M --config bad.json
said '  it is a name in bad.json'
echo '{"--steps": 2}' >bad.json
gives 2 '--config: bad.json: "--steps": expected a name without dashes' train M --config bad.json
echo '{"steps": [3]}' >bad.json
gives 2 '--config: bad.json: "steps": expected a text or a number' train M --config bad.json
echo '[1]' >bad.json
gives 1 '--config: bad.json:1: expected a JSON object' train M --config bad.json
rm bad.json

# ---- tokens added ----

mkdir added
cp M/chat_template.jinja added
sed 's/"vocab_size": 512/"vocab_size": 300/' M/config.json >added/config.json
cp M/tokenizer.json added
printf 'weights of fewer tokens' >few.txt
gives 0 '' train added/config.json --data few.txt --token-type byte --steps 1 --batch-size 1 --seq-len 4 --val-fraction 0 --lr 0 --weight-decay 0 --out fewer
cp fewer/latest/model.safetensors added
# shellcheck disable=SC2086
gives 1 'tenon train --resize-embeddings adds rows for them, by the mean' train added $run --data chats.jsonl --out refused
rm -rf refused
# shellcheck disable=SC2086
gives 0 'the model has 300 tokens, ' train added $run --data chats.jsonl --resize-embeddings --lr 0 --weight-decay 0 --out resized
vocab=$(sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p' resized/latest/config.json)
ok "config.json says so: $vocab" [ "$vocab" -gt 300 ]
# rows FILE: those of the embedding.
rows() {
    n=$(od -An -tu8 -N8 "$1" | tr -d ' ')
    at=$(head -c $((n + 8)) "$1" | sed 's/.*wte.weight"[^}]*"data_offsets": *\[\([0-9]*\), *\([0-9]*\)\].*/\1 \2/' | tail -1)
    tail -c +$((n + 9 + ${at% *})) "$1" | head -c $((${at#* } - ${at% *})) | od -An -v -tf4 -w64
}
rows added/model.safetensors >rows.old
rows resized/latest/model.safetensors >rows.new
ok "rows that were there: $(wc -l <rows.old)" sh -c '[ $(wc -l <rows.old) = 300 ] && head -300 rows.new | cmp -s - rows.old'
ok "new rows are their mean: $(wc -l <rows.new)" awk -v vocab="$vocab" 'NR <= 300 { for (k = 1; k <= 16; k++) m[k] += $k / 300; next }
    { for (k = 1; k <= 16; k++) { d = $k - m[k]; if (d > 1e-7 || d < -1e-7) bad = 1 } } END { exit bad || NR != vocab }' rows.new
gives 0 'goes on' train --resume --out resized --steps 3
gives 0 'loss ' eval resized --data chats.jsonl --seq-len 100
# shellcheck disable=SC2086
gives 0 'nothing is added' train M $run --data chats.jsonl --resize-embeddings --out enough

# ---- answers ----

gives 0 '' generate M --message 'Say "it"' --tokens 3
ok "the answer alone" not grep -q 'Say' out
said 'prompt: '
gives 0 'the answer is cut after' generate M --message 'Say "it"'
gives 0 'tokens, of which the model sees the last 4' generate M --message 'Say "it"' --tokens 3 --context 4
gives 2 '--prompt and --message exclude each other' generate M --message a --prompt b --tokens 3
gives 1 'seed/step-1: expected a chat template, found no chat_template.jinja' generate seed/latest --message a --tokens 3
echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}' >one.jsonl
gives 0 '' train M --data one.jsonl --steps 120 --batch-size 1 --seq-len 63 --lr 3e-2 --threads 1 --out learned
gives 0 '' generate learned --message a --tokens 4 --temperature 0
ok "the answer that was learned" [ "$(head -c 4 out)" = 'b<|i' ]
printf b >b.txt
gives 0 '' tokenize b.txt --tokenizer M --token-type u16 -o b.bin
printf '{"eos_token_id": [1, %s]}' "$(od -An -tu2 b.bin)" >learned/latest/generation_config.json
gives 0 'then 0 in' generate learned --message a --tokens 4 --temperature 0

# ---- damaged files ----

# damaged LINE TEXT: a second line of chats.jsonl, and its error.
damaged() {
    { head -1 chats.jsonl; printf '%s\n' "$1"; } >bad.jsonl
    refuses "bad.jsonl:2: $2" bad.jsonl
}
damaged '{"messages": [' 'column 14: expected JSON: '
damaged '{"messages": [{"role": "user", "content": "a"}]} x' 'column 50: expected JSON: end of file expected'
damaged '{"prompt": "a", "completion": "b", "prompt": "c"}' 'column 43: expected JSON: duplicate object key'
damaged '[1]' 'expected a JSON object, found an array'
damaged '[]' 'expected a JSON object, found an array that is empty'
damaged '"text"' 'expected a JSON object, found a string'
damaged '{"messages": "x"}' '"messages": expected a list, found a string'
damaged '{"messages": []}' '"messages": expected a message, found none'
damaged '{"messages": [3]}' '"messages", number 0: expected an object, found an integer'
damaged '{"messages": [{"content": "x"}]}' '"messages", number 0: "role": expected a string, found none'
damaged '{"conversations": [{"from": "her", "value": "x"}]}' '"conversations", number 0: "from": expected human, gpt, system or tool, found her'
damaged '{"conversations": [{"from": "gpt", "value": 1}]}' '"conversations", number 0: "value": expected a string, found an integer'
damaged '{"messages": [{"role": "user", "content": "a"}], "tools": "none"}' '"tools": expected a list, found a string'
damaged '{"prompt": "a", "completion": ["b"]}' '"completion": expected a string, found a list'
damaged '{"prompt": [{"role": "user", "content": "a"}], "completion": "b"}' '"completion": expected a list, found a string'
damaged '{"instruction": 1, "output": "b"}' '"instruction": expected a string, found an integer'
damaged '{"text": "a"}' 'expected a chat, or a prompt and its completion, as the first record has, found "text"'
damaged '{"question": "a", "answer": "b"}' 'expected the key "messages", "conversations", "prompt" and "completion", "instruction" and "output", or "text", found "question", "answer"'
damaged "$(printf '{"text": "\377"}')" 'column '
damaged '{"messages": [{"role": "user", "content": 99999999999999999999}]}' 'column '
printf '[{"prompt": "a", "completion": "b"},\n{"prompt": "a"\n' >bad.json
refuses 'bad.json:2: column ' bad.json
printf '[{"prompt": "a", "completion": "b"}\n{"prompt": "a", "completion": "b"}]\n' >bad.json
refuses 'bad.json:2: expected , or ], found {' bad.json
printf '[{"prompt": "a", "completion": "b"}\n\n] x' >bad.json
refuses 'bad.json:3: expected the end of the file after the array, found more' bad.json
printf '[{"prompt": "a", "completion": "b"},\n' >bad.json
refuses 'bad.json:2: expected an object, found the end of the file' bad.json
printf 'prompt,completion\na,b\na,b,c\n' >bad.csv
refuses 'bad.csv:3: expected 2 cells, as the first line has, found more' bad.csv
printf 'prompt,completion\na,b\na\n' >bad.csv
refuses 'bad.csv:3: expected 2 cells, as the first line has, found 1' bad.csv
printf 'prompt,completion\na,b\na,"b\n' >bad.csv
refuses 'bad.csv:3: a cell in quotes: expected a quote that ends it, found the end of the file' bad.csv
printf 'prompt,completion,prompt\na,b,c\n' >bad.csv
refuses 'bad.csv:2: column "prompt" is there twice' bad.csv
printf 'prompt,completion\ra,b\ra\r' >bad.csv
refuses 'bad.csv:3: expected 2 cells, as the first line has, found 1' bad.csv
printf 'prompt,completion\na,\377\n' >bad.csv
refuses 'bad.csv:2: column "completion": expected UTF-8' bad.csv
# shellcheck disable=SC2086
gives 1 'chats.jsonl: expected text, as t2 has, found chats' train M $run --data t2 --data chats.jsonl --out refused
echo '{"messages": [{"role": "user", "content": "no answer"}]}' >none.jsonl
refuses 'none.jsonl: nothing of it is learned: documents without an answer (a message of the assistant, a completion) or text: 1' none.jsonl
echo '{"prompt": "a prompt that is longer than a row", "completion": "late"}' >none.jsonl
before=$run run="--steps 2 --batch-size 2 --seq-len 4 --threads 1"
refuses 'documents whose first answer begins behind the 5 tokens that --seq-len 4 keeps: 1' none.jsonl
run=$before

printf 'x{"text": "a"}\n{"text": "b"}\n' >junk.jsonl
refuses 'junk.jsonl:1: column 1: expected JSON' junk.jsonl
printf '// texts\n{"text": "b"}\n' >junk.json
refuses 'junk.json:1: column 1: expected' junk.json

# ---- templates ----

printf 'a\n{%% include "x" %%}' >M/chat_template.jinja
refuses 'M/chat_template.jinja:2: the statement include is not supported' chats.jsonl
printf '{{ raise_exception("never") }}' >M/chat_template.jinja
refuses 'chats.jsonl:1: M/chat_template.jinja:1: the template refuses this chat: never' chats.jsonl
printf '{%% for m in messages %%}{{ loop.length }}{{ m.role }}{{ m.content }}.{%% endfor %%}' >M/chat_template.jinja
refuses 'chats.jsonl:1: M/chat_template.jinja: message 1 (from 0): the template writes what is before it otherwise than with it' chats.jsonl
# Answers by prefixes are those of tags, also where a template ends the whole chat, begins a thought in its prompt, or ends
# a turn where another follows. Answers begin as a thought does.
cat >turns.jsonl <<'END'
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<one>"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "<two>"}]}
END
echo '{"eos_token": "<|endoftext|>"}' >M/tokenizer_config.json
# same_as_tags NAME TAGGED ANSWER OTHER LAST: what ends an answer within tags; what ends messages without; behind the last.
same_as_tags() {
    cat >M/chat_template.jinja <<END
{% for m in messages %}<{{ m.role }}>{% if m.role == "assistant" %}{% generation %}{{ m.content }}$2{% endgeneration %}{% else %}{{ m.content }}$4{% endif %}{% endfor %}
END
    trains turns.jsonl "$1-tags"
    cat >M/chat_template.jinja <<END
{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == "assistant" %}$3{% else %}$4{% endif %}{% endfor %}$5
END
    trains turns.jsonl "$1"
    ok "$1: answers by prefixes are those of tags" cmp "$1/rows.bin" "$1-tags/rows.bin"
}
same_as_tags closing '<e>{% if loop.last %}{{ eos_token }}{% endif %}' '<e>' '<e>' \
    '{% if add_generation_prompt %}<assistant>{% else %}{{ eos_token }}{% endif %}'
same_as_tags thought '<e>' '<e>' '<e>' '{% if add_generation_prompt %}<assistant><think>{{ "\n" }}{% endif %}'
same_as_tags next '{% if not loop.last %}{{ eos_token }}{% endif %}' '{% if not loop.last %}{{ eos_token }}{% endif %}' '<e>' \
    '{% if add_generation_prompt %}<assistant>{% endif %}'
rm M/chat_template.jinja M/tokenizer_config.json
refuses 'chats.jsonl:1: a chat needs a template that makes text of it: there is no chat_template.jinja in M' chats.jsonl
trains pairs.jsonl l
ok "pairs need no template" cmp h/rows.bin l/rows.bin
gives 1 'a chat needs a template' train seed --data chats.jsonl $run --out o
said '--tokenizer FOLDER names a folder with a tokenizer and its template'
gives 1 'expected a chat template' generate seed --message hi
said '--prompt TEXT --tokens N takes a text as it is; --tokenizer FOLDER names a folder with a template'
gives 2 'the model has no folder with a chat template' generate demo --message hi
said '--prompt TEXT --tokens N takes a text as it is'
python=$(sed -n 's/^/x/p' "$source/tests/chat/chat_template.jinja" | sed 's/^x//; s/\\/\\\\/g; s/"/\\"/g' | awk '{ printf "%s\\n", $0 }')
printf '{"model_max_length": 1000000000000000019884624838656, "chat_template": "%s"}' "$python" >M/tokenizer_config.json
trains chats.jsonl n
ok "a template in tokenizer_config.json" cmp n/rows.bin whole/rows.bin
totals
