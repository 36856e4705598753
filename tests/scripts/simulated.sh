#!/bin/sh
# The simulated step from outside: plan --trace, and the queues of plan --html. Usage: tests/scripts/simulated.sh BUILD
. tools/checks.sh

set -- plan demo --batch-size 8 --seq-len 64 --machine h100 --mesh fsdp=2,tp=2

# check FILE PLAN: events that fit into the step of the plan, whose sums are its figures.
check() {
    python3 - "$1" "$2" <<'END'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
plan = json.load(open(sys.argv[2]))
name, spans = {}, {}
for e in events:
    if e["ph"] == "M" and e["name"] == "thread_name":
        name[e["tid"]] = e["args"]["name"]
    elif e["ph"] == "X":
        spans.setdefault(name[e["tid"]], []).append(e)
step = 1e6 * plan["est_step_sec"]
near = lambda x, y: abs(x - y) < 1e-4 * step + 1
for track, list in spans.items():
    end = 0
    for e in sorted(list, key=lambda e: e["ts"]):
        assert e["ts"] >= end - 0.002, (track, e)
        end = e["ts"] + e["dur"]
    assert end <= step + 0.01
total = lambda track: sum(e["dur"] for e in spans.get(track, []))
loops = any(e["name"] == "later iterations" for e in spans["computing"])
if plan["est_comm_sec"] and not loops:
    groups = [g["group"] for g in plan["groups"]]
    assert set(spans) <= {"computing", "exposed", *groups}
    assert near(total("exposed"), 1e6 * plan["est_exposed_sec"])
    computing = sum(plan["sec_by_class"].values()) - plan["est_comm_sec"]
    assert near(total("computing"), 1e6 * computing)
counters = [e for e in events if e["ph"] == "C"]
assert max(e["args"]["bytes"] for e in counters) <= plan["lower_bound_bytes"]
assert max(e["args"]["bytes"] for e in counters) >= 0.9 * plan["lower_bound_bytes"]
assert all(x["ts"] <= y["ts"] for x, y in zip(counters, counters[1:]))
END
}

for more in '' '--overlap off' '--accumulate 2' '--accumulate 8' '--bucket off'; do
    # shellcheck disable=SC2086
    gives 0 '' "$@" $more --json --trace "$dir/trace.json"
    cp "$dir/out" "$dir/plan.json"
    ok "a trace with its figures: $more" check "$dir/trace.json" "$dir/plan.json"
done
gives 0 '' plan demo --batch-size 8 --seq-len 64 --json --trace "$dir/one.json"
cp "$dir/out" "$dir/plan.json"
ok "of one rank" check "$dir/one.json" "$dir/plan.json"
printf 'machine 1\nname slow\nlike avx512_bf16\nnetwork 0.117\n' >"$dir/slow"
# ---- joined calls, or apart ----

# bucket TAKEN: of a plan on that machine, what JSON says of both steps; the plan has that of what was taken.
bucket() {
    python3 - "$dir/out" "$1" <<'END'
import json, sys
o = json.load(open(sys.argv[1]))
b = o["bucket"]
assert b["taken"] == sys.argv[2] and b["apart_sec"] < b["joined_sec"], b
assert o["est_step_sec"] == b["apart_sec" if b["taken"] == "off" else "joined_sec"], o["est_step_sec"]
END
}
slow="plan demo --batch-size 32 --seq-len 256 --mesh fsdp=2 --machine $dir/slow"
gives 0 'bucket: auto takes off: a step takes' $slow
gives 0 '' $slow --json
ok "calls apart where these are faster" bucket off
fast="plan demo --batch-size 32 --seq-len 256 --mesh fsdp=2 --machine h100"
gives 0 'bucket: auto takes block: a step takes' $fast
gives 0 'bucket: auto takes block: nothing runs beside computing' $fast --overlap off
gives 0 '' $fast --bucket block
ok "nothing of a choice that was not left" not grep -q 'bucket: ' "$dir/out"
gives 0 '' plan demo --batch-size 8 --seq-len 32 --mesh fsdp=8 --machine h100 --bucket block
ok "no note where apart ones cannot be faster, and were not planned" [ ! -s "$dir/err" ]
gives 0 '' $slow --bucket block --json
ok "joined calls that were asked for" bucket block
ok "joined calls that take longer than apart: a note" grep -q 'note: by --bucket block a step takes' "$dir/err"
gives 0 '' $slow --bucket off --json
ok "no note of apart ones" [ ! -s "$dir/err" ]
ok "nor is there a choice" not grep -q '"bucket": {' "$dir/out"

# A run goes on with what was chosen for it. It is priced by this processor, as it could not run by another's kernels.
here=$("$tenon" plan demo --batch-size 1 --seq-len 8 --machine none | sed -n 's/^  estimate .*(\([a-z0-9_]*\), .*/\1/p')
sed "s/^like .*/like $here/" "$dir/slow" >"$dir/here"
seq 2000 >"$dir/text.txt"
gives 0 '' train demo --data "$dir/text.txt" --token-type byte --batch-size 4 --seq-len 32 --mesh fsdp=2 --threads 1 \
    --machine "$dir/here" --steps 1 --val-fraction 0 --out "$dir/run"
ok "a checkpoint says what" grep -qF '"decided": "bucket block\n"' "$dir/run/latest/state.json"
gives 0 '' train --resume --out "$dir/run" --steps 2
sed -i '/"crc32c"/d; s/bucket block/bucket off/' "$dir/run/latest/state.json"
gives 1 'the plan is another than the run' train --resume --out "$dir/run" --steps 3
gives 0 '' train --resume --out "$dir/run" --steps 3 --retune
ok "and chooses anew with --retune" grep -qF '"decided": "bucket block\n"' "$dir/run/latest/state.json"

gives 0 '' "$@" --trace -
ok "on standard output" python3 -m json.tool "$dir/out" /dev/null
ok "the plan then goes to standard error" grep -q 'step bound' "$dir/err"
gives 0 '' "$@" --json
ok "exposed by class adds up" python3 - "$dir/out" <<'END'
import json, sys
o = json.load(open(sys.argv[1]))
assert abs(sum(c["exposed_sec"] for c in o["collectives"]) - o["est_exposed_sec"]) < 1e-9
assert all(c["exposed_sec"] >= 0 for c in o["collectives"])
assert 0 < o["bound_sec"] <= o["est_step_sec"] * 1.000001
END

# ---- offload: copies have tracks of their own ----

gives 0 '' plan demo --batch-size 8 --seq-len 64 --backend emulated --offload '*.mlp.up_proj::mm' --trace "$dir/away.json"
ok "copies" python3 - "$dir/away.json" <<'END'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
name = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
used = {name[e["tid"]] for e in events if e["ph"] == "X"}
assert used == {"computing", "copies out", "copies in"}
END

# ---- the page ----

gives 0 '' "$@" --html "$dir/page.html"
ok "a section" grep -q '<h2>Queues over time</h2>' "$dir/page.html"
ok "a picture with lanes, exposed time and memory" awk '/<svg class="queues" id="a-queues"/ { on = 1 }
    on && /class="(busy|sending|exposed|memory)"/ { match($0, /class="[a-z]*"/); seen[substr($0, RSTART, RLENGTH)] }
    /<\/svg>/ { on = 0 } END { for (c in seen) n++; exit n != 4 }' "$dir/page.html"
gives 0 '' plan demo --batch-size 8 --seq-len 64 --html "$dir/one.html"
ok "one queue has no such picture" not grep -q 'Queues over time' "$dir/one.html"

# ---- what is refused ----

gives 1 "$dir/none/t.json: cannot create" "$@" --trace "$dir/none/t.json"
gives 2 'exclude each other' "$@" --json --trace -
gives 2 'exclude each other' "$@" --html - --trace -
gives 2 'is not for --pareto' "$@" --pareto --trace "$dir/t.json"
gives 2 'is for one plan' "$@" --compare '' '' --trace "$dir/t.json"
gives 2 '--trace is not for one side' "$@" --compare '--trace x' ''
gives 2 'is not for --mesh auto' plan demo --batch-size 4 --seq-len 16 --ranks 2 --mesh auto --trace "$dir/t.json"
totals
