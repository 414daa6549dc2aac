// The two smaller charts: refusals a minute by reason, and one worker's curve with its samples.

import { alone, clock, colour, decades, element, onTheme, palette, percent, plain, say, seconds, thousands, tick } from "./words.js";

const axes = (one, more = {}) => ({
  stroke: () => colour("quiet"), grid: { stroke: () => colour("rule"), width: 1 },
  ticks: { stroke: () => colour("rule"), width: 1 }, ...one, ...more,
});

class Chart {
  constructor(node, height) {
    this.node = node;
    this.height = height;
    this.made = null;
    this.kind = "";
    onTheme(() => { this.kind = ""; this.again?.(); });
    new ResizeObserver(() => {
      const width = Math.max(240, node.clientWidth);
      if (this.made && this.made.width !== width) this.made.setSize({ width, height });
    }).observe(node);
  }

  // Make the chart anew only where what it draws is of another kind.
  draw(kind, options, data) {
    if (kind !== this.kind) {
      this.made?.destroy();
      const size = { width: Math.max(240, this.node.clientWidth), height: this.height };
      this.made = new uPlot({ ...size, legend: { show: false }, cursor: { show: false }, ...options() }, data, this.node);
      this.kind = kind;
    } else {
      this.made.setData(data);
    }
  }
}

export class Refusals extends Chart {
  constructor(node, table) {
    super(node, 240);
    this.body = table.tBodies[0];
    this.rows = new Map();
  }

  show(store) {
    this.again = () => this.show(store);
    const { reasons, minutes, admitted, refused } = store.hour(), names = [...reasons.keys()];
    const now = store.at - store.at % 60;
    const times = Array.from({ length: 60 }, (_, i) => now - 60 * (59 - i));
    const stacked = names.map(() => []);
    for (const at of times) {
      let sum = 0;
      names.forEach((name, i) => stacked[i].push(sum += minutes.get(at)?.[name] ?? 0));
    }
    const colours = palette(), bars = uPlot.paths.bars({ size: [0.8, 24] });
    const series = names.map((name, i) => ({
      label: name, fill: colours[i % colours.length], stroke: colours[i % colours.length], width: 0, paths: bars, points: { show: false },
    }));
    this.draw(`bars ${names}`, () => ({
      scales: { x: { time: true }, y: { range: (_, __, most) => [0, Math.max(1, Math.ceil(most * 1.1))] } },
      axes: [axes({ values: (_, splits) => splits.map(clock) }), axes({ size: 44, values: (_, splits) => splits.map((n) => (Number.isInteger(n) ? `${n}` : "")) })],
      series: [{}, ...series.toReversed()],  // the tallest first, the others in front of it
    }), [times, ...stacked.toReversed()]);
    this.list(reasons, colours, admitted + refused);
  }

  list(reasons, colours, all) {
    let i = 0;
    for (const [name, number] of reasons) {
      const row = this.rows.get(name) ?? this.row(name);
      row.key.style.background = colours[i++ % colours.length];
      say(row.number, `${number}`);
      say(row.share, percent(number, all));
    }
    for (const [name, row] of this.rows) {
      if (!reasons.has(name)) { row.row.remove(); this.rows.delete(name); }
    }
    if (!this.rows.size && !this.body.rows.length) {
      this.body.append(element("tr", { className: "quiet" }, element("td", { colSpan: 3, textContent: "nobody was refused" })));
    } else if (this.rows.size) {
      this.body.querySelector("tr.quiet")?.remove();
    }
  }

  row(name) {
    const key = element("span", { className: "key" });
    const [number, share] = [element("td"), element("td")];
    const row = element("tr", {}, element("td", {}, key, plain(name)), number, share);
    this.body.append(row);
    this.rows.set(name, { row, key, number, share });
    return this.rows.get(name);
  }
}

export class Curve extends Chart {
  constructor(node, formula) {
    super(node, 260);
    this.formula = formula;
  }

  show(worker, speed) {
    this.again = () => this.show(worker, speed);
    const [overhead, a, b] = speed.curve, at = (n) => overhead + n * (a + b * n);
    const longest = Math.max(32768, ...speed.samples.map(([n]) => n));
    const lengths = Array.from({ length: 61 }, (_, i) => Math.round(128 * (longest * 1.3 / 128) ** (i / 60)));
    const points = [...lengths.map((n) => [n, alone(speed, n), at(n), null]), ...speed.samples.map(([n, s]) => [n, null, null, s])];
    points.sort((a, b) => a[0] - b[0]);
    this.draw(worker, () => ({
      scales: { x: { time: false, distr: 3 }, y: { distr: 3 } },
      axes: [axes({ label: "prompt tokens", labelSize: 18, size: 38, ...decades(thousands) }),
        axes({ size: 62, ...decades(tick) })],
      series: [{}, { stroke: colour("accent"), width: 2, spanGaps: true, points: { show: false } },
        { stroke: colour("quiet"), width: 1.5, dash: [6, 4], spanGaps: true, points: { show: false } },
        { stroke: colour("ink"), paths: () => null, points: { show: true, size: 6, fill: colour("ink") } }],
    }), [0, 1, 2, 3].map((i) => points.map((one) => one[i])));
    const told = { own: "its own", borrowed: "that of one like it", unmeasured: "a default" };
    say(this.formula, `${worker}. Solid: what prices now (${told[speed.now_from]}). Dashed: the curve of prompts `
      + `alone (${told[speed.curve_from]}, ${speed.samples.length} samples), ${seconds(overhead)} + `
      + `${(1e6 * a).toPrecision(3)} µs a token + ${(1e12 * b).toPrecision(3)} ps a token squared.`);
  }
}
