#!/bin/sh
# tenon opt, show and check on the graphs of tests/pass: opt prints what the library's pass gives (or fails
# with the code that the file states), show prints what it reads, simplified graphs check as equal, and one
# with another constant does not. Usage: tests/scripts/opt.sh BUILD
. tools/checks.sh

# said FILE KEY: what the file's comment "# KEY: ..." says.
said() {
    sed -n "s/^# $2: //p" "$1" | head -1
}

for file in tests/pass/*/*.tn; do
    passes=$(said "$file" passes)
    folder=${file%/*}
    options=$(said "$file" options | sed 's/\(^\| \)\([^ =]*\)=/\1--\2=/g; :again; s/\(--[a-z-]*\)_/\1-/; t again')
    case $options in
    *--adapters=*)
        echo "note: $file: opt has no option for adapters, which are a model's; test_pass runs it"
        continue
        ;;
    esac
    sed '/^---$/,$d' "$file" >"$dir/in.tn"
    # What made a step is left out by the library, and refused on the command line.
    case $file in
    */compiled/*) kept=$(echo "$options" | sed 's/--\(clip\|dtype\)=[^ ]*//g') ;;
    *) kept=$options ;;
    esac
    # shellcheck disable=SC2086
    [ "$kept" = "$options" ] || gives 2 'changes nothing without the pass' opt "$dir/in.tn" --passes=compiled $options
    options=$kept
    # shellcheck disable=SC2086
    "$tenon" opt "$dir/in.tn" --passes="${passes:-${folder##*/}}" $options -o "$dir/out.tn" 2>"$dir/err"
    code=$?
    if [ -n "$(said "$file" error)" ]; then
        want=$(said "$file" code)
        [ $code = "${want:-1}" ]
        ok "$file: expected exit code ${want:-1}, found $code"
        grep -q '^tenon: ' "$dir/err"
        ok "$file: expected a message"
        continue
    fi
    [ $code = 0 ]
    ok "$file: opt: exit code $code"
    if grep -q '^---$' "$file"; then
        sed '1,/^---$/d' "$file" | cmp -s - "$dir/out.tn"
        ok "$file: opt printed something else"
    fi
    "$tenon" show - <"$dir/out.tn" 2>"$dir/err" | cmp -s - "$dir/out.tn"
    ok "$file: show does not print what it read"
    case $folder in
    */canonicalize | */cse | */dce | */loops)
        said=$("$tenon" check "$dir/in.tn" "$dir/out.tn" 2>"$dir/err")
        if grep -q ' = opaque(' "$dir/in.tn"; then # nobody here can run it
            ok "$file: check says why it cannot" grep -q 'is not ours to run' "$dir/err"
        else
            ok "$file: check does not say equal" [ "$said" = equal ]
        fi
        ;;
    esac
done

# Dumps, and numbers that differ.
file=tests/pass/default/mlp.tn
sed '/^---$/,$d' $file >"$dir/in.tn"
"$tenon" opt - --passes=grad,optimizer,dce --after=grad <"$dir/in.tn" >"$dir/after.tn" 2>"$dir/err"
"$tenon" opt "$dir/in.tn" --passes=grad -o "$dir/grad.tn" 2>"$dir/err"
cmp -s "$dir/after.tn" "$dir/grad.tn"
ok "--after=grad does not print what --passes=grad gives"

# A group is its rows: after the last of them, or each one of a name, which stands for itself alone too.
remat="--passes=default --recompute-rule *::gelu"
set -f
"$tenon" opt "$dir/in.tn" $remat --after=remat >"$dir/after.tn" 2>"$dir/err"
"$tenon" opt "$dir/in.tn" $remat --after=remat.repeat >"$dir/repeat.tn" 2>"$dir/err"
cmp -s "$dir/after.tn" "$dir/repeat.tn"
ok "--after=remat and --after=remat.repeat differ, though nothing is dead"
"$tenon" opt "$dir/in.tn" $remat --after=remat.dce >"$dir/dce.tn" 2>"$dir/err"
[ "$(grep -c '^graph' "$dir/dce.tn")" = 3 ]
ok "--after=remat.dce: expected a graph after each of 3 rows"
grep -q 'origin=%a$' "$dir/after.tn"
ok "--after=remat: expected a copy of gelu"
gives 2 'pass "remat.saves" did not run' opt "$dir/in.tn" --after=remat.saves
gives 2 'unknown pass "remap"; the nearest is "remat"' opt "$dir/in.tn" --passes=remap
gives 0 'remat.remat                    1 changes' opt "$dir/in.tn" $remat --timing -o "$dir/out.tn"
gives 0 'remat                          2 changes' opt "$dir/in.tn" $remat --timing -o "$dir/out.tn"
set +f

# --diff: the changes that passes made.
cat >"$dir/was.tn" <<END
tenon 1
graph step(%x: f32[4, 8] batch, %w: f32[8, 8] param "w") {
  %h = mm(%x, %w)  forward
  %h2 = mm(%x, %w)  forward
  %a = gelu(%h)  forward
  %b = silu(%h2)  forward
  %c = mul(%a, %b)  forward
  %dead = relu(%c)  forward
  %loss = sum(%c)  forward
  return loss %loss
}
END
gives 0 '' opt "$dir/was.tn" --passes=cse,dce --diff
cat >"$dir/want" <<END
0 added, 2 removed, 1 changed, 0 moved; nodes: 7 before, 5 after
- %h2: f32[4, 8] = mm(%x, %w)  forward
~ %b: f32[4, 8] = silu(%h)  forward
    was %b: f32[4, 8] = silu(%h2)  forward
- %dead: f32[4, 8] = relu(%c)  forward
END
ok "--diff of cse and dce" cmp "$dir/want" "$dir/out"
gives 0 'cse: 0 added, 1 removed, 1 changed' opt "$dir/was.tn" --passes=cse,dce --diff --after=cse
gives 0 'dce: 0 added, 1 removed, 0 changed' opt "$dir/was.tn" --passes=cse,dce --diff --after=dce -o "$dir/now.tn"
ok "the graph goes to its file" [ "$(grep -c ' = ' "$dir/now.tn")" = 5 ]
gives 0 'nothing changed in 5 nodes' opt "$dir/now.tn" --passes=cse,dce --diff
gives 0 '+ in %c: %c: f32[4, 8] = mul(%a, %b)' opt "$dir/was.tn" --passes=cse,dce,fuse --diff --after=fuse
sed -n 's/^> in %[a-z]*: \(%[abc]\): .*/\1/p' "$dir/out" | sort | tr -d '\n' >"$dir/moved"
ok "what is fused moves into the body" [ "$(cat "$dir/moved")" = "%a%b" ]
gives 2 'exclude each other' opt "$dir/was.tn" --diff -o -
gives 2 'pass "fuse" did not run' opt "$dir/was.tn" --passes=cse --diff --after=fuse
set -f
gives 0 'remat: ' opt "$dir/in.tn" $remat --diff --after=remat
ok "a group as a whole" [ "$(grep -c '^remat: ' "$dir/out")" = 1 ]
gives 0 'remat.dce: ' opt "$dir/in.tn" $remat --diff --after=remat.dce
ok "each of its rows of a name" [ "$(grep -c '^remat.dce: ' "$dir/out")" = 3 ]
set +f

# A step in two: as it stands, or after passes; together all products of the whole.
"$tenon" opt "$dir/in.tn" -o "$dir/step.tn"
for half in forward backward; do
    "$tenon" opt "$dir/step.tn" --split $half -o "$dir/$half.tn"
    "$tenon" opt "$dir/in.tn" --passes=default --split $half 2>"$dir/err" | cmp -s - "$dir/$half.tn"
    ok "opt --split $half: after passes it is another half"
done
products() {
    cat "$@" | grep -c 'mm('
}
ok "opt --split: expected the products of both" [ "$(products "$dir/step.tn")" = \
    "$(products "$dir/forward.tn" "$dir/backward.tn")" ]
ok "opt --split forward: expected the loss" grep -q 'return loss %loss, %h, ' "$dir/forward.tn"
gives 2 'the graph has no backward' opt "$dir/in.tn" --split forward
gives 2 '--split' opt "$dir/in.tn" --split middle
gives 1 'its iterations run forward and backward in turn' opt "$dir/in.tn" --passes=default --accumulate 2 \
    --split backward
sed 's/gelu(%h)/relu(%h)/' "$dir/in.tn" >"$dir/relu.tn"
"$tenon" check "$dir/in.tn" "$dir/relu.tn" >"$dir/out" 2>"$dir/err"
[ $? = 1 ]
ok "check of graphs that differ: expected exit code 1"
grep -q '^largest relative error .* at loss' "$dir/out"
ok "check does not say where graphs differ: $(cat "$dir/out")"
"$tenon" check "$dir/in.tn" "$dir/relu.tn" --tolerance=10 >"$dir/out" 2>"$dir/err"
ok "check within the tolerance: expected exit code 0"

# ---- sizes of 0: of the rows, the tokens, the middle, a view that joins two axes; whatever is asked of them ----

# sizes NAME ROWS TOKENS MIDDLE PLACES: an mlp's step; PLACES is ROWS * TOKENS.
sizes() {
    cat >"$dir/$1.tn" <<END
tenon 1
graph step(%ids: i64[$2, $3] batch, %y: i64[$2, $3] batch, %e: f32[64, 16] param "wte.weight",
    %w: f32[16, $4] param "h.0.mlp.c_fc.weight", %u: f32[$4, 16] param "h.0.mlp.c_proj.weight") {
  %h = embedding(%e, %ids)  @"h.0"
  %v = view(%h, size=[$5, 16])  @"h.0"
  %f = mm(%v, %w)  @"h.0.mlp"
  %g = gelu(%f)  @"h.0.mlp"
  %p = mm(%g, %u)  @"h.0.mlp"
  %t = t(%e)
  %x = mm(%p, %t)
  %l = view(%y, size=[$5])  loss
  %c = count_labels(%y)  loss
  %loss, %lse = cross_entropy(%x, %l, %c)  loss
  return loss %loss
}
END
    for asked in '--chunk auto' '--chunk h.0.mlp=2' '--recompute full' '--mesh dp=2' \
        '--mesh tp=2' '--mesh dp=2,tp=2 --shard auto'; do
        # shellcheck disable=SC2086
        gives 0 '' opt "$dir/$1.tn" --passes=default $asked
    done
    gives 0 '' plan "$dir/$1.tn" --passes=default --memory 1GiB --chunk auto
}
sizes rows 0 8 32 0
sizes tokens 4 0 32 0
sizes middle 4 8 0 32
cat >"$dir/slice.tn" <<END
tenon 1
graph step(%w: f32[4, 8] param "w", %x: f32[6, 8] batch) {
  %none = slice(%x, end=0)
  %t = t(%w)
  %y = mm(%none, %t)
  %loss = sum(%y)
  return loss %loss
}
END
gives 0 '' opt "$dir/slice.tn" --passes=grad,chunk --chunk auto
gives 0 '' opt "$dir/slice.tn" --passes=default --chunk '*=4'
totals
