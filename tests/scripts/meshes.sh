#!/bin/sh
# tenon plan --mesh auto from outside: the ten fastest meshes, as text and JSON; what fits; what is refused; and train
# --mesh auto, with one rank and with two.
# Usage: tests/scripts/meshes.sh BUILD
. tools/checks.sh
. tools/launch.sh

set -- plan demo --batch-size 4 --seq-len 16 --machine h100 --recompute selective

# ---- what is found ----

gives 0 'settings: 9; planned' "$@" --ranks 4 --mesh auto
ok "meshes by seconds" awk '/^(dp|fsdp|tp)/ { if ($5 < last) exit 1; last = $5; n++ } END { exit n != 8 }' "$dir/out"
ok "no step is faster than its bound" awk '/^(dp|fsdp|tp)/ && $6 > 1.000001 * $5 { bad = 1 } END { exit bad }' "$dir/out"
ok "a mesh that the model does not allow, with the reason" grep -q '^    1: 4 ranks share the heads' "$dir/out"
ok "nothing of a limit, as there is none" not grep -q 'limit\|their memory' "$dir/out"
ok "whether calls are joined" [ "$(awk '/^(dp|fsdp|tp)/ { print $11 }' "$dir/out" | sort -u)" = block ]
ok "nothing of --recompute auto, as another was asked for" not grep -q 'recompute auto' "$dir/out"
ok "a quick search tells no progress" [ ! -s "$dir/err" ]
gives 0 '"meshes": [' "$@" --ranks 4 --mesh auto --json
ok "JSON" python3 - "$dir/out" <<'END'
import json, sys
o = json.load(open(sys.argv[1]))
assert len(o["meshes"]) == 8 and o["settings"] == 9 and o["refused"] == 1
assert o["planned"] == 8 and o["slower_by_bound"] == o["larger_by_bound"] == 0
assert o["fits_with_all_saved"] == o["slower_by_estimate"] == 0
for m in o["meshes"]:
    assert m["bound_sec"] <= m["est_step_sec"] * 1.000001 and m["peak_bytes"] < m["need_bytes"]
    assert m["recompute"] == "selective" and m["reshard"] in ("always", "never", "auto")
END
if [ -n "$TN_LONG" ]; then
    gives 0 '' plan demo --batch-size 16 --seq-len 16 --machine h100 --recompute selective --ranks 8 --mesh auto
    ok "reasons that differ in numbers are one" [ "$(grep -c 'ranks share the heads.*other numbers' "$dir/out")" = 1 ]
fi
printf 'machine 1\nname slow\nlike avx512_bf16\nnetwork 0.117\n' >"$dir/slow"
gives 0 'recompute auto: not tried, as without --memory it is none' plan demo --batch-size 32 --seq-len 256 --ranks 2 --mesh auto --machine "$dir/slow"
ok "the mesh's calls are apart where these are faster, as plan takes them" grep -Eq '^fsdp=2 .* always .* off$' "$dir/out"
gives 0 '' "$@" --ranks 1 --mesh auto
ok "one rank" grep -q '^none  *recipes  *auto  *selective' "$dir/out"
gives 0 '' "$@" --ranks 2 --mesh auto --reshard never
ok "what was asked for" not grep -q always "$dir/out"

# the figures are those of the plan itself
fastest=$(awk 'NR == 2 { print $1, $3, $5, $9 }' "$dir/out")
mesh=${fastest%% *}
gives 0 '' "$@" --mesh "$mesh" --reshard never --json
ok "the plan of the fastest: $fastest" python3 - "$dir/out" "$fastest" <<'END'
import json, sys
o = json.load(open(sys.argv[1]))
sec, peak = sys.argv[2].split()[2:]
assert "%.6g" % o["est_step_sec"] == sec and str(o["peak_bytes"]) == peak
END

# as many threads as a rank has, whichever thread of the search plans it
python3 -c 'import os; print("machine 1\nname many\nlike avx512_bf16\nnetwork 1.25\nthreads %d" % (3 * os.cpu_count()))' >"$dir/many"
many="--threads $(sed -n 's/threads //p' "$dir/many") --machine $dir/many"
gives 0 '' plan demo --batch-size 8 --seq-len 32 --ranks 4 --mesh auto --reshard never --recompute none $many --json
cp "$dir/out" "$dir/meshes"
for mesh in dp=4 fsdp=4 dp=2,tp=2; do
    gives 0 '' plan demo --batch-size 8 --seq-len 32 --mesh $mesh --reshard never --recompute none $many --json
    ok "threads: the row of $mesh is its plan" python3 - "$dir/meshes" "$dir/out" $mesh <<'END'
import json, sys
rows = [m for m in json.load(open(sys.argv[1]))["meshes"] if m["mesh"] == sys.argv[3]]
p = json.load(open(sys.argv[2]))
assert [(m["peak_bytes"], m["need_bytes"]) for m in rows] == [
    (p["peak_bytes"], p["peak_bytes"] + p["library_reserve_bytes"])], (rows, p["peak_bytes"], p["library_reserve_bytes"])
END
done

gives 0 '' "$@" --ranks 4 --mesh auto --shard auto --json
ok "forms that are solved for: no row twice, and whose forms were taken" python3 - "$dir/out" <<'END'
import json, sys
o = json.load(open(sys.argv[1]))
rows = [(m["mesh"], m["recompute"], m["est_step_sec"], m["est_exposed_sec"], m["peak_bytes"]) for m in o["meshes"]]
assert len(set(rows)) == len(rows) > 4
assert {m["forms"] for m in o["meshes"]} == {"recipes", "solved"}
END
gives 0 '' plan demo --batch-size 4 --seq-len 16 --mesh fsdp=4 --recompute none --json
limit=$(sed -n 's/^ "library_reserve_bytes": \([0-9]*\),/\1/p' "$dir/out")
gives 0 'fits with all saved: ' plan demo --batch-size 4 --seq-len 16 --machine h100 --ranks 4 --mesh auto --memory $((limit + 8000000))
ok "what is chosen is not asked where all fits" not grep -q '^fsdp=4 .* auto  *[0-9.]* ' "$dir/out"

# ---- what is refused ----

gives 3 'does not fit: none of 9 settings needs at most 1.00MB' "$@" --ranks 4 --mesh auto --memory 1MB
gives 2 '--ranks is missing' "$@" --mesh auto
gives 2 '--ranks means nothing without --mesh auto' "$@" --ranks 4
gives 2 '' "$@" --ranks 0 --mesh auto
gives 2 'exclude each other' "$@" --ranks 4 --mesh auto --accumulate auto
gives 2 'is not for --mesh auto' "$@" --ranks 4 --mesh auto --explain
gives 2 'is not for --mesh auto' "$@" --ranks 4 --mesh auto --pareto
gives 2 'for models, not for graphs' plan tests/ir/flat.tn --passes spmd --ranks 4 --mesh auto
gives 2 'settings); no mesh can run it' "$@" --ranks 4 --mesh auto --shard 'nothing=0:tp'
ok "a reason is told once, whatever the mesh's name" [ "$(grep -o 'has no axis' "$dir/err" | wc -l)" = 1 ]
gives 2 'share the 4 rows of a microbatch: some would compute padding alone' "$@" --ranks 16 --mesh auto
gives 0 'share the 2 rows of a microbatch' "$@" --ranks 4 --mesh auto --accumulate 2
gives 2 'tenon: machine: expected one of' "$@" --ranks 4 --mesh auto --machine nonsense
gives 1 'no such folder' plan nobody --batch-size 4 --seq-len 16 --ranks 4 --mesh auto

# ---- training ----

for i in $(seq 300); do echo "line $i of a text to be learned"; done >"$dir/text.txt"
set -- train demo --data "$dir/text.txt" --batch-size 4 --seq-len 16 --mesh auto --steps
gives 0 'takes none --reshard auto --recompute none' "$@" 1 --out "$dir/one"
ok "one rank has no mesh" grep -q '"mesh": null' "$dir/one/step-1/state.json"
few=q # the first
[ -z "$TN_LONG" ] || few=
for mpi in $(mpis | sed "$few"); do
    mpirun.$mpi -n 2 "$tenon" "$@" 2 --out "$dir/$mpi" >"$dir/out" 2>"$dir/err"
    ok "$mpi: two ranks" grep -Eq 'takes (dp|fsdp|tp)=2 --reshard (auto|always|never) --recompute none' "$dir/err"
    # each has its share of the cores, as when the mesh was chosen
    ok "$mpi: the step's seconds are those of the choice: $(grep -h 'takes\|^  estimate' "$dir/err" "$dir/out")" \
        python3 - "$dir/err" "$dir/out" <<'END'
import re, sys
text = open(sys.argv[1]).read() + open(sys.argv[2]).read()
chosen = float(re.search(r"takes .*: (\S+) s a step", text)[1])
sec, unit = re.search(r"^  estimate +(\S+) (\S+) a step", text, re.M).groups()
assert abs(float(sec) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit] / chosen - 1) < 1e-3
END
    ok "$mpi: two steps" [ -e "$dir/$mpi/step-2/state.json" ]
    mpirun.$mpi -n 2 "$tenon" "$@" 3 --out "$dir/$mpi" --resume >"$dir/out" 2>"$dir/err"
    ok "$mpi: resumed on the same mesh" not grep -q 'takes .* --reshard' "$dir/err"
    grep -E '"(mesh|reshard|recompute)":' "$dir/$mpi/step-2/state.json" >"$dir/before"
    grep -E '"(mesh|reshard|recompute)":' "$dir/$mpi/step-3/state.json" >"$dir/after"
    ok "$mpi: with the same words" cmp "$dir/before" "$dir/after"
    [ -n "$TN_LONG" ] || continue
    mpirun.$mpi -n 2 "$tenon" train demo --data "$dir/text.txt" --batch-size 4 --seq-len 16 --val-fraction 0 --mesh fsdp=2 \
        --memory 1 --steps 1 --out "$dir/least" >"$dir/out" 2>"$dir/err"
    least=$(sed -n 's/.*the least that would do is \([0-9]*\).*/\1/p' "$dir/err")
    mpirun.$mpi -n 2 "$tenon" "$@" 1 --val-fraction 0 --memory "$least" --out "$dir/$mpi.least" >"$dir/out" 2>"$dir/err"
    ok "$mpi: within the least of a mesh, $least: $(cat "$dir/err")" [ -e "$dir/$mpi.least/step-1/state.json" ]
done
cat "$dir/skipped"

# ---- on another mesh ----

set -- train demo --data "$dir/text.txt" --batch-size 4 --seq-len 16 --val-fraction 0 --steps
gives 0 '' "$@" 1 --memory 100MiB --recompute none --out "$dir/one.wide"
gives 0 '' train --resume --out "$dir/one.wide" --steps 2 --mesh dp=2 --memory 200MiB
ok "other ranks have a limit of their own" grep -q '"memory": 209715200' "$dir/one.wide/step-2/state.json"
if [ -n "$TN_LONG" ]; then # a refusal looks for the least
    gives 0 '' "$@" 1 --memory 100MiB --out "$dir/wide"
    gives 3 'the least that would do is ' "$@" 1 --memory 1 --mesh dp=2 --out "$dir/least"
    least=$(sed -n 's/.*the least that would do is \([0-9]*\).*/\1/p' "$dir/err")
    ok "the run goes on within $least on two ranks, with what these decide" \
        "$tenon" train --resume --out "$dir/wide" --steps 2 --mesh dp=2 --memory "$least" >/dev/null 2>"$dir/err"
    ok "for that limit" grep -q "\"memory\": $least" "$dir/wide/step-2/state.json"
fi
gives 0 '' "$@" 1 --mesh fsdp=2 --threads 1 --out "$dir/two"
for words in '--overlap off' '--bucket off'; do
    cp -r "$dir/two" "$dir/again"
    gives 0 'trained 2 steps' train --resume --out "$dir/again" --steps 2 $words
    rm -r "$dir/again"
done
for words in '--mesh none' '--backend cpu'; do # a run whose GPUs talked by NCCL goes on without any
    cp -r "$dir/two" "$dir/again"
    sed -i '/"crc32c"/d; s/"gpu-comm": "[a-z]*"/"gpu-comm": "nccl"/' "$dir/again/latest/state.json"
    gives 0 'trained 2 steps' train --resume --out "$dir/again" --steps 2 $words
    rm -r "$dir/again"
done
gives 0 'warning: --resume: --overlap chunked: bits may differ' train --resume --out "$dir/two" --steps 2 --overlap chunked
if [ -n "$TN_LONG" ]; then
    gives 3 'the least that would do is ' "$@" 1 --memory 1 --mesh fsdp=2 --threads 1 --out "$dir/least"
    least=$(sed -n 's/.*the least that would do is \([0-9]*\).*/\1/p' "$dir/err")
    gives 0 'computes ' "$@" 1 --mesh fsdp=2 --threads 1 --memory "$least" --out "$dir/tight"
    before=$(sed -n 's/.*computes \([0-9]*\) values\{0,1\} again.*/\1/p' "$dir/err")
    gives 0 ": auto computes $before value" train --resume --out "$dir/tight" --steps 2
fi

# All ranks share what is free.
gives 0 'tenon: note: --memory auto: ' plan tests/ref/gpt2-tiny --batch-size 4 --seq-len 16 --mesh auto --ranks 2 --memory auto
totals
