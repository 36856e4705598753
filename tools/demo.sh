#!/bin/sh
# Trains a byte-level model on the King James Bible as Debian packages it, and says how well it predicts
# text that it has not seen, beside what xz makes of the text. Usage: tools/demo.sh BUILD
build=$1
folder=$build/demo
text=$folder/bible.txt
mkdir -p "$folder" || exit 1

# One verse per line, without the reference that each begins with ("Ge1:1 ").
if [ ! -s "$text" ]; then
    bible -f gen1:1-rev22:21 </dev/null | sed 's/^[^ ]* //' >"$text.part" && mv "$text.part" "$text"
fi
bytes=$(wc -c <"$text")
if [ "$bytes" -lt 1000000 ]; then
    echo "demo: the packages bible-kjv and bible-kjv-text gave no text of a megabyte: $text has $bytes bytes" >&2
    exit 1
fi
packed=$(xz -9 -c "$text" | wc -c)
xz=$(awk -v n="$bytes" -v packed="$packed" 'BEGIN { printf "%.4f", 8 * log(2) * packed / n }')
echo "text: the King James Bible (Debian package bible-kjv-text), one verse per line: $bytes bytes"
echo "xz -9: $packed bytes, $xz nats per byte"

rm -rf "$folder/run"
"$build/tenon" train demo --data "$text" --token-type byte --val-fraction 0.1 --max-sec 190 \
    --batch-size 8 --seq-len 128 --lr 6e-3 --min-lr 1e-5 --warmup 100 --eval-every 500 \
    --sample-tokens 400 --prompt "And the LORD said" --out "$folder/run" --metrics "$folder/metrics.jsonl" || exit

loss=$("$build/tenon" eval "$folder/run" --data "$text" --token-type byte --val-fraction 0.1 | sed "s/loss //")
awk -v loss="$loss" -v xz="$xz" 'BEGIN {
    printf "held-out loss %.4f nats per byte; xz -9 needs %s nats per byte for the whole text\n", loss, xz }'
