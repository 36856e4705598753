#!/bin/sh
# tenon train GRAPH.tn: a joint graph of PyTorch (tests/fx/gpt2_step) and forwards alone, that shift their labels or do
# not; checkpoints, a run that goes on, ranks, what is refused. Usage: tests/scripts/train_graph.sh BUILD
. tools/checks.sh

inputs=tests/fx/gpt2_step/inputs.safetensors
"$tenon" import fx tests/fx/gpt2_step/graph.txt --inputs $inputs --loss getitem_21 --params 'arg*' -o "$dir/joint.tn" >/dev/null
ok "joint: imported"
python3 - "$dir" <<'END'
import json, random, struct, sys

out, r = sys.argv[1], random.Random(0)
token, tokens = 0, []
for _ in range(4000):
    token = (7 * token + r.choice([1, 1, 1, 2])) % 97
    tokens.append(token)
open(out + "/tokens.bin", "wb").write(struct.pack("<4000H", *tokens))


def write(name, tensors):
    head, data = {}, b""
    for key, (dtype, shape, raw) in tensors.items():
        head[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    open(f"{out}/{name}.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)


def normal(n):
    return struct.pack(f"<{n}f", *(r.gauss(0, 0.1) for _ in range(n)))


write("lm", {"wte": ("F32", [97, 16], normal(97 * 16)), "w": ("F32", [16, 97], normal(16 * 97))})
write("buffers", {"wte": ("F32", [97, 16], normal(97 * 16)), "w": ("F32", [16, 97], normal(16 * 97)), "norm.mean": ("F32", [16], normal(16)),
                  "count": ("I64", [], struct.pack("<q", 5))})
write("short", {"wte": ("F32", [97, 16], normal(97 * 16)), "w": ("F32", [16, 96], normal(16 * 96))})
rows = [tokens[8 * i : 8 * i + 9] for i in range(2)]
write("batch", {"input_ids": ("I64", [2, 8], b"".join(struct.pack("<8q", *x[:8]) for x in rows)),
                "labels": ("I64", [2, 8], b"".join(struct.pack("<8q", *x[1:]) for x in rows))})
END

# lm NAME LABELS: a forward whose loss is that of 7 of 8 places; LABELS: of labels i64[2, 8] those that are read.
lm() {
    cat >"$dir/$1.tn" <<END
tenon 1
graph lm(%ids: i64[2, 8] batch, %targets: i64[2, 8] batch, %e: f32[97, 16] param "wte", %w: f32[16, 97] param "head") {
  %h = embedding(%e, %ids)  @"layers.0"
  %g = gelu(%h)  @"layers.0"
  %s = slice(%g, dim=1, end=7)
  %f = view(%s, size=[14, 16])
  %x = mm(%f, %w)
  %l = slice(%targets, dim=1, $2)  loss
  %flat = view(%l, size=[14])  loss
  %n = count_labels(%l)  loss
  %loss, %lse = cross_entropy(%x, %flat, %n)  loss
  return loss %loss
}
END
}
# The tensors of a checkpoint, each with a sum of its bytes.
sums() {
    python3 - "$1/model.safetensors" <<'END'
import json, struct, sys

data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head = json.loads(data[8 : 8 + n])
for name in sorted(set(head) - {"__metadata__"}):
    begin, end = head[name]["data_offsets"]
    print(name, sum(data[8 + n + begin : 8 + n + end]), sep=":")
END
}
lm own start=1 # of the tokens themselves, which it shifts
lm next end=7  # of the next tokens

# shellcheck disable=SC2086
{
    more="--data $dir/tokens.bin --token-type u16 --lr 1e-2"
    joint="$dir/joint.tn --inputs $inputs $more"
    gives 0 'trained 6 steps' train $joint --steps 6 --out "$dir/a"
    ok "a checkpoint has the graph" [ "$(cd "$dir/a/latest" && echo *)" = 'config.json graph.tn model.safetensors optimizer.safetensors state.json' ]
    ok "it is the graph" cmp "$dir/a/latest/graph.tn" "$dir/joint.tn"
    for option in 'dtype bf16' 'accumulate 2'; do # as plan refuses them
        # shellcheck disable=SC2086 # words
        gives 2 "--${option% *} changes nothing without the pass" bench plan --runs 1 --model "$dir/a/latest" \
            --batch-size 2 --seq-len 16 --$option
    done
    gives 0 'trained 6 steps' train $joint --steps 6 --save-every 3 --out "$dir/b"
    rm -rf "$dir/b/step-6"
    gives 0 'goes on from' train --resume --out "$dir/b"
    ok "a run that goes on: weights" cmp "$dir/a/latest/model.safetensors" "$dir/b/latest/model.safetensors"
    ok "a run that goes on: state" cmp "$dir/a/latest/optimizer.safetensors" "$dir/b/latest/optimizer.safetensors"
    gives 2 '--accumulate does not go with a graph that has its backward' train $joint --steps 1 --accumulate 2 --out "$dir/no"
    gives 2 'found 3 rows of 16 tokens' train $joint --steps 1 --batch-size 3 --seq-len 16 --out "$dir/no"

    # Both take their labels from the same places, so that losses and weights are the same.
    "$tenon" train "$dir/own.tn" --inputs "$dir/lm.safetensors" --batch "$dir/batch.safetensors" --steps 4 --lr 3e-2 --out "$dir/own" >"$dir/own.txt" 2>"$dir/err"
    ok "own: trained"
    gives 2 'labels same where it is called with' train "$dir/next.tn" --inputs "$dir/lm.safetensors" --batch "$dir/batch.safetensors" --steps 4 --lr 3e-2 --out "$dir/next"
    "$tenon" train "$dir/next.tn" --labels shifted --inputs "$dir/lm.safetensors" --batch "$dir/batch.safetensors" --steps 4 --lr 3e-2 --out "$dir/next" >"$dir/next.txt" 2>"$dir/err"
    ok "next: trained"
    ok "it learns" awk '{ loss[NR] = $4 } END { exit !(loss[4] < loss[1] - 0.05) }' "$dir/own.txt"
    ok "four losses" [ "$(grep -c '^step [1-4] loss' "$dir/own.txt")" = 4 ]
    ok "labels that are shifted once: losses" cmp "$dir/own.txt" "$dir/next.txt"
    ok "labels that are shifted once: weights" cmp "$dir/own/latest/model.safetensors" "$dir/next/latest/model.safetensors"
    sed 's/param "head"/param "head" "also head" "third"/' "$dir/own.tn" >"$dir/tied.tn"
    "$tenon" train "$dir/tied.tn" --inputs "$dir/lm.safetensors" --batch "$dir/batch.safetensors" --steps 4 --lr 3e-2 --save-every 2 --out "$dir/tied" >"$dir/tied.txt" 2>"$dir/err"
    ok "several names: the same losses" cmp "$dir/own.txt" "$dir/tied.txt"
    ok "several names: each is saved" [ "$(sums "$dir/tied/latest" | cut -d: -f1 | tr '\n' ,)" = 'also head,head,third,wte,' ]
    ok "with one tensor's numbers" [ "$(sums "$dir/tied/latest" | sed '/^wte/d; s/.*://' | sort -u | wc -l)" = 1 ]
    cp "$dir/tied/latest/model.safetensors" "$dir/tied.safetensors"
    rm -rf "$dir/tied/step-4"
    gives 0 'goes on from' train --resume --out "$dir/tied"
    ok "a run with several names that goes on" cmp "$dir/tied/latest/model.safetensors" "$dir/tied.safetensors"
    gives 0 'looks like same; it is given shifted' train "$dir/own.tn" --labels shifted --inputs "$dir/lm.safetensors" $more --steps 1 --out "$dir/told"
    gives 0 '' train "$dir/own.tn" --labels same --inputs "$dir/lm.safetensors" $more --steps 1 --out "$dir/told2"
    sed 's/%ids/%a/g; s/%targets/%input_ids/g; s/%a/%labels/g; s/%l\b/%short/g' "$dir/own.tn" >"$dir/swapped.tn"
    "$tenon" train "$dir/swapped.tn" --inputs "$dir/lm.safetensors" --batch "$dir/batch.safetensors" --steps 4 --lr 3e-2 --out "$dir/swapped" >"$dir/swapped.txt" 2>"$dir/err"
    ok "inputs whose names are swapped: the same losses" cmp "$dir/own.txt" "$dir/swapped.txt"
    sed 's/^  %n = .*//; s/^  %loss, .*/  %p = _log_softmax(%x, dim=1)  loss\n  %loss, %all = nll_loss_forward(%p, %flat, reduction=2)  loss/' "$dir/own.tn" >"$dir/sum.tn"
    gives 1 'is a sum over the labels: expected their mean' train "$dir/sum.tn" --inputs "$dir/lm.safetensors" $more --steps 1 --out "$dir/no"
    sed 's/reduction=2/reduction=1/' "$dir/sum.tn" >"$dir/mean.tn"
    gives 0 '' train "$dir/mean.tn" --inputs "$dir/lm.safetensors" $more --steps 1 --out "$dir/mean"

    # dropout of an imported graph: each step draws anew, elsewhere the step is 1; a run that goes on draws the same
    cat >"$dir/drop.txt" <<'END'
def forward(self, ids, labels, e, w):
    h = torch.ops.aten.embedding.default(e, ids)
    d = torch.ops.aten.native_dropout.default(h, 0.5, True)
    k = operator.getitem(d, 0)
    v = torch.ops.aten.view.default(k, [16, 16])
    x = torch.ops.aten.mm.default(v, w)
    p = torch.ops.aten._log_softmax.default(x, 1, False)
    t = torch.ops.aten.view.default(labels, [16])
    n = torch.ops.aten.nll_loss_forward.default(p, t, None, 1, -100)
    loss = operator.getitem(n, 0)
    return (loss,)
END
    gives 0 '' import fx "$dir/drop.txt" --shapes 'ids=i64[2,8], labels=i64[2,8], e=f32[97,16], w=f32[16,97]' --loss loss \
        --params e,w -o "$dir/drop.tn"
    ok "dropout: the step is an input" grep -q 'i64\[\] step' "$dir/drop.tn"
    python3 - "$dir" <<'END'
import json, struct, sys

# The tensors of lm.safetensors and batch.safetensors under the names of the graph.
out, head, data = sys.argv[1], {}, b""
for name, names in (("lm", {"wte": "e", "w": "w"}), ("batch", {"input_ids": "ids", "labels": "labels"})):
    raw = open(f"{out}/{name}.safetensors", "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    for key, x in json.loads(raw[8 : 8 + n]).items():
        begin, end = x["data_offsets"]
        head[names[key]] = {**x, "data_offsets": [len(data), len(data) + end - begin]}
        data += raw[8 + n + begin : 8 + n + end]
for name, step in (("drop", None), ("drop1", 1), ("drop2", 2)):
    more, tail = dict(head), data
    if step:
        more["step"] = {"dtype": "I64", "shape": [], "data_offsets": [len(data), len(data) + 8]}
        tail += struct.pack("<q", step)
    text = json.dumps(more).encode()
    open(f"{out}/{name}.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + tail)
END
    for name in drop drop1 drop2; do
        gives 0 '' run "$dir/drop.tn" --inputs "$dir/$name.safetensors" --seed 3 --outputs "$dir/$name.out"
    done
    ok "dropout: the step is 1 where it is not set" cmp "$dir/drop.out" "$dir/drop1.out"
    ok "dropout: another step draws others" [ "$(cmp "$dir/drop1.out" "$dir/drop2.out" >/dev/null; echo $?)" = 1 ]
    for optimizer in sgd adamw; do
        "$tenon" train "$dir/drop.tn" --labels shifted --inputs "$dir/drop.safetensors" --batch "$dir/batch.safetensors" --steps 3 \
            --lr 0 --weight-decay 0 --optimizer $optimizer --out "$dir/drop.$optimizer" >"$dir/drop.txt" 2>"$dir/err"
        ok "dropout, $optimizer: trained"
        ok "dropout, $optimizer: each step draws anew" [ "$(awk '/^step/ { print $4 }' "$dir/drop.txt" | sort -u | wc -l)" = 3 ]
    done

    # with everything else: recomputed, in slices, microbatches
    own="$dir/own.tn --inputs $dir/lm.safetensors $more --steps 5"
    gives 0 '' train $own --out "$dir/plain"
    gives 0 '' train $own --recompute full --out "$dir/again"
    ok "computed again: the same weights" cmp "$dir/plain/latest/model.safetensors" "$dir/again/latest/model.safetensors"
    gives 0 '' train $own --accumulate 2 --out "$dir/parts"
    gives 0 '' train $own --optimizer sgd --clip 0 --out "$dir/sgd"
    gives 0 '' train $own --eval-every 2 --out "$dir/held"

    # a graph that has its update: the held-out loss sets no lr; dropout and the update are in no evaluation
    gives 0 '' opt "$dir/own.tn" --passes=grad,optimizer --clip 0 -o "$dir/update.tn"
    ok "the update has a rate" grep -q 'scalar "lr"' "$dir/update.tn"
    gives 0 'held-out loss' train "$dir/update.tn" --inputs "$dir/lm.safetensors" $more --steps 5 --eval-every 2 --out "$dir/update"
    gives 0 'loss' eval "$dir/update" --data "$dir/tokens.bin" --token-type u16 --batch-size 2
    gives 2 'does not go with a graph that has its update' train "$dir/update.tn" --inputs "$dir/lm.safetensors" $more --steps 5 --clip 1 --out "$dir/no"

    # a run's graph has its batch, and takes labels as the run did: the held-out loss again
    gives 0 'held-out loss' train "$dir/own.tn" --inputs "$dir/lm.safetensors" $more --steps 5 --eval-windows 100000 --out "$dir/again2"
    told=$(sed -n 's/.*held-out loss \([0-9.]*\) nats.*/\1/p' "$dir/out" "$dir/err" | tail -1)
    gives 0 'loss' eval "$dir/again2" --data "$dir/tokens.bin" --token-type u16
    gives 0 'loss' eval "$dir/again2" --data "$dir/tokens.bin" --token-type u16 --val-fraction 0.1
    ok "eval of a run of a graph: the held-out loss $told, found $(cat "$dir/out")" \
        awk -v told="$told" '{ found = $2 } END { exit !(told > 0 && found - told < 1e-3 && told - found < 1e-3) }' "$dir/out"
    gives 2 'is for 2 rows of 8 tokens, found 3 rows' eval "$dir/again2" --data "$dir/tokens.bin" --token-type u16 --batch-size 3
    gives 0 'peak' plan "$dir/again2"
    gives 2 'is for 2 rows of 8 tokens, found 4 rows' plan "$dir/again2" --batch-size 4
    gives 2 'batch-size is missing' plan demo --seq-len 8
    gives 3 'need' plan "$dir/again2" --memory 30KiB
    ok "advice of a graph: no other batch" not grep -q -e '--batch-size' "$dir/err" "$dir/out"
    gives 3 '' plan "$dir/a" --memory 30KiB
    ok "advice of a graph with its backward: no microbatches" not grep -q -e '--accumulate' -e '--batch-size' "$dir/err" "$dir/out"
    gives 3 '' train $joint --steps 6 --memory 30KiB --out "$dir/no"
    ok "advice of a run: no microbatches" not grep -q -e '--accumulate' -e '--batch-size' "$dir/err" "$dir/out"
    gives 3 '' eval "$dir/again2" --memory 1KiB --data "$dir/tokens.bin" --token-type u16
    ok "advice of an evaluation: no other batch" not grep -q -e '--batch-size' "$dir/err" "$dir/out"

    # without its state.json a graph that does not say is asked for
    cp -rL "$dir/next/latest" "$dir/bare"
    batch="--batch $dir/batch.safetensors"
    gives 0 'loss' eval "$dir/bare" $batch
    shifted=$(grep -o 'loss [0-9.]*' "$dir/out")
    rm "$dir/bare/state.json"
    gives 2 'whether the graph shifts its labels does not follow' eval "$dir/bare" $batch
    gives 0 'loss' eval "$dir/bare" $batch --labels shifted
    ok "labels of eval: as of the run" [ "$shifted" = "$(grep -o 'loss [0-9.]*' "$dir/out")" ]
    gives 0 'loss' eval "$dir/bare" $batch --labels same
    ok "labels of eval: others" [ "$shifted" != "$(grep -o 'loss [0-9.]*' "$dir/out")" ]
    gives 2 'is for graphs, not for models' eval demo $batch --labels same

    # a graph that was changed in its run is another
    cp -r "$dir/again2" "$dir/changed"
    sed 's/gelu(/relu(/' "$dir/again2/latest/graph.tn" >"$dir/changed/latest/graph.tn"
    gives 1 'the graph is another than the one that the run saved' eval "$dir/changed" --data "$dir/tokens.bin" --token-type u16
    gives 1 'the graph is another than the one that the run saved' train --resume --steps 9 --out "$dir/changed"
    (echo '# as before' && cat "$dir/again2/latest/graph.tn") >"$dir/changed/latest/graph.tn"
    gives 0 'loss' eval "$dir/changed" --data "$dir/tokens.bin" --token-type u16

    # a constant without elements needs no tensor
    sed 's/^graph lm(/&%z: f32[0] const "z", /; s/^  %h = /  %nothing = clone(%z)\n&/' "$dir/own.tn" >"$dir/none.tn"
    gives 0 'trained 5 steps' train "$dir/none.tn" --inputs "$dir/lm.safetensors" $more --steps 5 --out "$dir/none"
    ok "a constant without elements: the same weights" [ -s "$dir/none/latest/model.safetensors" ]
    gives 0 'loss' eval "$dir/none" --data "$dir/tokens.bin" --token-type u16 --batch-size 2
    cat >"$dir/nothing.tn" <<END
tenon 1
graph nothing(%z: f32[0] const "z", %ids: i64[2, 8] batch, %labels: i64[2, 8] batch) {
  %y = sum(%z)
  return %y
}
END
    sed 's/%ids/%input_ids/' "$dir/nothing.tn" >"$dir/nothing2.tn"
    gives 0 '' run "$dir/nothing2.tn" --inputs "$dir/batch.safetensors" --outputs "$dir/y.safetensors"

    # buffers: a running mean of what is embedded, and a count of steps; a param's own state of another shape
    sed 's/%e: f32/%mean: f32[16] state "norm.mean", %count: i64[] state "count", %r: f32[97] state "wte.rows", &/
        s/  %g = .*/  %m = mean(%h, dim=[0, 1])\n  %half = full(size=[], fill_value=0.5, dtype=f32)\n  %old = mul(%mean, %half)\n  %part = mul(%m, %half)\n  %next = add(%old, %part)\n  %one = full(size=[], fill_value=1.0, dtype=i64)\n  %more = add(%count, %one)\n  %sums = sum(%e, dim=[1])\n  %kept = detach(%sums)\n  %rows = add(%r, %kept)\n  %mid = sub(%h, %m)\n  %g = gelu(%mid)/
        s/return loss %loss/&, new "norm.mean" %next, new "count" %more, new "wte.rows" %rows/' "$dir/next.tn" >"$dir/buffers.tn"
    gives 1 'has no tensor "norm.mean"' train "$dir/buffers.tn" --inputs "$dir/lm.safetensors" $more --steps 1 --out "$dir/no"
    buffers="train $dir/buffers.tn --inputs $dir/buffers.safetensors $more --labels shifted"
    gives 0 'trained 4 steps' $buffers --steps 4 --out "$dir/buffers"
    has() { python3 -c 'import json, struct, sys
with open(sys.argv[1], "rb") as f:
    print(json.loads(f.read(struct.unpack("<Q", f.read(8))[0])).get(sys.argv[2]))' "$dir/$1/latest/$2.safetensors" "$3"; }
    ok "a buffer is among the weights" [ "$(has buffers model norm.mean)" != None ] && ok "so is a count" [ "$(has buffers model count)" != None ]
    ok "a param's state is not" [ "$(has buffers model wte.rows)" = None ] && ok "it is the optimizer's" [ "$(has buffers optimizer wte.rows)" != None ]
    gives 0 'trained 4 steps' $buffers --steps 4 --save-every 2 --out "$dir/buffers2"
    rm -rf "$dir/buffers2/step-4"
    gives 0 'goes on from' train --resume --out "$dir/buffers2"
    gives 0 'trained 4 steps' $buffers --steps 4 --out "$dir/buffers5" --backend emulated --offload state
    for file in model optimizer; do
        ok "buffers beside state on the host: $file" cmp "$dir/buffers/latest/$file.safetensors" "$dir/buffers5/latest/$file.safetensors"
    done
    gives 0 'trained 4 steps' $buffers --steps 4 --mesh dp=2 --out "$dir/buffers3"
    gives 0 'trained 4 steps' $buffers --steps 4 --recompute full --mesh fsdp=2 --shard auto --out "$dir/buffers4"
    for file in model optimizer; do
        ok "buffers of a run that goes on: $file" cmp "$dir/buffers/latest/$file.safetensors" "$dir/buffers2/latest/$file.safetensors"
    done
    for run in buffers3 buffers4; do
        ok "on ranks: a count" [ "$(has $run model count)" != None ] && ok "and rows" [ "$(has $run optimizer wte.rows)" != None ]
    done
    gives 1 'mixes rows with a sum over rows' $buffers --steps 4 --accumulate 2 --out "$dir/no"

    gives 2 'inputs is missing' train "$dir/own.tn" $more --steps 1 --out "$dir/no"
    gives 2 'inputs is for graphs, not for models' train demo --inputs "$dir/lm.safetensors" $more --steps 1 --batch-size 1 --seq-len 4 --out "$dir/no"
    # other data than tokens: said before the weights are looked for
    cat >"$dir/image.tn" <<'END'
tenon 1
graph image(%x: f32[2, 3] batch, %w: f32[3] param "w") {
  %y = mul(%x, %w)
  %loss = mean(%y)  loss
  return loss %loss
}
END
    gives 1 'input %x: expected token ids or labels, i64[B, T], found f32[2, 3]: the data of train are tokens' \
        train "$dir/image.tn" --inputs "$dir/no.safetensors" $more --steps 1 --out "$dir/no"
    gives 1 'expected f32[16, 97], found f32[16, 96]' train "$dir/own.tn" --inputs "$dir/short.safetensors" $more --steps 1 --out "$dir/no"
    gives 1 'has no tensor "wte"' train "$dir/own.tn" --inputs "$dir/batch.safetensors" $more --steps 1 --out "$dir/no"
    sed 's/%ids: i64\[2, 8\] batch/%ids: i64[2, 8]/' "$dir/own.tn" >"$dir/roles.tn"
    gives 1 'role batch' train "$dir/roles.tn" --inputs "$dir/lm.safetensors" $more --steps 1 --out "$dir/no"
    sed 's/return loss %loss/return %loss/' "$dir/own.tn" >"$dir/loss.tn"
    gives 1 "own: no model.safetensors there: of a run name the checkpoint, $dir/own/latest" \
        train "$dir/own.tn" --inputs "$dir/own" $more --steps 1 --out "$dir/no"
    gives 1 'expected an output of role loss' train "$dir/loss.tn" --inputs "$dir/lm.safetensors" $more --steps 1 --out "$dir/no"
    gives 2 'dropout is for models' train "$dir/own.tn" --inputs "$dir/lm.safetensors" $more --dropout 0.1 --steps 1 --out "$dir/no"
    gives 2 'has no logits or text' generate "$dir/own" --prompt a --tokens 2 --tokenizer bytes
    ok "what was refused left nothing" [ ! -e "$dir/no" ]
}
totals
