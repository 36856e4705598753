#!/bin/sh
# tenon run of the graphs of several ranks: those that PyTorch traced (tests/fx_ranks), as threads and by mpirun,
# give what PyTorch gave, imported with their mesh and, where groups have all ranks, without; what does not match
# is refused and named, and a run that fails leaves nothing behind. An MPI that is not there is left out, and said.
# Usage: tests/scripts/run_ranks.sh BUILD
. tools/checks.sh
. tools/launch.sh

# imports NAME: $dir/NAME.RANK.tn of all ranks; without their mesh $dir/NAME.plain.RANK.tn.
imports() {
    for mesh in tests/fx_ranks/"$1"/mesh.*.txt; do
        r=${mesh%.txt} r=${r##*.}
        # shellcheck disable=SC2046
        set -- "$1" $(cat "$mesh")
        name=$1 axes=$2
        shift 2
        for group; do
            shift
            set -- "$@" --group "$group"
        done
        graph=tests/fx_ranks/$name/graph.$r.txt
        gives 0 "" import fx "$graph" --mesh "$axes" --rank "$r" "$@" -o "$dir/$name.$r.tn"
        gives 0 "" import fx "$graph" -o "$dir/$name.plain.$r.tn"
        set -- "$name"
    done
}

# floats FILE: the data of a safetensors file of f32.
floats() {
    header=$(od -An -tu8 -N8 "$1")
    od -An -v -w4 -tf4 -j $((8 + header)) "$1"
}

# close WHAT NAME FILE...: the ranks' files have what PyTorch gave, within 1e-6 of the largest value.
close() {
    what=$1 name=$2
    shift 2
    r=0
    for file; do
        floats "tests/fx_ranks/$name/outputs.$r.safetensors" >"$dir/want"
        floats "$file" >"$dir/got"
        ok "$what: rank $r gives what PyTorch gave" sh -c 'paste "$1" "$2" | awk "
            NF != 2 || \$2 != \$2 + 0 { bad = 1 }
            { d = \$1 - \$2; d = d < 0 ? -d : d; m = \$1 < 0 ? -\$1 : \$1
              worst = d > worst ? d : worst; most = m > most ? m : most; n++ }
            END { exit bad || !n || worst > 1e-6 * most }"' - "$dir/want" "$dir/got"
        r=$((r + 1))
    done
}

# takes NAME: --inputs of its ranks.
takes() {
    echo "tests/fx_ranks/$1/inputs.%r.safetensors"
}

# ---- threads ----

for name in fsdp tp fsdp_tp moves functional fsdp2_copies; do
    imports $name
    for how in '' .plain; do
        [ "$name$how" != fsdp_tp.plain ] || continue
        gives 0 'ranks run as threads' run "$dir/$name$how".[0-9].tn --inputs "$(takes $name)" \
            --outputs "$dir/$name$how.out%r"
        close "$name$how as threads" $name "$dir/$name$how".out[0-9]
    done
done
gives 0 '' run "$dir"/moves.[0-9].tn --inputs "$(takes moves)" --outputs "$dir/again%r" --check --threads 1
for r in 0 1; do
    ok "moves: rank $r has the same bits with --check and one thread" cmp "$dir/moves.out$r" "$dir/again$r"
done

# ---- what is printed, and what a rank of its own has ----

# own RANK: a graph of dp=2 that draws rank 0's x, adds a row of a table that is i's, and sums over the ranks.
own() {
    cat <<END
tenon 1
graph own mesh(dp=2) at($1) (%x: f32[4], %i: i64[1], %t: f32[2, 4]) {
  %b: f32[4] = broadcast(%x, src=1, group="dp")  forward
  %bw: f32[4] = wait_tensor(%b, %x)  forward
  %e: f32[1, 4] = embedding(%t, %i)  forward
  %v: f32[4] = view(%e, size=[4])  forward
  %s: f32[4] = add(%bw, %v)  forward
  %m: f32[] = mean(%s)  loss
  %r: f32[] = all_reduce(%m, reduce_op="sum", group="dp")  loss
  %l: f32[] = wait_tensor(%r, %m)  loss
  return loss %l, %bw
}
END
}
# given RANK BYTE INDEX: its inputs; x is four floats of that byte, doubled, and the table 1 and 2.
given() {
    one='\000\000\200\077' two='\000\000\000\100' byte=$2
    tensors "$dir/own.in$1" '{"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[4],"data_offsets":[8,24]},"t":{"dtype":"F32","shape":[2,4],"data_offsets":[24,56]}}' \
        "\\00$3\\000\\000\\000\\000\\000\\000\\000$byte$byte$byte$byte$one$one$one$one$two$two$two$two"
}
own 0 >"$dir/own.0.tn"
own 1 >"$dir/own.1.tn"
given 0 '\000\000\000\000' 0
given 1 '\000\000\300\100' 1 # 6
own="$dir/own.0.tn $dir/own.1.tn"
# 6 from rank 1 on both, and rows of 1 and of 2: means of 7 and 8.
# shellcheck disable=SC2086
{
    gives 0 '' run $own --inputs "$dir/own.in%r" --outputs "$dir/own.out%r"
    ok "the loss of each rank" [ "$(cat "$dir/out")" = "rank 0 loss 15
rank 1 loss 15" ]
    for r in 0 1; do
        ok "broadcast: rank $r has what rank 1 has" [ "$(floats "$dir/own.out$r" | tr -s ' \n' ' ')" = ' 15 6 6 6 6 ' ]
    done
    gives 2 "rank 0: $dir/own.0.tn: run: --seed: the graph has no input of role seed" \
        run $own --inputs "$dir/own.in%r" --seed 3
    gives 0 '' run $own --inputs "$dir/own.in%r" --json --profile "$dir/own.profile%r.json"
    ok "an object for each rank" awk '/^[[{ ]*"rank": [01], "step": 1, "loss": 15, .*"measured_peak_bytes": [0-9]+, "rss_peak/ { n++ }
        /^\[/ { open++ } /\]$/ { close_++ } END { exit n != 2 || open != 1 || close_ != 1 }' "$dir/out"
    ok "planned is measured" awk -F'[:,]' '{ for (i = 1; i < NF; i++) { if ($i ~ /planned_peak/) p = $(i + 1); if ($i ~ /measured_peak/ && $(i + 1) == p) n++ } } END { exit n != 2 }' "$dir/out"
    ok "a profile for each rank" [ -s "$dir/own.profile0.json" -a -s "$dir/own.profile1.json" ]
}

# seeded RANK: it gives the seed, and rank 0's.
seeded() {
    cat <<END
tenon 1
graph seeded mesh(dp=2) at($1) (%seed: i64[] seed) {
  %o: i64[] = clone(%seed)  forward
  %b: i64[] = broadcast(%o, src=0, group="dp")  forward
  %w: i64[] = wait_tensor(%b, %o)  forward
  return %o, %w
}
END
}
seeded 0 >"$dir/seeded.0.tn"
seeded 1 >"$dir/seeded.1.tn"
for r in 0 1; do
    tensors "$dir/seeded.in$r" '{"seed":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}' "\\00$((r + 4))\\0\\0\\0\\0\\0\\0\\0"
done
integers() {
    od -An -v -w8 -td8 -j $((8 + $(od -An -tu8 -N8 "$1"))) "$1" | tr -s ' \n' ' '
}
gives 0 '' run "$dir"/seeded.[01].tn --inputs "$dir/seeded.in%r" --outputs "$dir/seeded.out%r"
ok "seeds are those of the files" [ "$(integers "$dir/seeded.out1")" = ' 5 4 ' ]
gives 0 '' run "$dir"/seeded.[01].tn --inputs "$dir/seeded.in%r" --outputs "$dir/seeded.out%r" --seed 7
ok "--seed goes to all ranks" [ "$(integers "$dir/seeded.out1")" = ' 7 7 ' ]

# apart RANK N: ranks whose vectors are of different lengths; sums over them match all the same.
apart() {
    cat <<END
tenon 1
graph apart mesh(dp=2) at($1) (%x: f32[$2]) {
  %o: f32[$2] = mul(%x, %x)  forward
  %so: f32[] = sum(%o)  forward
  %a: f32[] = all_reduce(%so, reduce_op="sum", group="dp")  forward
  %aw: f32[] = wait_tensor(%a, %so)  forward
  %t: f32[$2] = exp(%x)  forward
  %st: f32[] = sum(%t)  forward
  %b: f32[] = all_reduce(%st, reduce_op="max", group="dp")  forward
  %bw: f32[] = wait_tensor(%b, %st)  forward
  return %o, %aw, %bw
}
END
    # shellcheck disable=SC2046
    tensors "$dir/apart.in$1" '{"x":{"dtype":"F32","shape":['$2'],"data_offsets":[0,'$((4 * $2))']}}' \
        "$(printf '\\000%.0s' $(seq $((4 * $2))))"
}
apart 0 1 >"$dir/apart.0.tn"
apart 1 999 >"$dir/apart.1.tn"
gives 0 '' run "$dir"/apart.[01].tn --inputs "$dir/apart.in%r" --outputs "$dir/apart.out%r"
ok "one order: the largest sum of 1 and of 999" [ "$(floats "$dir/apart.out0" | tr -s ' \n' ' ')" = ' 0 0 999 ' ]

# What opt has cut runs on the parts that ranks have: of a batch of ones, rows of 1, 1, 2 and 2.
cat >"$dir/whole.tn" <<END
tenon 1
graph g(%x: f32[4, 2] batch, %w: f32[2, 2] param "w") {
  %y: f32[4, 2] = mm(%x, %w)  forward
  %l: f32[] = mean(%y)  loss
  return loss %l
}
END
for r in 0 1; do
    gives 0 '' opt "$dir/whole.tn" --passes=grad,spmd --mesh fsdp=2 --rank $r -o "$dir/cut.$r.tn"
    one='\000\000\200\077'
    [ $r = 0 ] || one='\000\000\000\100'
    tensors "$dir/cut.in$r" '{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[16,24]}}' \
        "$one$one$one$one\\000\\000\\200\\077\\000\\000\\200\\077"
done
gives 0 'rank 1 loss 3' run "$dir"/cut.[01].tn --inputs "$dir/cut.in%r" --outputs "$dir/cut.out%r"
ok "a rank has its part of the gradient" [ "$(floats "$dir/cut.out1" | tr -s ' \n' ' ')" = ' 3 0.75 0.75 ' ]

# ---- what is refused, and what a run that fails leaves ----

# nothing: no output, nor what is written aside.
nothing() {
    ok "nothing is left behind: $*" [ -z "$(find "$dir" -newer "$dir/mark" -type f ! -name out ! -name err)" ]
}
# refuses CODE TEXT FILE... --option...
refuses() {
    touch "$dir/mark"
    sleep 0.01
    gives "$@"
    nothing "$@"
}
fsdp="--inputs $(takes fsdp) --outputs $dir/no%r"
rank0=$dir/fsdp.0.tn rank1=$dir/fsdp.1.tn
sed 's/reduce_op="[a-z]*"/reduce_op="max"/' "$rank1" >"$dir/other.tn"
sed '/%l: /i\  %z: f32[] = all_reduce(%m, reduce_op="sum", group="dp")  loss\n  %zw: f32[] = wait_tensor(%z, %m)  loss' \
    "$dir/own.1.tn" >"$dir/more.tn"
# shellcheck disable=SC2086
{
    refuses 2 'fsdp.0.tn: mesh fsdp=2: rank 0 of 2: it does not run alone' run "$rank0" $fsdp
    refuses 2 "$rank0: mesh fsdp=2 has 2 ranks: expected as many graphs, found 3" run "$rank0" "$rank1" "$rank1" $fsdp
    refuses 2 "$rank1: expected the graph of rank 0 of mesh fsdp=2, found that of rank 1" run "$rank1" "$rank0" $fsdp
    refuses 2 'run: --inputs a.safetensors: expected %r, the rank, in the name' \
        run "$rank0" "$rank1" --inputs a.safetensors --outputs "$dir/no%r"
    refuses 2 'run: --outputs -: expected %r' run "$rank0" "$rank1" --inputs "$(takes fsdp)" --outputs -
    refuses 2 "own.in0 is an input" run $own --inputs "$dir/own.in%r" --outputs "$dir/own.in%r"
    refuses 1 'the collectives of the ranks do not match: rank 0 has reduce_scatter_tensor avg of f32[4, 8] over fsdp (%reduce_scatter_tensor), where rank 1 has reduce_scatter_tensor max of' \
        run "$rank0" "$dir/other.tn" $fsdp
    refuses 1 'the collectives of the ranks do not match: rank 0 has no other, where rank 1 has all_reduce sum of f32[] over dp (%z' \
        run "$dir/own.0.tn" "$dir/more.tn" --inputs "$dir/own.in%r" --outputs "$dir/no%r"
    refuses 1 'rank 1 has mesh tp=2, where rank 0 has mesh fsdp=2' run "$rank0" "$dir/tp.1.tn" $fsdp
    refuses 1 "group \"1\": the graph does not say which 2 of the 4 ranks it has: import it with --mesh and --group '1=AXIS'" \
        run "$dir"/fsdp_tp.plain.[0-9].tn --inputs "$(takes fsdp_tp)" --outputs "$dir/no%r"
    refuses 1 "rank 1: $dir/none.tn: " run "$rank0" "$dir/none.tn" $fsdp
    refuses 3 "rank 0: $rank0: " run "$rank0" "$rank1" $fsdp --memory 4KiB
    mkdir "$dir/to0"
    refuses 1 "rank 1: $dir/to1/x" run "$rank0" "$rank1" --inputs "$(takes fsdp)" --outputs "$dir/to%r/x"
    mkdir -p "$dir/to1/x"
    refuses 1 "rank 1: $dir/to1/x" run "$rank0" "$rank1" --inputs "$(takes fsdp)" --outputs "$dir/to%r/x"
    rm "$dir/own.in1"
    refuses 1 "rank 1: $dir/own.1.tn: $dir/own.in1: " run $own --inputs "$dir/own.in%r" --outputs "$dir/no%r"
    given 1 '\000\000\300\100' 5 # of a table of two rows
    refuses 1 "rank 1: $dir/own.1.tn: embedding" run $own --inputs "$dir/own.in%r" --outputs "$dir/no%r"
    given 0 '\000\000\300\100' 7
    given 1 '\000\000\300\100' 0
    refuses 1 "rank 0: $dir/own.0.tn: embedding" run $own --inputs "$dir/own.in%r" --outputs "$dir/no%r"
}

# ---- graphs of other forms, and calls that nothing matches ----

# sums RANK ROWS: the planner may order these two sums as it likes, and parts of other sizes may be ordered otherwise;
# the later phase is written first.
sums() {
    cat <<END
tenon 1
graph g mesh(dp=2) at($1) (%x: f32[$2] batch, %l: f32[] batch) {
  %q: f32[$2] = mul(%x, %x)  backward
  %n: f32[] = sum(%q, dim=[0])  backward
  %a: f32[] = all_reduce(%n, reduce_op="sum", group="dp")  backward
  %norm: f32[] = wait_tensor(%a, %n)  backward
  %b: f32[] = all_reduce(%l, reduce_op="sum", group="dp")  forward
  %loss: f32[] = wait_tensor(%b, %l)  forward
  return %norm, %loss
}
END
}
# numbers RANK COUNT: its x, ones of f32, and l, a two.
numbers() {
    ones=$(printf '\\000\\000\\200\\077%.0s' $(seq "$2"))
    tensors "$dir/sums.in$1" "{\"x\":{\"dtype\":\"F32\",\"shape\":[$2],\"data_offsets\":[0,$((4 * $2))]},\"l\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[$((4 * $2)),$((4 * $2 + 4))]}}" \
        "$ones\\000\\000\\000\\100"
}
for r in 0 1; do
    sums $r $((1000 - 100 * r)) >"$dir/sums.$r.tn"
    numbers $r $((1000 - 100 * r))
done
gives 0 '' run "$dir/sums.0.tn" "$dir/sums.1.tn" --inputs "$dir/sums.in%r" --outputs "$dir/sums.out%r"
for r in 0 1; do # 1900 and 4
    ok "rank $r: each sum is of what it is called" [ "$(tail -c 8 "$dir/sums.out$r" | od -An -tx1 | tr -d ' \n')" = 0080ed4400008040 ]
done
# rows RANK SENT RECEIVED GROUP: an exchange of rows.
rows() {
    cat <<END
tenon 1
graph g mesh(dp=2, tp=1) at($1, 0) (%x: f32[4, 1] batch) {
  %a: f32[$(($3)), 1] = all_to_all_single(%x, output_split_sizes=[$(echo "$3" | tr + ,)], input_split_sizes=[$2], group="$4")  forward
  %w: f32[$(($3)), 1] = wait_tensor(%a, %x)  forward
  return %w
}
END
}
rows 0 2,2 2+0 dp >"$dir/rows.0.tn"
rows 1 2,2 2+2 dp >"$dir/rows.1.tn"
rows 1 0,4 2+4 dp,tp >"$dir/other.1.tn"
refuses 1 'do not match: rank 1 sends 2 rows to rank 0, which expects 0' run "$dir/rows.0.tn" "$dir/rows.1.tn" --inputs "$dir/sums.in%r" --outputs "$dir/no%r"
refuses 1 'over dp (%a), where rank 1 has all_to_all_single of f32[0, 1] over dp,tp' run "$dir/rows.0.tn" "$dir/other.1.tn" \
    --inputs "$dir/sums.in%r" --outputs "$dir/no%r"
for r in 0 1; do sed 's/ mesh(.*at([0-9])//; s/group="dp"/group="5"/' "$dir/sums.$r.tn" >"$dir/five.$r.tn"; done
refuses 1 'group "5": the graph does not say which ones of the 2 ranks it has' run "$dir/five.0.tn" "$dir/five.1.tn" \
    --inputs "$dir/sums.in%r" --outputs "$dir/no%r"

# ---- processes ----

mpis=$(mpis)
cat "$dir/skipped"
for mpi in $mpis; do
    # launched N ARGUMENTS...: tenon by mpirun of $mpi; its exit code is in $got.
    launched() {
        n=$1
        shift
        timeout 60 "mpirun.$mpi" -n "$n" "$tenon" "$@" >"$dir/out" 2>"$dir/err"
        got=$?
    }
    for name in fsdp moves fsdp_tp; do
        n=2
        [ $name != fsdp_tp ] || n=4
        launched $n run "$dir/$name".[0-9].tn --inputs "$(takes $name)" --outputs "$dir/$name.$mpi%r"
        ok "$mpi: $name: exit code 0" [ $got = 0 ]
        ok "$mpi: processes, not threads" not grep -q 'run as threads' "$dir/err"
        for r in $(seq 0 $((n - 1))); do
            ok "$mpi: $name: rank $r has the bits of threads" cmp "$dir/$name.out$r" "$dir/$name.$mpi$r"
        done
    done
    launched 3 run "$dir"/fsdp.[0-9].tn --inputs "$(takes fsdp)" --outputs "$dir/no%r"
    ok "$mpi: three processes, two graphs: refused" [ $got != 0 ]
    ok "$mpi: three processes, two graphs: said once" [ "$(grep -c 'run: expected 3 files, one for each rank' "$dir/err")" = 1 ]
    # shellcheck disable=SC2086
    launched 2 run $own --inputs "$dir/own.in%r" --outputs "$dir/no%r"
    ok "$mpi: a rank that fails ends all" [ $got != 0 ]
    ok "$mpi: a rank that fails is named" grep -q "tenon: rank 0: $dir/own.0.tn: embedding" "$dir/err"
    ok "$mpi: nothing is left behind" [ -z "$(find "$dir" -name 'no*')" ]
done
totals
