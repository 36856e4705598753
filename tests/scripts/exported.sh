#!/bin/sh
# Programs of torch.export.save and lists of nodes, as `import fx` reads them. tests/fx_saved has one small model:
# open.json, its models/NAME.json with the number of rows left open, by PyTorch 2.15, without stack traces; nodes.txt,
# str(program.graph) of the same with 2 rows; inputs.safetensors, by the module's names. Usage: exported.sh BUILD
. tools/checks.sh

saved=tests/fx_saved
cat >"$dir/zip.py" <<'END'
import sys
import zipfile

path, method, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
with zipfile.ZipFile(path, "w", method) as z:
    z.writestr("m/data/weights/weight_0", b"\0" * 64)
    for name in names:
        z.write("tests/fx_saved/open.json", name)
    z.writestr("m/archive_version", "0")
END
zip() {
    python3 "$dir/zip.py" "$@"
}
zip "$dir/m.pt2" 0 m/models/model.json
set -- --params signature --loss cross_entropy_loss --shapes 'ids=i64[2,4]'
gives 0 'inputs 2 batch 3 param 2 const' import fx "$dir/m.pt2" "$@" -o "$dir/m.tn"
gives 0 'outputs 1 1 loss' import fx $saved/open.json "$@" -o "$dir/json.tn"
ok "the archive is its JSON" cmp -s "$dir/m.tn" "$dir/json.tn"
ok "scopes" grep -q '@"lin"' "$dir/m.tn"
ok "names of the module" grep -q '%p_lin_bias: f32\[11\] param "lin.bias"' "$dir/m.tn"
gives 0 '' run "$dir/m.tn" --inputs $saved/inputs.safetensors
ok "PyTorch's loss, 3.2168360" awk '{ d = $2 - 3.21683598; exit !(d < 1e-6 && d > -1e-6) }' "$dir/out"
gives 0 'f32[24, 11] = _log_softmax' import fx "$dir/m.pt2" --shapes 'ids=i64[6,4]' -o -
gives 1 "--shapes binds it" import fx "$dir/m.pt2" -o -

# The list has neither types nor scopes nor a signature.
shapes='p_emb_weight=f32[11,8], p_lin_weight=f32[11,8], p_lin_bias=f32[11], b_scale=f32[], c_c=f32[8], ids=i64[2,4]'
gives 1 'nodes.txt:2:1: input "p_emb_weight" has no type' import fx $saved/nodes.txt -o -
ok "all names that need a type" grep -q 'missing: p_emb_weight, p_lin_weight, p_lin_bias, b_scale, c_c, ids, labels' "$dir/err"
gives 0 '' import fx $saved/nodes.txt --shapes "$shapes, labels=i64[2,4]" -o "$dir/nodes.tn"
gives 0 '' import fx $saved/open.json --shapes 'ids=i64[2,4]' -o "$dir/plain.tn"
ok "the list is the same graph" [ "$(sed 's/ *@"[^"]*"//; s/  */ /g' "$dir/nodes.tn")" = \
    "$(sed 's/ *@"[^"]*"//; s/  */ /g' "$dir/plain.tn")" ]
gives 2 'nodes.txt has none' import fx $saved/nodes.txt --params signature --shapes "$shapes, labels=i64[2,4]" -o -
sed 's/gelu.default/no_such.default/' $saved/nodes.txt >"$dir/bad.txt"
gives 1 "bad.txt:$(grep -n no_such "$dir/bad.txt" | cut -d: -f1):" import fx "$dir/bad.txt" --shapes "$shapes, labels=i64[2,4]" -o -
sed 's/(%linear, \[-1, 11\])/(%linear, [-1, 11)/' $saved/nodes.txt >"$dir/bad.txt"
gives 1 'a list of nodes: expected' import fx "$dir/bad.txt" --shapes "$shapes, labels=i64[2,4]" -o -

# Damaged ones.
zip "$dir/bad.pt2" 8 m/models/model.json
gives 1 'expected members that are stored, found a compressed one' import fx "$dir/bad.pt2" "$@" -o -
zip "$dir/bad.pt2" 0 m/models/a.json m/models/b.json
gives 1 'expected one graph in models/, found several' import fx "$dir/bad.pt2" "$@" -o -
zip "$dir/bad.pt2" 0 m/other.json
gives 1 'expected models/NAME.json' import fx "$dir/bad.pt2" "$@" -o -
for bytes in 5 3000 13000; do
    head -c $bytes "$dir/m.pt2" >"$dir/bad.pt2"
    gives 1 'the end of a zip archive' import fx "$dir/bad.pt2" "$@" -o -
done
head -c 3000 $saved/open.json >"$dir/bad.json"
gives 1 'bad.json: JSON, line' import fx "$dir/bad.json" "$@" -o -
sed 's/"lin.bias"/"lin; bias"/' $saved/open.json >"$dir/bad.json"
gives 1 'expected a name, found lin; bias' import fx "$dir/bad.json" "$@" -o -
sed 's/Mul(Integer(4)/Mod(Integer(4)/' $saved/open.json >"$dir/bad.json"
gives 1 'found Mod' import fx "$dir/bad.json" "$@" -o -

# The archive has the weights and constants too.
cat >"$dir/weights.py" <<'END'
import json
import struct
import sys
import zipfile

NUMBER = {"F32": 7, "I64": 5}
out, damage = sys.argv[1], sys.argv[2]
if damage == "large":  # as an archive beyond 4 GiB is written
    zipfile.ZIP64_LIMIT = 100
data = open("tests/fx_saved/inputs.safetensors", "rb").read()
n = struct.unpack("<Q", data[:8])[0]
members, config = {}, {"weights": {}, "constants": {}}
for i, (name, x) in enumerate(json.loads(data[8:8 + n]).items()):
    if name in ("ids", "labels"):
        continue
    begin, end = x["data_offsets"]
    kind = "constants" if name == "c" else "weights"
    path = f"{kind}_{i}"
    members[f"m/data/{kind}/{path}"] = b"\0" * 8 + data[8 + n + begin:8 + n + end]
    strides = [1]
    for size in reversed(x["shape"][1:]):
        strides.insert(0, strides[0] * size)
    config[kind][name] = {"path_name": path, "use_pickle": damage == "pickle", "tensor_meta": {
        "dtype": 9 if damage == "dtype" else NUMBER[x["dtype"]], "sizes": [{"as_int": s} for s in x["shape"]],
        "strides": [{"as_int": s + (damage == "strides")} for s in strides[:len(x["shape"])]],
        "storage_offset": {"as_int": 3 if damage == "short" else 2}, "layout": 7}}
if damage == "tied":
    config["weights"]["lin.weight"] = config["weights"]["emb.weight"]
with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
    for name, bytes_ in members.items():
        z.writestr(name, bytes_)
    for kind in config:
        z.writestr(f"m/data/{kind}/model_{kind}_config.json", json.dumps({"config": config[kind]}))
    z.write("tests/fx_saved/open.json", "m/models/model.json")
if damage == "bit":
    whole = bytearray(open(out, "rb").read())
    whole[z.getinfo(next(iter(members))).header_offset + 70] ^= 1
    open(out, "wb").write(whole)
END
python3 "$dir/weights.py" "$dir/whole.pt2" none
# Two names of one tensor are one parameter, which has one gradient; names of two with equal bytes are not.
python3 "$dir/weights.py" "$dir/tied.pt2" tied
gives 0 'tied: lin.weight is emb.weight' import fx "$dir/tied.pt2" "$@" -o "$dir/tied.tn"
gives 0 'inputs 2 batch 2 param 2 const' import fx "$dir/tied.pt2" "$@" -o "$dir/tied.tn"
ok "both names" grep -q '%p_emb_weight: f32\[11, 8\] param "emb.weight" "lin.weight",' "$dir/tied.tn"
ok "and one input" [ "$(grep -c '%p_lin_weight' "$dir/tied.tn")" = 0 ]
gives 0 'grad "emb.weight"' opt "$dir/tied.tn" --passes=grad
ok "no gradient of the other" [ "$(grep -c 'grad "lin.weight"' "$dir/out")" = 0 ]
gives 0 'inputs 2 batch 3 param 2 const' import fx "$dir/whole.pt2" "$@" -o "$dir/apart.tn"
# torch.export writes such a call before each cast; it has no result.
cat >"$dir/assert.py" <<'END'
import json
import sys

program = json.load(open("tests/fx_saved/open.json"))
nodes = program["graph_module"]["graph"]["nodes"]
place, name = next((i + 1, o["as_tensor"]["name"]) for i, n in enumerate(nodes) for o in n["outputs"] if "as_tensor" in o)
nodes.insert(place, {"target": "torch.ops.aten._assert_tensor_metadata.default", "outputs": [], "metadata": {}, "inputs": [
    {"name": "a", "arg": {"as_tensor": {"name": name}}, "kind": 1},
    {"name": "layout", "arg": {"as_layout": 7}, "kind": 2}]})
json.dump(program, open(sys.argv[1], "w"))
END
python3 "$dir/assert.py" "$dir/assert.json"
gives 0 '' import fx "$dir/assert.json" "$@" -o "$dir/assert.tn"
gives 0 '' import fx tests/fx_saved/open.json "$@" -o "$dir/open.tn"
ok "a call without a result" cmp "$dir/assert.tn" "$dir/open.tn"
gives 0 '' import fx "$dir/whole.pt2" "$@" -o "$dir/whole.tn"
cat >"$dir/batch.py" <<'END'
import json
import struct
import sys

values = struct.pack("<16q", *range(3, 11), *range(2, 10))
header = json.dumps({name: {"dtype": "I64", "shape": [2, 4], "data_offsets": [at, at + 64]}
                     for name, at in (("input_ids", 0), ("labels", 64))}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + values)
END
python3 "$dir/batch.py" "$dir/batch.safetensors"
sed -i 's/%ids/%input_ids/g' "$dir/whole.tn"
for from in "$dir/whole.pt2" $saved/inputs.safetensors; do
    gives 0 '' train "$dir/whole.tn" --inputs "$from" --batch "$dir/batch.safetensors" --labels shifted --steps 2 --out "$dir/run" --overwrite
    mv "$dir/run/step-2/model.safetensors" "$dir/${from##*/}.trained"
done
python3 "$dir/weights.py" "$dir/large.pt2" large
gives 0 '' train "$dir/whole.tn" --inputs "$dir/large.pt2" --batch "$dir/batch.safetensors" --labels shifted --steps 2 --out "$dir/run" --overwrite
ok "an archive of zip64" cmp -s "$dir/run/step-2/model.safetensors" "$dir/whole.pt2.trained"
ok "trained from the archive's weights" cmp -s "$dir/whole.pt2.trained" "$dir/inputs.safetensors.trained"
for case in 'bit:the checksum' 'pickle:what PyTorch pickled' 'dtype:number 9' 'strides:row-major' 'short:expected f32'; do
    python3 "$dir/weights.py" "$dir/bad.pt2" "${case%%:*}"
    gives 1 "${case#*:}" train "$dir/whole.tn" --inputs "$dir/bad.pt2" --batch "$dir/batch.safetensors" --labels shifted --steps 2 --out "$dir/no"
done
gives 1 'expected a program of torch.export.save' train "$dir/whole.tn" --inputs "$dir/m.pt2" --batch "$dir/batch.safetensors" --labels shifted --steps 2 --out "$dir/no"
python3 - "$dir/m.pt2" "$dir/bad.pt2" <<'END'
import sys
import zipfile

data = bytearray(open(sys.argv[1], "rb").read())
data[zipfile.ZipFile(sys.argv[1]).getinfo("m/models/model.json").header_offset + 1000] ^= 1
open(sys.argv[2], "wb").write(data)
END
gives 1 'm/models/model.json with the checksum' import fx "$dir/bad.pt2" "$@" -o -

# Messages name the node, and the user's line where the program has one, instead of a line of code that nobody sees.
sed 's/aten.gelu.default/aten.no_such.default/' $saved/open.json >"$dir/bad.json"
gives 1 'bad.json: node gelu: unknown op' import fx "$dir/bad.json" "$@" -o -
python3 - "$dir/bad.json" "$dir/traced.json" <<'END'
import json
import sys

program = json.load(open(sys.argv[1]))
for node in program["graph_module"]["graph"]["nodes"]:
    node["metadata"]["stack_trace"] = (f'  File "/home/u/model.py", line 12, in forward\n    y = {node["name"]}\n'
                                       '  File "/lib/torch/nn/f.py", line 9, in f\n')
json.dump(program, open(sys.argv[2], "w"))
END
gives 1 'traced.json: node gelu (/home/u/model.py:12): unknown op' import fx "$dir/traced.json" "$@" -o -
gives 1 'traced.json: input ids: sizes must be numbers' import fx "$dir/traced.json" -o -
gives 1 'traced.json: node gelu (/home/u/model.py:12): torch.ops.aten.no_such.default, 1 time' import fx "$dir/traced.json" \
    --list-unknown
sed 's/"as_string"/"as_odd"/' $saved/open.json >"$dir/bad.json"
gives 1 'an exported program: node gelu: expected an argument' import fx "$dir/bad.json" -o -

# A gradient inside of the traced function: what autograd saved is a constant of a trace made before dispatch, and detached
# in older ones. Both are refused where they would be wrong.
cat >"$dir/penalty.txt" <<'END'
def forward(self, w: "f32[4]", x: "f32[4]"):
    mul = torch.ops.aten.mul.Tensor(x, w)
    exp = torch.ops.aten.exp.default(mul)
    sum_1 = torch.ops.aten.sum.default(exp)
    ones_like = torch.ops.aten.ones_like.default(sum_1)
    expand = torch.ops.aten.expand.default(ones_like, [4])
    saved = SAVED
    mul_1 = torch.ops.aten.mul.Tensor(expand, saved)
    mul_2 = torch.ops.aten.mul.Tensor(mul_1, w)
    pow_1 = torch.ops.aten.pow.Tensor_Scalar(mul_2, 2)
    mean = torch.ops.aten.mean.default(pow_1)
    return mean
END
penalty() { # with what autograd saved
    sed "s/SAVED/$1/" "$dir/penalty.txt" >"$dir/saved.txt"
}
penalty self._tensor_constant0
gives 1 'saved.txt:8:5: a gradient reads the constant self._tensor_constant0' import fx "$dir/saved.txt" \
    --shapes '_tensor_constant0=f32[4]' --loss mean --params w -o -
gives 1 'reads the constant' import fx "$dir/saved.txt" --shapes '_tensor_constant0=f32[4]' -o -
gives 0 'all is forward' import fx "$dir/saved.txt" --shapes '_tensor_constant0=f32[1]' --loss mean --params w -o "$dir/s.tn"
penalty 'torch.ops.aten.detach.default(exp)'
gives 1 'saved.txt:8:5: a gradient inside of the forward reads %saved' import fx "$dir/saved.txt" --loss mean --params w -o -
penalty 'torch.ops.aten.alias.default(exp)'
gives 0 'gradient unknown' import fx "$dir/saved.txt" --loss mean --params w -o "$dir/s.tn"
gives 1 'whether a gradient passes is not known' opt "$dir/s.tn" --passes=grad
penalty 'torch.ops.aten.mul.Tensor(exp, 1)'
gives 0 'all is forward' import fx "$dir/saved.txt" --loss mean --params w -o "$dir/s.tn"
gives 0 'grad "w" %dw' opt "$dir/s.tn" --passes=grad

# Modules that a call runs for elements, or on parts.
cat >"$dir/flex.txt" <<'END'
def forward(self, q: "f32[1, 2, 8, 4]"):
    score = self.score
    mask = self.mask
    CALL
    return y

class score(torch.nn.Module):
    def forward(self, a: "f32[]", b: "i32[]", h: "i32[]", m: "i32[]", n: "i32[]"):
        return a

class mask(torch.nn.Module):
    def forward(self, b: "i32[]", h: "i32[]", m: "i32[]", n: "i32[]"):
        ge = torch.ops.aten.ge.Tensor(m, n)
        return ge
END
sed 's/CALL/y = torch.ops.higher_order.flex_attention(q, q, q, score, (8, 8, mask), 0.5)[0]/' "$dir/flex.txt" >"$dir/g.txt"
gives 0 '%y.transpose_1, scale=0.5)' import fx "$dir/g.txt" -o -
sed '/^class/,$d' "$dir/g.txt" >"$dir/f.txt"
gives 1 'f.txt:4:9: unknown op torch.ops.higher_order.flex_attention, flex_attention, whose scores and masks are modules: expected their code' \
    import fx "$dir/f.txt" -o -
sed 's/ge = .*/ge = torch.ops.aten.cumsum.default(m, 0)/' "$dir/g.txt" >"$dir/f.txt"
gives 1 'found torch.ops.aten.cumsum.default at line 13' import fx "$dir/f.txt" -o -
sed 's/ge = .*/ge: "b8[1]" = torch.ops.aten.unsqueeze.default(m, 0)/' "$dir/g.txt" >"$dir/f.txt"
gives 1 'found torch.ops.aten.unsqueeze.default at line 13' import fx "$dir/f.txt" -o -
sed 's/forward(self, b: "i32\[\]", h/forward(self, h/' "$dir/g.txt" >"$dir/f.txt"
gives 1 'module mask: expected 3 arguments, found 4' import fx "$dir/f.txt" -o -
sed 's/flex_attention(/flex_attention_backward(/' "$dir/g.txt" >"$dir/f.txt"
gives 1 'f.txt:4:5: the gradient of flex_attention: expected a forward' import fx "$dir/f.txt" -o -
cat >"$dir/local.txt" <<'END'
def forward(self, x: "f32[4, 8]"):
    body = self.body
    y = torch.ops.higher_order.local_map_hop(body, x)
    z = y[0]
    return z

class body(torch.nn.Module):
    def forward(self, part: "f32[4, 8]"):
        mul = torch.ops.aten.mul.Tensor(part, 2)
        return (mul,)
END
gives 0 'mul(%x, %' import fx "$dir/local.txt" -o -
sed 's/part: "f32\[4, 8\]"/part: "f32[2, 8]"/' "$dir/local.txt" >"$dir/f.txt"
gives 1 'part is annotated f32[2, 8], found f32[4, 8]' import fx "$dir/f.txt" -o -
sed '/^class/,$d' "$dir/local.txt" >"$dir/f.txt"
gives 1 "local_map, a module that runs on each rank's own part of its arguments: expected its code" import fx "$dir/f.txt" -o -
totals
