#!/bin/sh
# Metrics as CSV and as TensorBoard's event files, read by a reader of this script's own: the same numbers as JSON
# Lines, each step once after a run was killed and went on, files of other runs left whole, torn and damaged files.
# Usage: tests/scripts/metrics.sh BUILD
. tools/checks.sh
ref=tests/ref/llama-tiny

# The events of files, a line for each: step, tag, value; fails at a checksum, a length or a field that is wrong.
# A torn last record is passed over.
cat >"$dir/events.py" <<'END_PY'
import struct, sys

table = list(range(256))
for _ in range(8):
    table = [x >> 1 ^ (0x82f63b78 if x & 1 else 0) for x in table]

def crc(data):
    sum = 0xffffffff
    for byte in data:
        sum = sum >> 8 ^ table[(sum ^ byte) & 255]
    sum ^= 0xffffffff
    return ((sum >> 15 | sum << 17) + 0xa282ead8) & 0xffffffff

def varint(data, at):
    x = shift = 0
    while True:
        x |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return x, at

def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 2:
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
        else:
            n = {1: 8, 5: 4}[key & 7]
            value, at = data[at:at + n], at + n
        assert at <= len(data)
        yield key >> 3, value

for path in sorted(sys.argv[1:]):
    data, at, first = open(path, 'rb').read(), 0, True
    while at + 12 <= len(data):
        n, sum = struct.unpack_from('<QI', data, at)
        assert sum == crc(data[at:at + 8]), (path, at)
        if at + 16 + n > len(data):
            break
        record, at = data[at + 12:at + 12 + n], at + 16 + n
        assert struct.unpack_from('<I', data, at - 4)[0] == crc(record), (path, at)
        event = dict(fields(record))
        assert 1.6e9 < struct.unpack('<d', event[1])[0] < 1e10
        assert first == (event.get(3) == b'brain.Event:2'), event
        first = False
        if 7 in event:
            print(event[2], 'start')
        for field, value in fields(event.get(5, b'')):
            tag = dict(fields(value))
            print(event[2], tag[1].decode(), '%.6g' % struct.unpack('<f', tag[2])[0])
END_PY
events() { python3 "$dir/events.py" "$@"; }
# table FILE.csv: the same lines of a CSV file.
table() {
    python3 -c 'import csv, struct, sys
for row in csv.DictReader(open(sys.argv[1])):
    for key, value in row.items():
        if value and key not in ("step", "run"):
            print(row["step"], key, "%.6g" % struct.unpack("<f", struct.pack("<f", float(value)))[0])' "$1"
}
# alike FILE FILE: such lines with the same steps and names, and numbers of which the sixth digit differs by one at most:
# those of CSV are rounded twice.
alike() {
    [ "$(wc -l <"$1")" = "$(wc -l <"$2")" ] && paste -d ' ' "$1" "$2" | awk '
        { off = $3 - $6; most = 1.1e-5 * ($3 < 0 ? -$3 : $3) }
        $1 != $4 || $2 != $5 || off > most || off < -most { print; bad = 1 }
        END { exit bad }'
}
# curve: of such lines those that do not depend on the time.
curve() { grep -E ' (loss|grad_norm|lr|tokens|epoch|eval_loss|perplexity) '; }

for _ in 1 2 3 4; do cat LICENSE; done >"$dir/text"
set -- "$ref" --data "$dir/text" --batch-size 4 --seq-len 32 --steps 30 --lr 1e-3 --eval-every 7 --eval-windows 3 \
    --save-every 5 --threads 1 --val-fraction 0.01

# ---- the same numbers ----

train_gives 0 '' "$@" --out "$dir/a" --metrics "$dir/a.csv" --tensorboard "$dir/board/a"
ok "CSV begins with the names" grep -q '^step,loss,grad_norm,lr,.*,run$' "$dir/a.csv"
ok "each line has as many" [ "$(awk -F, '{ print NF }' "$dir/a.csv" | sort -u | wc -l)" = 1 ]
ok "a line for each step and evaluation" [ "$(wc -l <"$dir/a.csv")" = 36 ]
ok "events are read" events "$dir"/board/a/* >"$dir/events"
table "$dir/a.csv" >"$dir/table"
ok "events and CSV have the same numbers" alike "$dir/events" "$dir/table"
train_gives 0 '' "$@" --out "$dir/j" --metrics "$dir/j.jsonl"
sed 's/null/NaN/g' "$dir/j.jsonl" | python3 -c 'import json, sys
for line in sys.stdin:
    x = json.loads(line)
    for key, value in x.items():
        if key not in ("step", "run") and value == value:
            print(x["step"], key, "%.6g" % value)' | curve >"$dir/want"
table "$dir/a.csv" | curve >"$dir/got"
ok "CSV and JSON Lines have the same numbers" cmp "$dir/want" "$dir/got"
ok "there are some" [ "$(wc -l <"$dir/got")" -ge 40 ]

# ---- killed, and gone on with ----

"$tenon" train "$@" --out "$dir/b" --metrics "$dir/b.csv" --tensorboard "$dir/board/b" >"$dir/out" 2>"$dir/err" &
pid=$!
for _ in $(seq 1200); do
    [ -s "$dir/b.csv" ] && [ "$(wc -l <"$dir/b.csv")" -ge 15 ] && break
    sleep 0.02
done
kill -KILL $pid
wait $pid
ok "what a killed run leaves is read" events "$dir"/board/b/* >"$dir/events"
ok "and has its steps" grep -q '^9 loss ' "$dir/events"
last=$(ls "$dir"/board/b/*)
head -c $(($(wc -c <"$last") - 5)) "$last" >"$dir/torn" # in the midst of a record
cp "$dir/torn" "$last"
train_gives 0 'goes on from' --resume --out "$dir/b"
ok "another file goes on" [ "$(ls "$dir/board/b" | wc -l)" = 2 ]
events "$dir"/board/b/* | tee "$dir/events" | curve >"$dir/got"
ok "it tells readers what is no more" grep -qE '^[0-9]+ start$' "$dir/events"
table "$dir/a.csv" | curve >"$dir/want"
ok "events have each step once" cmp "$dir/want" "$dir/got"
table "$dir/b.csv" | curve >"$dir/got"
ok "so has CSV" cmp "$dir/want" "$dir/got"
train_gives 0 'already at step 30' --resume --out "$dir/b"
events "$dir"/board/b/* | curve >"$dir/got"
ok "a run at its end adds nothing" cmp "$dir/want" "$dir/got"

# ---- a copy, another run, another folder ----

set -- "$ref" --batch $ref/batch.safetensors --lr 1e-3 --threads 1
train_gives 0 '' "$@" --steps 4 --out "$dir/p" --tensorboard "$dir/board/p" --metrics "$dir/p.csv"
cp -r "$dir/p" "$dir/copy"
cat "$dir"/board/p/* >"$dir/before"
train_gives 0 "has the events of the run that this is a copy of; those of the copy go to $dir/copy/tensorboard" --resume --out "$dir/copy" --steps 6
cat "$dir"/board/p/* >"$dir/after"
ok "the original's are as they were" cmp "$dir/before" "$dir/after"
events "$dir"/copy/tensorboard/* >"$dir/events"
ok "the copy has all steps" [ "$(grep -c ' loss ' "$dir/events")" = 6 ]
for file in "$dir"/copy/tensorboard/*; do { printf "\\030"; head -c 63 /dev/zero; } >>"$file"; done # as a file system leaves after a power cut
train_gives 0 '' --resume --out "$dir/copy" --steps 7
ok "and goes on there" grep -q '^7 loss' <<END_OF_EVENTS
$(events "$dir"/copy/tensorboard/*)
END_OF_EVENTS
train_gives 0 "the event files of another run that were in $dir/board/p are now in $dir/board/p~1" "$@" --steps 2 --out "$dir/c" --tensorboard "$dir/board/p"
ok "nothing of them is lost" [ "$(cat "$dir"/board/p~1/* | cksum)" = "$(cksum <"$dir/before")" ]
train_gives 0 "does not have this run's event files, though the checkpoint names it" --resume --out "$dir/p" --steps 5
train_gives 0 '' --resume --out "$dir/p" --steps 6 --tensorboard "$dir/board/new"
ok "where it was asked for" [ "$(events "$dir"/board/new/* | grep -c ' loss ')" = 1 ]
train_gives 0 '' "$@" --steps 2 --out "$dir/m" --tensorboard "$dir/m/tb" --metrics "$dir/m/m.csv"
mv "$dir/m" "$dir/moved"
train_gives 0 "metrics goes on in $dir/moved/m.csv, as $dir/m/m.csv is gone" --resume --out "$dir/moved" --steps 3
train_gives 0 '' --resume --out "$dir/moved" --steps 4
ok "a folder that was moved has the metrics of all steps" [ "$(wc -l <"$dir/moved/m.csv")" = 5 ]
ok "and the events" [ "$(events "$dir"/moved/tb/* | grep -c ' loss ')" = 4 ]
train_gives 0 "are now in $dir/p.csv~1" "$@" --steps 2 --out "$dir/d" --metrics "$dir/p.csv"

# ---- what is refused ----

mkdir "$dir/texts"
cp "$dir/text" "$dir/texts/a.txt"
gives 2 "$dir/texts/m.csv would be one of the files of --data" train "$ref" --data "$dir/texts" --token-type byte --steps 2 \
    --out "$dir/texts/run" --metrics "$dir/texts/m.csv"
gives 2 "$dir/texts/m.csv would be one of the files of --data" train "$ref" --data "$dir/texts/*" --token-type byte --steps 2 \
    --out "$dir/texts/run" --metrics "$dir/texts/m.csv"

last=$(ls "$dir"/board/new/*)
printf '\377' | dd of="$last" bs=1 seek=30 conv=notrunc 2>/dev/null
train_gives 1 "at byte 0: expected a record of events" --resume --out "$dir/p" --steps 7
sed 1d "$dir/p.csv" >"$dir/d.csv"
train_gives 1 "expected a line of metrics" --resume --out "$dir/d" --steps 3 --metrics "$dir/d.csv"
train_gives 1 "cannot" "$@" --steps 2 --out "$dir/e" --tensorboard "$dir/text"
train_gives 1 "cannot" "$@" --steps 2 --out "$dir/e" --tensorboard "$dir/text/x"
mkdir "$dir/f"
ln -s "$dir/board" "$dir/f/link"
train_gives 1 "not a folder, in the run's folder" "$@" --steps 2 --out "$dir/f" --tensorboard "$dir/f/link"
ok "nothing was written through it" [ -z "$(find "$dir/board" -maxdepth 1 -type f)" ]
totals
