#!/bin/sh
# What users of other tools bring: files that are no text, folders, their options and commands, graphs where models
# are expected. What is refused says what to do instead.
# Usage: tests/scripts/other_tools.sh BUILD
. tools/checks.sh

cd "$dir" || exit 1
# foreign FILE WHAT COMMAND: refused by train, eval and tokenize alike, each with the command that makes text of it.
foreign() {
    for args in "train demo --data $1 --steps 1 --batch-size 2 --seq-len 8 --out run" "eval demo --data $1" \
        "tokenize $1 -o tokens.bin"; do
        # shellcheck disable=SC2086
        gives 1 "$1: expected text, found $2" $args
        [ -z "$3" ] || ok "$1: the command" grep -qF "  text of it makes: $3" err
        ok "nothing is left" [ ! -e run ] && ok "nothing is left" [ ! -e tokens.bin ]
    done
}
# records FILE WHAT COMMAND: refused by tokenize alone; train takes what it has.
records() {
    gives 1 "$1: expected text, found $2" tokenize "$1" -o tokens.bin
    ok "$1: the command" grep -qF "  text of it makes: $3" err
    ok "nothing is left" [ ! -e tokens.bin ]
    gives 0 'held out' train demo --data "$1" --steps 1 --batch-size 1 --seq-len 8 --out taken --overwrite
    ok "$1: not its bytes as they are" grep -q 'tokens by bytes' err
}
# unknown FILE COMMAND: records without keys that are known.
unknown() {
    gives 1 'expected the key "messages"' train demo --data "$1" --steps 1 --batch-size 1 --seq-len 8 --out run
    ok "$1: the command" grep -qF "  text of it makes: $2" err
    ok "nothing is left" [ ! -e run ]
}
# made FILE: what the command of the last message makes is text that trains.
made() {
    sed -n 's/^  text of it makes: //p' err >command.sh
    ok "$1: its command runs" sh command.sh
    gives 0 'held-out loss' train demo --data "$1" --steps 1 --batch-size 2 --seq-len 8 --out made --overwrite
}
words() { i=0; while [ $((i += 1)) -le "$1" ]; do echo "the line $i of a text, and what it says"; done; }

words 40 >plain.txt
gzip -c plain.txt >a.gz
if "$tenon" eval demo --data a.gz >out 2>err; then
    records a.gz 'gzip, compressed' 'gzip -dc a.gz >a.txt'
    gzip -c plain.txt >b.TXT.gz
    records b.TXT.gz 'gzip, compressed' 'gzip -dc b.TXT.gz >b.TXT'
    gzip -c plain.txt >packed.txt
    records packed.txt 'gzip, compressed' 'gzip -dc packed.txt >packed.utf8.txt'
else
    echo 'note: gzip: this build has no zlib'
    gives 1 'a.gz: expected text, found gzip, compressed, for which this build has no zlib' eval demo --data a.gz
fi
gzip -dc a.gz >a.txt
printf '\050\265\057\375 and more of it' >a.zst
gives 1 'zstd' eval demo --data a.zst
gives 1 'a.zst: expected text, found zstd, compressed' tokenize a.zst -o tokens.bin
printf '\3757zXZ\0 and more of it' >a.xz
foreign a.xz 'xz, compressed' 'xz -dc a.xz >a.txt'
printf 'BZh91AY&SY and more of it' >a.bz2
foreign a.bz2 'bzip2, compressed' 'bzip2 -dc a.bz2 >a.txt'
printf 'PK\003\004 and more of it' >a.zip
foreign a.zip 'a zip archive' 'unzip -p a.zip >a.txt'
printf 'PAR1 and more of it PAR1' >a.parquet
foreign a.parquet 'parquet, a table' 'python3 -c '
printf 'ARROW1\0\0 and more of it' >a.arrow
foreign a.arrow 'arrow, a table' 'python3 -c '
printf '%%PDF-1.7 and more of it' >a.pdf
foreign a.pdf 'PDF' 'pdftotext a.pdf a.txt'
tensors a.safetensors '{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' '\0\0\0\0'
foreign a.safetensors 'safetensors: a model' ''
for code in UTF-16 UTF-16LE UTF-16BE; do
    iconv -f UTF-8 -t $code plain.txt >$code.txt
    foreign $code.txt 'text in UTF-16' "iconv -f $code -t UTF-8 $code.txt >$code.utf8.txt"
done
made UTF-16BE.utf8.txt
printf '\376\377' >marked.txt
iconv -f UTF-8 -t UTF-16BE plain.txt >>marked.txt
foreign marked.txt 'text in UTF-16' 'iconv -f UTF-16 -t UTF-8'

awk '{ printf "{\"id\": %d, \"text\": \"%s\"}\n", NR, $0 }' plain.txt >a.jsonl
records a.jsonl 'JSON Lines' "jq -r '.text' a.jsonl >a.txt"
cp a.jsonl lines
records lines 'JSON Lines' "jq -r '.text' lines >lines.txt"
echo '{"messages": [{"role": "user", "content": "hello"}]}' >chat.jsonl
gives 1 'chat.jsonl:1: a chat needs a template' train demo --data chat.jsonl --steps 1 --batch-size 1 --seq-len 8 --out run
gives 1 "jq -r '.messages[].content' chat.jsonl" tokenize chat.jsonl -o tokens.bin
echo '{"instruction": "say", "output": "hello"}' >alpaca.jsonl
records alpaca.jsonl 'JSON Lines' "jq -r '.instruction, .output' alpaca.jsonl"
awk 'BEGIN { printf "[" } { printf "%s\n  {\"n\": %d, \"story\": \"%s\"}", (NR > 1 ? "," : ""), NR, $0 } END { print "\n]" }' plain.txt >array
unknown array "jq -r '.[] | .story' array >array.txt"
awk 'BEGIN { print "id,story" } { printf "%d,\"%s\"\r\n", NR, $0 }' plain.txt >a.csv
unknown a.csv "python3 -c 'import csv, sys; [print(r[\"story\"]) for r in csv.DictReader(sys.stdin)]' <a.csv >a.txt"
if command -v python3 >/dev/null; then made a.txt && ok "its text alone" cmp plain.txt a.txt; fi
cp a.csv table
unknown table python3
awk 'BEGIN { print "id\ttale" } { printf "%d\t%s\n", NR, $0 }' plain.txt >"it's.tsv"
unknown "it's.tsv" python3
ok "a path is quoted" grep -qF "<'it'\\''s.tsv' >'it'\\''s.txt'" err

# found FILE WHAT FIRST: what it is called, and the first line of what its command makes.
found() {
    gives 1 "$1: expected text, found $2" tokenize "$1" -o tokens.bin
    sed -n 's/^  text of it makes: //p' err >command.sh
    if command -v "$(cut -d ' ' -f 1 command.sh)" >/dev/null; then
        sh command.sh
        ok "$1: $(cat command.sh): expected the line: $3" [ "$(head -1 "$(sed 's/.*>//' command.sh)")" = "$3" ]
    fi
}
first=$(head -1 plain.txt)
sed 's/.*/"&"/' plain.txt >strings.jsonl
found strings.jsonl 'JSON Lines' "$first"
awk '{ printf "[%d, \"%s\"]\n", NR, $0 }' plain.txt >arrays.ndjson
found arrays.ndjson 'JSON Lines' "$first"
awk '{ printf "{\n  \"id\": \"%d\",\n  \"my text\": \"%s\"\n}\n", NR, $0 }' plain.txt >pretty
found pretty 'JSON, object after object' "$first"
awk '{ printf "{\"id\": \"%d\", \"it'"'"'s\": \"%s\"}\n", NR, $0 }' plain.txt >key.jsonl
found key.jsonl 'JSON Lines' "$first"
awk '{ printf "{\"OUT\": \"%s\"}\n", $0 }' plain.txt >"out.jsonl"
found out.jsonl 'JSON Lines' "$first"
# object RECORDS: an object whose member has records of text.
object() { awk -v n="$1" 'BEGIN { printf "{\"version\": \"1\", \"data\": [" }
    { line[NR] = $0 } END { while (i++ < n) printf "%s{\"story\": \"%s\"}", (i > 1 ? ", " : ""), line[(i - 1) % NR + 1]; print "]}" }' plain.txt; }
object 40 >one
found one JSON "$first"
object 4000 >large.json # longer than is looked at
found large.json JSON "$first"
awk 'BEGIN { print "id;my story" } { printf "%d;%s\n", NR, $0 }' plain.txt >semicolon.csv
found semicolon.csv 'CSV, a table' "$first"
awk '{ printf "good\t%s\n\n", $0 }' plain.txt >bare.tsv
found bare.tsv 'TSV, a table' "$first"
awk '{ printf "\"%s\",%d\n", $0, NR }' plain.txt >bare.csv
found bare.csv 'CSV, a table' "$first"
awk 'BEGIN { print "id\tname\tstory" } { printf "%d\tx\t%s\n", NR, $0 }' plain.txt >columns
found columns 'TSV, a table' "$first"
gives 1 'standard input: expected text, found gzip' tokenize - -o tokens.bin <a.gz
gives 1 'gzip -dc FILE >FILE.txt' tokenize - -o tokens.bin <a.gz

# What was meant is taken: bytes on request, and texts that look a little like those.
gives 0 'held-out loss' train demo --data a.jsonl --token-type byte --steps 1 --batch-size 2 --seq-len 8 --out bytes
gives 0 'held-out loss' train --resume --steps 2 --out bytes
gives 0 'tokens by bytes' train bytes --data lines --steps 1 --batch-size 2 --seq-len 8 --out run
{ echo '{ this is a text }'; words 20; } >braces.txt
{ echo 'So, he said, and went,'; echo 'on, as he did, before,'; echo 'and, so, on,'; words 20; } >commas.txt
{ echo '[a stage direction]'; words 20; } >brackets.txt
printf '#include <stdio.h>\nint main(void) { return 0; }\n\n/* %s */\n' "$(words 20)" >code.c
words 1000 | sed 's/^the line/word\t&/' >tabs.txt
{ printf 'word\tmeaning\n'; cat tabs.txt; } >named.txt
seq 1000 | sed 's/.*/&,&,&/' >commas_numbers.txt
seq 1000 >numbers_alone.txt
words 40 >prose_alone.txt
{ echo '"So," he said, "it is."'; words 20; } >quotes_first.txt
{ echo '{"a": "b"}'; words 20; } >object_first.txt
{ echo '[1] a note'; words 20; } >notes.txt
for file in braces.txt commas.txt brackets.txt code.c tabs.txt named.txt commas_numbers.txt numbers_alone.txt prose_alone.txt \
    quotes_first.txt object_first.txt notes.txt; do
    gives 0 '' eval demo --data $file
    gives 0 '' tokenize $file -o tokens.bin
done

# ---- folders ----

mkdir texts texts/within empty
words 30 >texts/b.txt
words 20 >texts/a.txt
: >texts/empty
echo x >texts/.hidden
mkfifo texts/pipe
echo x >texts/within/c.txt
gives 0 'perplexity' eval demo --data texts
cp out want
gives 0 'perplexity' eval demo --data texts/a.txt --data texts/b.txt
ok "a folder is its files, by name" cmp want out
gives 0 'perplexity' eval demo --data texts/
ok "also with a slash" cmp want out
gives 1 'empty: no file in the folder' eval demo --data empty
mkdir outer && mv texts/within outer/
gives 1 "outer: no file in the folder; 'outer/*/*' names the files of those in it" eval demo --data outer
gives 2 'is an input (--data)' train demo --data texts --steps 1 --batch-size 2 --seq-len 8 --out run --metrics texts/a.txt
gives 0 'held-out' train demo --data texts --steps 1 --batch-size 2 --seq-len 8 --out folder
gives 0 'goes on' train --resume --steps 2 --out folder

# ---- options and commands of other tools ----

for words in 'num_epochs 3|--epochs X' 'num_train_epochs 3|--epochs X' 'learning-rate 1e-3|--lr X' 'learning_rate=3|--lr X' \
    'dry-run|`tenon plan M`' 'lora-rank 8|--lora r=16' 'lora_r 8|--lora r=16' 'max_iters 9|--steps N' \
    'per_device_train_batch_size 8|--batch-size N' 'gradient_accumulation_steps 2|--accumulate K' 'block_size 8|--seq-len N' \
    'gradient-checkpointing|--recompute full' 'bf16|--dtype bf16' 'output_dir x|--out DIR' 'max_grad_norm 1|--clip X' \
    'fsdp|--mesh fsdp=N' 'model_name_or_path gpt2|the first argument' 'wandb_project x|--metrics FILE' 'gpus 2|--mesh' \
    'eval_iters 3|--eval-windows N' 'resume_from_checkpoint x|--resume' 'compile|nothing: ' 'save_steps 3|--save-every'; do
    # shellcheck disable=SC2086
    gives 2 "here it is ${words#*|}" train demo --${words%%|*}
done
for letter in i v b l n s x; do # another meaning in each tool
    gives 2 "unknown option \"-$letter\": options have names, which tenon train --help lists" train demo -$letter file
    ok "nothing else is claimed of it" not grep -q 'here it is' err
done
gives 2 'unknown option "-o"; here it is --out DIR' train demo -o run
gives 2 'found "cuda"; here it is --backend cuda' train demo --device cuda
gives 2 'found "gpu"; here it is --backend cuda' train demo --backend gpu
gives 2 'found "fp16"; here it is bf16' train demo --dtype fp16
gives 2 'found "linear_with_warmup"; here it is cosine, linear or constant' train demo --schedule linear_with_warmup
gives 2 'unknown option "--weight_decay"; the nearest is "--weight-decay"' train demo --weight_decay 0.1
gives 2 'unknown option "--weight_decay": --weight-decay is an option of train plan opt' eval demo --weight_decay 0.1
gives 2 'unknown option "--seq_len"; the nearest is "--seq-len"' eval demo --seq_len 8
gives 2 'unknown option "--threads": --threads is an option of train grad' ops --threads 2
gives 2 'unknown option "--model"; here it is the first argument' train --model gpt2
gives 2 'unknown option "--batch_size"; the nearest is "--batch-size"' train demo --batch_size 3
gives 2 'here it is --tokens N' generate demo --max_new_tokens 5
gives 2 'here it is --lr X, which plan does not take' plan demo --learning-rate 3
for words in 'finetune|tenon train M' 'chat|tenon generate M' 'evaluate|tenon eval M' \
    'prepare|tenon tokenize' 'benchmark|tenon bench'; do
    gives 2 "unknown command \"${words%%|*}\"; here it is " ${words%%|*}
    ok "what to do" grep -q "${words#*|}" err
done

# ---- graphs ----

cat >g.tn <<'END'
tenon 1
graph g(%x: f32[2, 3] batch, %w: f32[3, 3] param "w") {
  %y: f32[2, 3] = mm(%x, %w)
  %l: f32[2, 3] = mul(%y, %y)  loss
  %loss: f32[] = mean(%l)  loss
  return loss %loss
}
END
for args in 'eval g.tn --data plain.txt' 'generate g.tn --prompt a --tokens 1'; do
    # shellcheck disable=SC2086
    gives 2 'g.tn: a graph, where a model is expected' $args
    ok "what takes graphs" grep -q 'tenon train g.tn --inputs WEIGHTS' err
done
tensors in '{"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"w":{"dtype":"F32","shape":[3,3],"data_offsets":[24,60]}}' \
    "$(awk 'BEGIN { while (i++ < 15) printf "\\0\\0\\200\\077" }')"
gives 0 '' run g.tn --inputs in
ok "run prints the loss" [ "$(cat out)" = 'loss 9' ]
for type in bf16 f16 f64; do
    cast="  %half: $type[] = _to_copy(%loss, dtype=$type)  loss"
    sed "s/^  return.*/$cast\n  return loss %half/" g.tn >half.tn
    gives 0 '' run half.tn --inputs in
    ok "a loss in $type" [ "$(cat out)" = 'loss 9' ]
done
gives 0 '' run g.tn --inputs in --outputs -
ok "but not into a file" grep -q '^loss 9$' err
gives 2 'pass "ces" did not run; the nearest is "cse"' opt g.tn --passes=grad,cse --after=ces
ok "those that ran" grep -q '^  those that did: grad.* cse' err
gives 2 'pass "remat" did not run' opt g.tn --passes=grad,cse --after=remat
sed 's/"x"/"X"/' in >in2
gives 1 'input "x": expected f32[2, 3], found no such tensor; there are X, w' run g.tn --inputs in2
totals
