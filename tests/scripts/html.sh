#!/bin/sh
# The page of `tenon plan --html`, and plans beside each other: what is in the file, its errors, and in headless
# Chromium (where there is one) what is drawn, against the JSON of the same plan. Usage: tests/scripts/html.sh BUILD
. tools/checks.sh

# number NAME: of the JSON in $dir/out, the first of that name.
number() {
    sed -n "s/^ *\"$1\": \([0-9-]*\),*$/\1/p" "$dir/out" | head -1
}

# ---- the file ----

demo="demo --batch-size 4 --seq-len 32 --recompute full --accumulate 2"
gives 0 'peak' plan $demo --html "$dir/demo.html"
page=$dir/demo.html
ok "the page begins and ends" [ "$(head -1 "$page") $(tail -1 "$page")" = '<!DOCTYPE html> </html>' ]
ok "the title" grep -q '<title>demo: memory of a step</title>' "$page"
for text in 'default-src .none.' 'data-layer="recompute"' '>forward<' '>loss<' '>backward<' '>optimizer<' 'layers.' \
    'planned peak' 'MiB' '>2 iterations<'; do
    ok "the page has $text" grep -q -e "$text" "$page"
done
ok "a sentence says first what the page shows" awk '
    /<h1>/ { h = NR } /<p class="insight">The step needs <*[0-9.,]* MiB, at its peak [0-9]* % of it for / { p = NR }
    END { exit !(h && p == h + 1) }' "$page"
# units FILE: numbers of tables that have a unit of their own.
units() { grep -oE '<td class="number">[^<]*[0-9] *(bytes|KiB|MiB|us|ms|s|GFLOP)<' "$1"; }
ok "columns have one unit, in their head" not units "$page"
ok "which is there" grep -q '>at the peak, MiB</th><th scope="col" class="number">saved, MiB<' "$page"
outside='https?:|[^a-z]src *=|url\(|@import|<link|<img|<iframe|<object'
ok "nothing of elsewhere" not grep -qE "$outside" "$page"
"$tenon" plan $demo --html - >"$dir/piped.html" 2>"$dir/err"
ok "to standard output" [ $? = 0 ]
ok "the plan then goes to standard error" grep -q '^  peak ' "$dir/err"
ok "the same page but for the command" [ "$(grep -vc '<h1>' "$page")" = "$(grep -vc '<h1>' "$dir/piped.html")" ]

# ---- ranks ----

gives 0 'mesh fsdp=2,tp=2: rank 1 of 4' plan $demo --mesh fsdp=2,tp=2 --rank 1 --html "$dir/ranks.html"
for text in '<h2>Ranks</h2>' 'Rank 1 of 4, mesh <code>fsdp=2,tp=2</code>' '<th scope="row">reduce_scatter</th><td>tp,fsdp<' \
    '>of it collectives<'; do
    ok "the page of a rank has $text" grep -q -e "$text" "$dir/ranks.html"
done
ok "that of one rank has no collectives" not grep -q 'Ranks\|collectives' "$page"

ok "its columns have one unit too" not units "$dir/ranks.html"
for text in '>received, MiB<' '>estimated, ms<' '>exposed: computing stands still<'; do
    ok "the page of a rank has $text" grep -q -e "$text" "$dir/ranks.html"
done
gives 0 '' plan demo --batch-size 4 --seq-len 32 --backend emulated --offload '*.mlp*::silu' --html "$dir/offload.html"
ok "copies are drawn" grep -q 'class="of-busy"' "$dir/offload.html"
ok "legends have nothing that is not there" not grep -q 'class="of-sending"\|class="of-exposed"' "$dir/offload.html"

# ---- errors ----

cat >"$dir/hostile.tn" <<'END'
tenon 1
graph names(%x: f32[64, 64] batch, %w: f32[64, 64] param "w") {
  %a: f32[64, 64] = mm(%x, %w)  @"</script><script>document.title='taken'</script>" forward
  %b: f32[64, 64] = gelu(%a)  @"\"><img src=x onerror=alert(1)>&amp;'<!--" forward
  %c: f32[64, 64] = mm(%b, %w)  @"]]>\\u003cb>" loss
  return %a, %b, %c
}
END
cp "$dir/hostile.tn" "$dir/graph.tn"
gives 2 'is an input' plan "$dir/graph.tn" --html "$dir/graph.tn"
ok "the input is as it was" cmp -s "$dir/graph.tn" "$dir/hostile.tn"
gives 1 'cannot write: No space' plan "$dir/graph.tn" --html /dev/full
gives 1 'cannot create' plan "$dir/graph.tn" --html "$dir/none/x.html"
gives 2 'exclude each other' plan "$dir/graph.tn" --html - --json
gives 2 '--html: expected a path' plan "$dir/graph.tn" --html ''
mkdir "$dir/small"
echo before >"$dir/small/x.html"
(
    failed=0
    ulimit -f 8
    gives 1 'x.html: cannot write: File too large' plan "$dir/graph.tn" --html "$dir/small/x.html"
    exit $failed
)
ok "a page larger than files may be"
ok "what was there stays" [ "$(cat "$dir/small/x.html")" = before ]
gives 2 'needs a graph with a loss' plan "$dir/graph.tn" --passes=grad --html "$dir/small/y.html"
ok "no half file" [ "$(ls "$dir/small")" = x.html ]
gives 3 'does not fit' plan $demo --recompute none --memory 1MiB --html "$dir/misfit.html"
ok "what does not fit is drawn, too" grep -q 'planned peak' "$dir/misfit.html"

# ---- two plans ----

model="demo --batch-size 16 --seq-len 128"
gives 0 'B: --recompute full' plan $model --compare '--recompute none' '--recompute full'
for text in peak 'lower bound' waste 'at the peak: parameters' 'saved for the backward' 'computed again' operations; do
    ok "the comparison has $text" grep -q "^  $text  " "$dir/out"
done
gives 0 'A: (no options of its own)' plan $model --compare '' '--recompute "every=2" --save lay\ers.0.\*'"'::silu'"
gives 0 '"difference": {' plan $model --json --compare '--recompute none' '--recompute full'
ok "peaks and their difference" awk '
    /^  "peak_bytes"/ { gsub(/[^0-9-]/, ""); peak[n++] = $0 + 0 }
    END { exit !(n == 3 && peak[1] < peak[0] && peak[2] == peak[1] - peak[0]) }' "$dir/out"
gives 0 '' plan --compare "$dir/graph.tn" "$dir/hostile.tn" --html "$dir/two.html"
gives 0 '' plan $model --compare '--recompute none' '--recompute full' --html "$dir/pair.html"
ok "of two plans the sentence compares" grep -qE '<p class="insight">B needs [0-9.]+ % less memory than A at the peak, [0-9.]+ MiB, and takes [0-9.]+ % longer, ' "$dir/pair.html"
ok "a table for each unit" [ "$(grep -cE '<caption>(Two plans beside each other: memory|Estimated time|Operations|Counts)</caption>' "$dir/pair.html")" = 4 ]
ok "and columns of one" not units "$dir/pair.html"
gives 0 '' plan demo --batch-size 4 --seq-len 32 --pareto --html "$dir/curve.html"
ok "a curve begins with what the least memory costs" grep -q '<p class="insight">The step runs in ' "$dir/curve.html"
ok "its columns have one unit" not grep -qE '<td>[^<]*(MiB|KiB| us| ms| s|%)<' "$dir/curve.html"
gives 2 '--compare needs two values' plan $model --compare '--recompute none'
gives 2 'plan: --compare, A: unknown option "--recomptue"; the nearest is "--recompute"' \
    plan $model --compare '--recomptue none' ''
gives 2 'plan: --compare, B: --seed: expected an integer' plan $model --compare '' '--seed x'
gives 2 'plan: --compare, B: recompute: expected auto, none, full' plan $model --compare '' '--recompute half'
gives 2 'plan: --compare, A: a quote that is not closed' plan $model --compare "--recompute 'full" ''
gives 2 'plan: --compare, B: a quote that is not closed' plan $model --compare '' '--recompute full\'
gives 2 'plan: --compare, B: --json is not for one side' plan $model --compare '' '--json'
gives 2 '--steps is for one plan' plan $model --steps --compare '' ''
gives 2 'plan: --compare, A: --seq-len is missing' plan demo --batch-size 2 --compare '' '--seq-len 8'
gives 2 'plan: --compare, A: expected 1 argument, found 0' plan --compare '' ''
gives 1 'plan: --compare, B: ' plan --compare "$dir/graph.tn" "$dir/none.tn"
gives 2 '--compare, B: standard input is read once' plan - --compare '' '' <"$dir/graph.tn"
gives 3 'plan: --compare, A: does not fit' plan $model --compare '--memory 1MiB --recompute none' ''

# ---- what is drawn ----

# A chain of sums, of which the first half lives until the second reads it, with a short loss and backward in
# the middle: 12,000 calls, 6,000 buffers, its peak amid a column.
awk 'BEGIN {
    print "tenon 1\ngraph large(%x: f32[64, 64] batch, %w: f32[64, 64] param \"w\") {"
    for (i = 0; i < 12000; i++) {
        back = i < 6004 ? "w" : "v" (12007 - i)
        phase = i < 6004 ? "forward" : i < 6024 ? "loss" : i < 6044 ? "backward" : "optimizer"
        printf "  %%v%d: f32[64, 64] = add(%%%s, %%%s)  @\"layers.%d\" %s\n", i, i ? "v" (i - 1) : "x", back, i / 40, phase
    }
    print "  return %v11999\n}"
}' >"$dir/large.tn"
gives 0 '' plan "$dir/large.tn" --html "$dir/large.html"
ok "a large graph is thinned out, and the page says so" grep -q 'Thinned out: 12,000 calls' "$dir/large.html"
ok "its page is small" [ "$(wc -c <"$dir/large.html")" -lt 3000000 ]
gives 0 '' plan "$dir/hostile.tn" --html "$dir/hostile.html"
ok "names are no elements" [ "$(grep -oE '<(script|/script|img|!--)' "$dir/hostile.html" | wc -l)" = 6 ]

# Bytes that are no text, a control character, one that turns the direction of what follows.
printf 'tenon 1\ngraph bytes(%%x: f32[4] batch) {\n  %%y: f32[4] = gelu(%%x)  @"\377\300\200 \001 \342\200\256\355\240\200" forward\n  return %%y\n}\n' \
    >"$dir/bytes.tn"
gives 0 '' plan "$dir/bytes.tn" --html "$dir/bytes.html"
ok "the page is UTF-8" iconv -f utf-8 -t utf-8 -o "$dir/nowhere" "$dir/bytes.html"
ok "without control characters" not grep -q "$(printf '\001')" "$dir/bytes.html"

# Behind a copy of the page: reads what is drawn, points at it, presses keys.
cat >"$dir/probe.html" <<'END'
<script>
const say = (key, value) => document.body.append(Object.assign(document.createElement('p'), {textContent: 'probe ' + key + ' ' + value}));
const overlap = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
say('requests', performance.getEntriesByType('resource').length);
say('title', document.title);
for (const zoomed of [false, true]) {
  const zoom = document.getElementById('zoom');
  if (zoom) zoom.checked = zoomed;
  let bad = 0;
  for (const svg of document.querySelectorAll('.plot > svg')) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect()).filter(r => r.width);
    texts.forEach((r, i) => {
      bad += r.left < frame.left || r.right > frame.right || r.top < frame.top || r.bottom > frame.bottom;
      bad += texts.slice(i + 1).some(s => overlap(r, s));
    });
    if (!texts.length) bad = 'no text';
  }
  say('clipped-or-overlapping' + (zoomed ? '-zoomed' : ''), bad);
}
document.querySelectorAll('#zoom').forEach(zoom => { zoom.checked = false; });
for (const id of ['a', 'b']) {
  if (!document.getElementById(id + '-data')) continue;
  const unit = JSON.parse(document.getElementById(id + '-data').textContent).unit;
  const paths = name => [...document.querySelectorAll('#' + id + '-' + name + '-data > path')];
  const tops = name => { const b = document.getElementById(id + '-' + name + '-data').getBBox(); return (b.y + b.height) * unit; };
  const numbers = (name, pattern) => paths(name).flatMap(p => [...p.getAttribute('d').matchAll(pattern)]);
  const peak = Math.max(...numbers('live', /V([\d.e-]+)/g).map(m => m[1] * unit));
  const end = Math.max(...numbers('arena', /M\d+ ([\d.e-]+)h\d+v([\d.e-]+)/g).map(m => (+m[1] + +m[2]) * unit));
  say(id + '-live', peak);
  say(id + '-arena', end);
  say(id + '-boxes', Math.abs(tops('live') / peak - 1) < 1e-6 && Math.abs(tops('arena') / end - 1) < 1e-6 ? 'agree' : tops('live') + ' ' + tops('arena'));
  const live = document.getElementById(id + '-live'), arena = document.getElementById(id + '-arena');
  live.dispatchEvent(new KeyboardEvent('keydown', {key: 'p'}));
  say(id + '-tip', live.closest('figure').querySelector('.tip').innerText.replace(/\s+/g, ' '));
  arena.dispatchEvent(new KeyboardEvent('keydown', {key: 'p'}));
  say(id + '-key', arena.getAttribute('aria-valuetext').replace(/\s+/g, ' '));
  const box = arena.querySelector('svg').getBoundingClientRect(), k = box.width / arena.querySelector('svg').viewBox.baseVal.width;
  const [left, top, width, height] = arena.dataset.frame.split(' ');
  arena.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + (+left + width / 2) * k, clientY: box.top + (+top + +height - 2) * k}));
  const tip = arena.closest('figure').querySelector('.tip');
  say(id + '-pointed', tip.hidden ? 'nothing' : tip.innerText.replace(/\s+/g, ' '));
}
</script>
END

chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
# document NAME: the document that the page becomes.
document() {
    timeout 60 "$chromium" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=1400,2000 \
        --user-data-dir="$dir/chromium" --dump-dom "file://$dir/$1.html" 2>"$dir/log"
}

# drawn NAME: what the probe says of the page, in $dir/probe.
drawn() {
    cat "$dir/$1.html" "$dir/probe.html" >"$dir/probed.html"
    document probed | grep -o '<p>probe [^<]*' | sed 's/^<p>probe //' >"$dir/probe"
    ok "$1: the page is shown; Chromium says: $(tail -3 "$dir/log")" [ -s "$dir/probe" ]
}

# says KEY VALUE...: that the probe says so.
says() {
    key=$1
    shift
    ok "$name: $key: expected $*, found $(sed -n "s/^$key //p" "$dir/probe")" grep -qF -x -e "$key $*" "$dir/probe"
}

if [ -z "$chromium" ]; then
    echo "note: html.sh: no chromium (Debian: apt-get install chromium): what pages show is not tested"
    totals
    exit
fi
echo '<p>plain</p>' >"$dir/plain.html"
if ! document plain | grep -q '<p>plain</p>'; then
    echo "note: html.sh: Chromium shows no page here: $(tail -1 "$dir/log")"
    totals
    exit
fi

# A telephone, of 390 pixels: in a frame, as windows are no narrower than 500.
cat >"$dir/telephone.html" <<'END'
<iframe src="narrow.html" width="390" height="800" style="border: 0"></iframe>
<script>addEventListener('message', e => document.body.append(Object.assign(document.createElement('p'), {textContent: e.data})));</script>
END
cat >"$dir/tell.html" <<'END'
<script>addEventListener('load', () => {
  const wide = [...document.querySelectorAll('body *')].filter(e => !e.closest('.wide') && e.getBoundingClientRect().right > innerWidth + 1);
  const small = [...document.querySelectorAll('svg text')].filter(t => t.getBoundingClientRect().height && t.getBoundingClientRect().height < 9);
  parent.postMessage('probe ' + innerWidth + ': wide ' + wide.length + ', small ' + small.length, '*');
});</script>
END
cat "$dir/ranks.html" "$dir/tell.html" >"$dir/narrow.html"
found=$(timeout 60 "$chromium" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --virtual-time-budget=3000 \
    --user-data-dir="$dir/chromium" --dump-dom "file://$dir/telephone.html" 2>"$dir/log" | grep -o '<p>probe [^<]*')
ok "on a telephone nothing is cut off, and no text is too small; found $found" [ "$found" = '<p>probe 390: wide 0, small 0' ]

for name in demo hostile large pair; do
    case $name in
    demo) arguments=$demo ;;
    pair) arguments="$model --recompute none" ;;
    *) arguments=$dir/$name.tn ;;
    esac
    gives 0 '' plan $arguments --json
    peak=$(number peak_bytes) bound=$(number lower_bound_bytes)
    drawn $name
    says requests 0
    says a-live "$bound"
    says a-arena "$peak"
    says a-boxes agree
    says clipped-or-overlapping 0
    says clipped-or-overlapping-zoomed 0
    ok "$name: the largest values are named" grep -qE '^a-tip call [0-9,]+: .* alive .*largest' "$dir/probe"
    ok "$name: in one unit" not grep -qE '^a-tip .*(MiB.*KiB|KiB.*MiB|[KM]iB.*[0-9] bytes)' "$dir/probe"
    ok "$name: keys name a buffer" grep -qE '^a-key .*address [0-9,]+ to [0-9,]+ (calls|always)' "$dir/probe"
    [ $name = large ] || ok "$name: so does pointing at one" grep -qE '^a-pointed .*address [0-9,]+ to [0-9,]+ always' "$dir/probe"
    [ $name = hostile ] || continue
    says title "$dir/hostile.tn: memory of a step"
    ok "hostile names are shown as they are" grep -qF "&lt;/script&gt;&lt;script&gt;document.title='taken'&lt;/script&gt;" "$dir/probe"
done
gives 0 '' plan $model --recompute full --json
says b-live "$(number lower_bound_bytes)"
says b-arena "$(number peak_bytes)"
says b-boxes agree
totals
