#!/bin/sh
# shellcheck disable=SC2317 # sections and kinds are called by their names
# Compares two revisions of this repository on this machine: whether both compute the same bits (losses, outputs,
# gradients, weights and optimizer state after five steps), and whether NEW plans a greater peak, over the models
# of tests/ref, the presets, the graphs of tests/fx and random graphs (build/tests/test_prop write).
# Usage: tools/same.sh OLD NEW [SECTION...]; OLD and NEW are revisions, or folders with build/tenon in them.
#
# Sections: fixtures presets imports random (default: all). Environment: N random graphs (2000), JOBS cases at a
# time (the cores), CACHE folder in which revisions are built and found again (a temporary one), FOUND folder that
# keeps what differs or is higher: both results, the graph, the commands (build/same); KEEP=1 keeps everything
# else too, LONG=1 trains gpt2 itself as well, ONLY=PATTERN takes the cases whose line in the list it matches.
#
# Exit code 0: all bits equal; no peak higher but for 0.5 % of the random graphs, by at most 1 %. 1: not so.
# 2: wrong usage, no such revision, or it does not build. What both refuse, and what OLD cannot do (an option or
# an op it does not know), is counted and printed with its reason: together at most 15 %.
usage="usage: tools/same.sh OLD NEW [fixtures|presets|imports|random]..."

die() {
    echo "same: $1" >&2
    [ -z "$2" ] || echo "$usage" >&2
    exit 2
}

[ $# -ge 2 ] || die "two revisions or folders are needed" usage
old_name=$1 new_name=$2
shift 2
sections=${*:-fixtures presets imports random}
for section in $sections; do
    case $section in
    fixtures | presets | imports | random) ;;
    *) die "no section '$section'" usage ;;
    esac
done
count=${N:-2000} jobs=${JOBS:-$(nproc)}
case $count,$jobs in
*[!0-9,]* | *,0) die "N is a number, JOBS one above 0; found N=$count JOBS=$jobs" ;;
esac
cd "$(dirname "$0")/.." || exit 2
found=${FOUND:-build/same}
work=$(mktemp -d) || exit 2
export OMP_WAIT_POLICY=passive # threads of busy machines do not spin

finish() {
    code=$?
    trap - EXIT
    if [ "$KEEP" = 1 ]; then
        echo "same: all files are kept in $work" >&2
    else
        rm -rf "$work"
    fi
    exit "$code"
}
trap finish EXIT
pids=
shows=
trap 'kill $pids $shows 2>/dev/null; exit 130' INT TERM HUP

# ---- the two programs ----

# built REVISION|FOLDER: prints the path of its program, after building where that is a revision.
built() {
    if [ -d "$1" ]; then
        [ -x "$1/build/tenon" ] || die "$1: no build/tenon in it; build it first, or name a revision"
        (cd "$1/build" && echo "$PWD/tenon")
        return
    fi
    hash=$(git rev-parse --verify --quiet "$1^{commit}") || die "$1: neither a folder nor a revision" usage
    into=${CACHE:-$work}/$hash
    if ! [ -x "$into/build/tenon" ]; then
        echo "same: building $1 ($hash)" >&2
        { mkdir -p "$into" && git archive "$hash" | tar -x -C "$into"; } || die "$into: cannot be written"
        make -s -C "$into" -j "$jobs" all >"$into/log" 2>&1 || {
            tail -30 "$into/log" >&2
            rm -f "$into/build/tenon"
            die "$1 does not build, see above"
        }
    fi
    (cd "$into/build" && echo "$PWD/tenon")
}

old_tenon=$(built "$old_name") || exit
new_tenon=$(built "$new_name") || exit

# ---- lists of cases: a line is NAME|KIND|ARGUMENTS ----

fixtures() {
    for model in tests/ref/*/; do
        model=${model%/} name=${model##*/}
        rows=2 # of its batch
        [ "$name" != gpt2-ignore ] || rows=3
        for dtype in f32 bf16; do
            for recompute in none full selective; do
                with="--dtype $dtype --recompute $recompute --threads 2"
                title="$name $dtype $recompute"
                for iterations in 1 $rows; do
                    echo "$title grad accumulate=$iterations|grad|$model --batch $model/batch.safetensors --accumulate $iterations $with"
                done
                echo "$title train|train|$model --batch $model/batch.safetensors --lr 1e-3 $with"
                for iterations in 1 3; do
                    echo "$title data accumulate=$iterations|train|$model $data --accumulate $iterations $with"
                done
            done
        done
        with="--dtype bf16 --recompute selective --threads 2"
        for extra in "--param-dtype bf16" "--fuse off" "--optimizer sgd --momentum 0.9" "--dropout 0.1"; do
            echo "$name $extra|train|$model $data $extra $with"
        done
    done
}

# 2,500 tokens below 64, and rows that every model has positions for.
write_data() {
    awk 'BEGIN { for (i = x = 1; i <= 2500; i++) { x = (x * 75 + 74) % 65537; printf "\\%03o\\000", x % 64 } }' \
        >"$work/escapes"
    # shellcheck disable=SC2059
    printf "$(cat "$work/escapes")" >"$found/tokens"
    data="--data $found/tokens --token-type u16 --batch-size 6 --seq-len 16 --val-fraction 0"
}

presets() {
    for model in demo gpt2 gpt2-medium llama3-1b llama3-8b; do
        for dtype in f32 bf16; do
            for recompute in none full selective; do
                for iterations in 1 3 4; do
                    with="--dtype $dtype --recompute $recompute --accumulate $iterations --threads 2"
                    title="$model $dtype $recompute accumulate=$iterations"
                    case $iterations in
                    [14]) echo "$title|plan|$model --batch-size 4 --seq-len 1024 $with" ;;
                    esac
                    case $model$LONG$iterations in
                    demo*[13] | gpt21[13]) echo "$title train|train|$model $data $with" ;;
                    esac
                done
            done
        done
    done
}

simplify=canonicalize,cse,dce,remat,fuse

imports() {
    for graph in tests/fx/*/graph.txt; do
        folder=${graph%/graph.txt} name=${folder##*/}
        echo "$name as it is|import|$folder"
        for dtype in f32 bf16; do
            with="--passes precision,$simplify --dtype $dtype"
            echo "$name $dtype none|import|$folder $with"
            echo "$name $dtype full|import|$folder $with --recompute-rule *::*" # they have no blocks
        done
    done
}

random() {
    make -s -j "$jobs" build/tests/test_prop >"$work/log" 2>&1 || {
        tail -30 "$work/log" >&2
        die "build/tests/test_prop does not build, see above"
    }
    mkdir "$work/random"
    build/tests/test_prop write "$work/random" "$count" >&2 || die "no random graphs"
    i=0
    while [ "$i" -lt "$count" ]; do
        graph=$work/random/$i
        echo "$i as it is|graph|$graph"
        for dtype in f32 bf16; do
            echo "$i forward $dtype|graph|$graph --passes precision,$simplify --dtype $dtype"
        done
        text=$(cat "$graph.tn")
        case $text in
        *' param "'*"return "*"loss %"*) trained "$i" "$graph" 1 ;;
        esac
        case $text in
        *' param "'*" batch"*"return "*"loss %"*) trained "$i" "$graph" 3 ;;
        esac
        i=$((i + 1))
    done
}

# trained NUMBER GRAPH ITERATIONS: a graph with a loss, to its gradients and to new parameters.
trained() {
    for dtype in f32 bf16; do
        for recompute in none full selective; do
            with="--dtype $dtype --recompute $recompute --accumulate $3"
            echo "$1 $dtype $recompute accumulate=$3|graph|$2 --passes grad,precision,accumulate,$simplify $with"
        done
        with="--dtype $dtype --recompute full --accumulate $3"
        echo "$1 $dtype full accumulate=$3 adamw|step|$2 --passes grad,precision,accumulate,optimizer,$simplify $with"
    done
}

# ---- one case with one program ----

# The kinds: each is given PROGRAM, a FOLDER to write to and ARGUMENTS; what shall be equal are the files in
# $compared, and the peak is the first number after $peak_key in the file peak, where there is one.
peak_key='peak_bytes": '

kind_grad() {
    program=$1 into=$2
    shift 2
    "$program" grad "$@" --out "$into/grad.safetensors" >"$into/loss"
}

kind_train() {
    program=$1 into=$2
    shift 2
    "$program" train "$@" --steps 5 --out "$into/run" >"$into/loss" || return
    for file in model optimizer; do
        [ ! -f "$into/run/step-5/$file.safetensors" ] ||
            mv "$into/run/step-5/$file.safetensors" "$into/$file.safetensors"
    done
    mv "$into/run/step-5/state.json" "$into/peak"
    rm -rf "$into/run"
}

kind_plan() {
    program=$1 into=$2
    shift 2
    "$program" plan "$@" --json >"$into/peak"
}

# run_graph PROGRAM FOLDER INPUTS GRAPH [OPTIONS OF OPT]
run_graph() {
    program=$1 into=$2 inputs=$3 graph=$4
    shift 4
    if [ $# -gt 0 ]; then
        "$program" opt "$graph" "$@" -o "$into/graph.tn" || return
        graph=$into/graph.tn
    fi
    "$program" run "$graph" --inputs "$inputs" --outputs "$into/outputs.safetensors" --json --threads 1 >"$into/peak"
}

kind_graph() {
    program=$1 into=$2 graph=$3
    shift 3
    run_graph "$program" "$into" "$graph.safetensors" "$graph.tn" "$@"
}

kind_step() {
    program=$1 into=$2 graph=$3
    shift 3
    run_graph "$program" "$into" "$graph.step.safetensors" "$graph.tn" "$@"
}

kind_import() {
    program=$1 into=$2 folder=$3
    shift 3
    "$program" import fx "$folder/graph.txt" --inputs "$folder/inputs.safetensors" -o "$into/import.tn" >"$into/said" ||
        return
    run_graph "$program" "$into" "$folder/inputs.safetensors" "$into/import.tn" "$@"
}

# ---- one case with both ----

compared="loss grad.safetensors model.safetensors optimizer.safetensors outputs.safetensors"

# Sets peak.
read_peak() {
    peak=
    [ -f "$1/peak" ] || return
    while read -r line; do
        case $line in
        *"$peak_key"*)
            peak=${line#*"$peak_key"}
            peak=${peak%%[!0-9]*}
            return
            ;;
        esac
    done <"$1/peak"
}

# Sets status and why: names of files whose bytes differ, or the message of the program that failed.
compare() {
    status=equal
    why=
    files=
    if [ "$old_code" != 0 ] && [ "$new_code" = "$old_code" ] && [ "$new_code" -lt 128 ]; then
        status=refused why=$(message "$here/old")
    elif [ "$new_code" != 0 ]; then
        status=differs why="NEW: exit code $new_code: $(message "$here/new")"
    elif [ "$old_code" != 0 ]; then
        status=skipped why="OLD: $(message "$here/old")"
    else
        for file in $compared; do
            [ -f "$here/old/$file" ] || [ -f "$here/new/$file" ] || continue
            files=some
            cmp -s "$here/old/$file" "$here/new/$file" || why="$why $file"
        done
        [ "$kind" = plan ] || [ -n "$files" ] || why="nothing was written"
        [ -z "$why" ] || status=differs
    fi
}

message() {
    grep -v '^tenon: \(warning\|note\)' "$1/err" | head -1
}

# one NUMBER NAME KIND ARGUMENTS: prints NUMBER, status, both peaks, name and reason; tabs between.
one() {
    number=$1 name=$2 kind=$3 arguments=$4
    rm -rf "$here/old" "$here/new"
    mkdir "$here/old" "$here/new"
    # shellcheck disable=SC2086
    "kind_$kind" "$old_tenon" "$here/old" $arguments 2>"$here/old/err" </dev/null
    old_code=$?
    # shellcheck disable=SC2086
    "kind_$kind" "$new_tenon" "$here/new" $arguments 2>"$here/new/err" </dev/null
    new_code=$?
    compare
    old_peak=- new_peak=-
    if [ $status = equal ] || [ "$status" = differs ]; then
        read_peak "$here/old" && old_peak=${peak:--}
        read_peak "$here/new" && new_peak=${peak:--}
    fi
    if [ $status = differs ] || [ "${new_peak#-}" -gt "${old_peak#-}" ] 2>/dev/null; then
        save "$found/$section-$number"
    fi
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$number" "$status" "$old_peak" "$new_peak" "$name" "$why"
}

# save FOLDER: what both wrote, and the commands that do it again.
save() {
    [ "$section" != presets ] || rm -f "$here"/*/*.safetensors # large
    mkdir -p "$1" && cp -r "$here/old" "$here/new" "$1" || return
    case $kind in
    graph | step)
        inputs=${arguments%% *}.safetensors
        [ "$kind" = graph ] || inputs=${arguments%% *}.step.safetensors
        cp "${arguments%% *}.tn" "$1/in.tn" && cp "$inputs" "$1/in.safetensors"
        again_graph "$1" "$1/in.safetensors" "$1/in.tn ${arguments#"${arguments%% *}"}"
        ;;
    import)
        folder=${arguments%% *}
        echo "tenon import fx $folder/graph.txt --inputs $folder/inputs.safetensors -o $1/in.tn"
        again_graph "$1" "$folder/inputs.safetensors" "$1/in.tn ${arguments#"$folder"}"
        ;;
    train) echo "tenon train $arguments --steps 5 --out $1/again" ;;
    grad) echo "tenon grad $arguments --out $1/again.safetensors" ;;
    plan) echo "tenon plan $arguments --json" ;;
    esac >"$1/commands"
}

# again_graph FOLDER INPUTS "GRAPH OPTIONS"
again_graph() {
    case $3 in
    *--passes*) echo "tenon opt $3 -o $1/again.tn" | sed "s/ [^ ]*::[^ ]*/ '&'/; s/' /'/" ;;
    *) echo "cp $3 $1/again.tn" ;;
    esac
    echo "tenon run $1/again.tn --inputs $2 --outputs $1/again.safetensors --json --threads 1"
}

# worker K: every jobs-th case of the list.
worker() {
    here=$work/worker$1
    set -f
    mkdir -p "$here"
    number=0
    while IFS='|' read -r name kind arguments; do
        number=$((number + 1))
        [ $((number % jobs)) != "$1" ] || one $number "$name" "$kind" "$arguments"
    done <"$work/$section.list" >"$work/$section.$1"
}

# ---- what came of a section ----

# Of lines sorted by number; exit code 1 where the section's rules do not hold.
summary() {
    awk -F '\t' -v section="$section" -v found="$found" '
    { n++; status[$2]++; why[n] = $6; name[n] = $5; number[n] = $1; is[n] = $2 }
    $2 == "refused" || $2 == "skipped" { # names and numbers aside, many say the same
        gsub(/[^ ]*\.tn:[0-9:]*:/, "FILE:", $6)
        gsub(/[%"][A-Za-z0-9_.]+"?/, "NAME", $6)
        gsub(/: NAME( <- NAME)+$/, "", $6)
        sub(/FILE: [a-z0-9_]+ NAME/, "FILE: OP NAME", $6)
        gsub(/[0-9]+/, "N", $6)
        reason[$2 ": " $6]++
    }
    $3 != "-" && $4 != "-" {
        peaks++; sumold += $3; sumnew += $4
        old[n] = $3; new[n] = $4
        lower += $4 < $3; higher += $4 > $3
        split($5, word, " ")
        graph[word[1]] = 1
        if ($4 > $3) { raised[word[1]] = 1; most = $4 / $3 - 1 > most ? $4 / $3 - 1 : most }
    }
    END {
        printf "%s: %d compared, %d equal, %d differ; %d refused by both, %d skipped\n", section,
            status["equal"] + status["differs"], status["equal"], status["differs"], status["refused"], status["skipped"]
        printf "  peaks: %d compared, %d lower, %d equal, %d higher; together %.0f -> %.0f bytes (%+.3f %%)\n", peaks,
            lower, peaks - lower - higher, higher, sumold, sumnew, sumold ? 100 * (sumnew / sumold - 1) : 0
        for (i = 1; i <= n; i++)
            if (is[i] == "differs" && ++shown <= 10)
                printf "  differs: %s: %s (%s/%s-%s/commands)\n", name[i], why[i], found, section, number[i]
        fflush()
        for (i = 1; i <= n; i++)
            if (new[i] > old[i])
                printf "  higher by %.3f %%: %s: %.0f -> %.0f bytes (%s/%s-%s/commands)\n", 100 * (new[i] / old[i] - 1), name[i],
                    old[i], new[i], found, section, number[i] | "sort -k 3nr,3"
        close("sort -k 3nr,3")
        for (r in reason)
            printf "  %d times %s\n", reason[r], r | "sort -k 1nr,1"
        close("sort -k 1nr,1")
        for (g in graph) graphs++
        for (g in raised) raisedgraphs++
        if (section == "random")
            printf "  of %d graphs %d have a higher peak (at most %.0f may), by at most %.3f %% (at most 1 may be)\n",
                graphs, raisedgraphs, int(graphs * 0.005), 100 * most
        bad = section == "random" ? raisedgraphs > graphs * 0.005 || most > 0.01 : higher > 0
        if (status["refused"] + status["skipped"] > n * 0.15) {
            printf "  so many are refused or skipped that this says too little\n"
            bad = 1
        }
        exit status["differs"] > 0 || bad
    }'
}

# On a terminal: how many of the section's cases are done.
progress() {
    total=$(wc -l <"$work/$section.list")
    while sleep 1; do
        printf '\r%s: %d of %d ' "$section" "$(cat "$work/$section".[0-9]* | wc -l)" "$total" >&2
    done
}

# ---- all ----

[ ! -d "$found" ] || [ -f "$found/tokens" ] || die "$found is there and not of this tool; FOUND=FOLDER names another"
rm -rf "$found"
mkdir -p "$found" || exit 2
write_data
failed=0
compared_some=
for section in $sections; do
    $section >"$work/all" || exit
    grep -e "${ONLY:-^}" "$work/all" >"$work/$section.list" || continue
    compared_some=1
    [ ! -t 2 ] || { progress & shows=$!; }
    pids=
    for k in $(seq 0 $((jobs - 1))); do
        worker "$k" &
        pids="$pids $!"
    done
    for pid in $pids; do
        wait "$pid"
    done
    [ ! -t 2 ] || { kill "$shows"; printf '\r\033[K' >&2; }
    sort -n "$work/$section".[0-9]* >"$work/$section.all"
    summary <"$work/$section.all" || failed=1
    if [ "$(wc -l <"$work/$section.all")" != "$(wc -l <"$work/$section.list")" ]; then
        echo "  not all cases were compared: see the messages above"
        failed=1
    fi
done
[ "$(ls "$found")" != tokens ] || [ "$KEEP" = 1 ] || rm -rf "$found"
if [ -z "$compared_some" ]; then
    die "no case matches ONLY=$ONLY"
elif [ $failed = 0 ]; then
    echo "same: $old_name and $new_name: the rules hold"
else
    echo "same: $old_name and $new_name: the rules do not hold"
fi
exit $failed
