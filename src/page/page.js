/* Says what lies under the pointer, or under a cursor that the arrow keys move. The numbers are those of
   the drawing: heights of layers are read from its paths. Without this script all pictures and tables stand. */
'use strict';
(() => {
  const CATEGORIES = 8, SHOWN = 8, SVG = document.querySelector('svg').namespaceURI;
  const phases = ['forward', 'loss', 'backward', 'optimizer'];

  /* The unit of a column whose largest is n bytes. */
  const unitOf = n => n >= 1 << 20 ? {one: 1 << 20, name: 'MiB', digits: 2}
    : n >= 1024 ? {one: 1024, name: 'KiB', digits: 2} : {one: 1, name: 'bytes', digits: 0};
  const inUnit = (n, u) => n > 0 && n / u.one < 0.005 ? '< 0.01' : number(n / u.one, u.digits);
  const bytes = (n, u) => inUnit(n, u) + ' ' + u.name;
  const number = (x, digits) =>
    x.toLocaleString('en-US', {minimumFractionDigits: digits, maximumFractionDigits: digits});
  const clamp = (x, lo, hi) => Math.min(Math.max(x, lo), hi);

  const element = (tag, text, name) => {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;
    if (name) e.className = name;
    return e;
  };

  /* The edge of a layer, "M0 0V9H2V7H5V0Z", as [[0, 9], [2, 7]]: from step, bytes. */
  const edge = (path, unit) => [...path.getAttribute('d').matchAll(/(?:H(\d+))?V([\d.e-]+)/g)]
    .map(m => [+(m[1] || 0), m[2] * unit]).slice(0, -1);
  const valueAt = (points, step) => {
    let lo = 0, hi = points.length - 1;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (points[mid][0] <= step) lo = mid; else hi = mid - 1;
    }
    return points[lo][1];
  };

  /* [category, its bytes] of a column, top first. */
  const layersAt = (plan, first) => {
    const sums = plan.layers.map(l => [l.category, valueAt(l.points, first)]);
    return sums.map(([c, sum], i) => [c, sum - (i + 1 < sums.length ? sums[i + 1][1] : 0)]).filter(x => x[1]);
  };
  const aliveAt = (plan, step) => plan.buffers.filter(b => b[0] <= step && step < b[1]);
  const columnOf = (plan, step) => {
    let lo = 0, hi = plan.columns.length - 1;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (plan.columns[mid][0] <= step) lo = mid; else hi = mid - 1;
    }
    return lo;
  };
  const title = (plan, name, scope) => plan.texts[name] + (plan.texts[scope] ? ' in ' + plan.texts[scope] : '');
  const category = b => b[4] % CATEGORIES;

  const swatch = c => {
    const svg = document.createElementNS(SVG, 'svg'), rect = document.createElementNS(SVG, 'rect');
    svg.setAttribute('viewBox', '0 0 10 10');
    svg.setAttribute('width', '11');
    rect.setAttribute('width', '10');
    rect.setAttribute('height', '10');
    rect.setAttribute('class', 'c' + c);
    svg.append(rect);
    return svg;
  };
  const row = (table, c, name, size) => {
    const tr = element('tr'), key = element('td'), text = element('td', name);
    key.append(swatch(c));
    tr.append(key, text, element('td', size, 'number'));
    table.append(tr);
  };
  /* Rows [category, name, bytes] under the unit of them all. */
  const listing = (rows, unit) => {
    const table = element('table'), head = element('tr');
    head.append(element('td'), element('td'), element('td', unit.name, 'number'));
    table.append(head);
    for (const [c, name, size] of rows) row(table, c, name, inUnit(size, unit));
    return table;
  };

  function describeColumn(plan, k, tip) {
    const [, step, op, scope, phase] = plan.columns[k], layers = layersAt(plan, plan.columns[k][0]);
    const all = layers.reduce((sum, l) => sum + l[1], 0), unit = unitOf(all);
    const largest = aliveAt(plan, step).slice(0, SHOWN).map(b => [category(b), title(plan, b[5], b[6]), b[3]]);
    tip.append(element('strong', 'call ' + number(step, 0) + ': ' + title(plan, op, scope)),
      element('span', phases[phase] + ', ' + bytes(all, unit) + ' alive', 'note'),
      listing(layers.map(([c, size]) => [c, plan.names[c], size]), unit),
      element('span', 'largest, first what is not always there', 'note'), listing(largest, unit));
  }

  function describeBuffer(plan, b, tip) {
    tip.append(element('strong', title(plan, b[5], b[6])));
    const table = element('table');
    row(table, category(b), plan.names[category(b)], bytes(b[3], unitOf(b[3])));
    tip.append(table, element('div', 'address ' + number(b[2], 0) + ' to ' + number(b[2] + b[3], 0), 'note'),
      element('div', b[4] >= CATEGORIES ? 'always there' : 'calls ' + number(b[0], 0) + ' to ' + number(b[1] - 1, 0), 'note'));
  }

  /* One picture: where its frame is, what is under the cursor. */
  function watch(plan, plot, isMap) {
    const [left, top, width, height] = plot.dataset.frame.split(' ').map(Number);
    const svg = plot.querySelector('svg'), cursor = plot.querySelector('.cursor'), mark = plot.querySelector('.mark');
    const tip = element('div', undefined, 'tip'), wide = plot.parentNode, figure = wide.parentNode;
    let at = plan.peak, held = null;
    tip.hidden = true;
    figure.append(tip);
    plot.tabIndex = 0;
    for (const [name, value] of [['role', 'slider'], ['aria-valuemin', 0], ['aria-valuemax', plan.columns.length - 1],
      ['aria-label', plot.dataset.label]]) plot.setAttribute(name, value);

    const scale = () => document.getElementById('zoom')?.checked ? plan.zoom : plan.full;
    const x = step => left + width * step / plan.steps;
    const y = size => clamp(top + height * (1 - (size - scale()[0]) / (scale()[1] - scale()[0])), top, top + height);
    const hide = () => {
      tip.hidden = true;
      cursor.setAttribute('d', '');
      mark.setAttribute('width', 0);
      mark.setAttribute('height', 0);
    };
    const show = (step, size) => {
      tip.replaceChildren();
      if (isMap && held) {
        describeBuffer(plan, held, tip);
        mark.setAttribute('x', x(held[0]));
        mark.setAttribute('y', y(held[2] + held[3]));
        mark.setAttribute('width', x(held[1]) - x(held[0]));
        mark.setAttribute('height', y(held[2]) - y(held[2] + held[3]));
      } else if (!isMap) describeColumn(plan, at, tip);
      else return hide();
      const middle = isMap ? step : plan.columns[at][1] + 0.5, unit = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
      cursor.setAttribute('d', 'M' + x(middle) + ' ' + top + 'v' + height);
      tip.hidden = false;
      const px = x(middle) * unit - wide.scrollLeft, over = px > figure.clientWidth / 2;
      tip.style.left = clamp(over ? px - tip.offsetWidth - 14 : px + 14, 0, Math.max(figure.clientWidth - tip.offsetWidth, 0)) + 'px';
      tip.style.top = (isMap ? clamp(y(size) * unit + 12, 0, plot.clientHeight) : top * unit + 8) + 'px';
      plot.setAttribute('aria-valuenow', at);
      plot.setAttribute('aria-valuetext', tip.innerText);
    };
    const stack = () => aliveAt(plan, plan.columns[at][1]).sort((b, c) => b[2] - c[2]);

    const point = e => {
      const box = svg.getBoundingClientRect(), unit = svg.viewBox.baseVal.width / box.width;
      const step = ((e.clientX - box.left) * unit - left) / width * plan.steps;
      const part = 1 - ((e.clientY - box.top) * unit - top) / height, [lo, hi] = scale(), size = lo + part * (hi - lo);
      if (step < 0 || step >= plan.steps || part < -0.3 || part > 1) return hide();
      at = columnOf(plan, step);
      held = aliveAt(plan, Math.floor(step)).find(b => b[2] <= size && size < b[2] + b[3]) || null;
      show(step, size);
    };
    plot.addEventListener('pointermove', point);
    plot.addEventListener('pointerdown', point);
    plot.addEventListener('pointerleave', hide);
    document.getElementById('zoom')?.addEventListener('change', hide);
    plot.addEventListener('blur', hide);
    plot.addEventListener('keydown', e => {
      const far = Math.max(1, Math.round(plan.columns.length / 20)), last = plan.columns.length - 1;
      const moves = {ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - far, PageDown: at + far, Home: 0, End: last, p: plan.peak};
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      if (e.key === 'Escape') return hide();
      const key = e.key === 'P' ? 'p' : e.key;
      if (key in moves) at = clamp(moves[key], 0, last);
      else if (!isMap || (e.key !== 'ArrowUp' && e.key !== 'ArrowDown')) return;
      e.preventDefault();
      const step = plan.columns[at][1], all = stack(), up = e.key === 'ArrowUp', now = all.indexOf(held);
      if (e.key === 'ArrowUp' || e.key === 'ArrowDown')
        held = all[now < 0 ? (up ? 0 : all.length - 1) : clamp(now + (up ? 1 : -1), 0, all.length - 1)];
      else if (now < 0) held = all[all.length - 1];
      show(step + 0.5, held ? held[2] + held[3] / 2 : 0);
    });
  }

  for (const id of ['a', 'b']) {
    const data = document.getElementById(id + '-data');
    if (!data) continue;
    const plan = JSON.parse(data.textContent);
    plan.names = JSON.parse(document.getElementById('names').textContent);
    plan.layers = [...document.querySelectorAll('#' + id + '-live-data path')].map(p =>
      ({category: plan.names.indexOf(p.dataset.layer), points: edge(p, plan.unit)}));
    watch(plan, document.getElementById(id + '-live'), false);
    watch(plan, document.getElementById(id + '-arena'), true);
  }
})();
