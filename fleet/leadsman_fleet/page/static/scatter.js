// Predicted against real, on logarithmic axes: good marks lie on the diagonal. uPlot draws axes,
// grid and what stands still, anew only where the scale changes. The marks are written as pixels
// into a canvas above it: 10,000 of them take 1 ms so, and 90 to 350 ms by any call of the canvas.

import { colour, decades, onTheme, palette, say, seconds, tick } from "./words.js";

const LEAST = 0.01;
const MOST_BOUNDS = 3;

export class Scatter {
  constructor(node, told, explain) {
    this.node = node;
    this.told = told;
    this.explain = explain;
    this.what = "ttft";
    this.picked = null;
    this.top = 10;
    this.steps = -1;
    this.canvas = document.createElement("canvas");
    this.to = this.canvas.getContext("2d");
    this.paint();
    this.chart = new uPlot(this.options(), [[LEAST, 10], [null, null]], node);
    this.chart.over.append(this.canvas);
    onTheme(() => { this.paint(); this.chart.redraw(); this.marks(); });
    new ResizeObserver(() => this.resize()).observe(node);
    node.addEventListener("pointermove", (event) => this.point(event));
    node.addEventListener("click", () => this.explainPicked());
    node.addEventListener("keydown", (event) => this.key(event));
  }

  options() {
    const scale = { time: false, distr: 3, range: () => [LEAST, this.top] };
    const axis = (label) => ({
      scale: label === "predicted" ? "x" : "y", label, size: label === "real" ? 62 : 40,
      labelSize: 20, stroke: () => this.quiet, grid: { stroke: () => this.rule, width: 1 },
      ticks: { stroke: () => this.rule, width: 1 }, ...decades(tick),
    });
    return {
      ...this.size(), legend: { show: false }, cursor: { show: false }, scales: { x: scale, y: scale },
      axes: [axis("predicted"), axis("real")], series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { drawClear: [(u) => this.behind(u)] },
    };
  }

  size() {
    const width = Math.max(240, this.node.clientWidth);
    return { width, height: Math.round(Math.min(Math.max(280, width * 0.9), 600)) };
  }

  resize() {
    const { width, height } = this.size();
    if (width === this.chart.width && height === this.chart.height) return;
    this.chart.setSize({ width, height });
    queueMicrotask(() => this.marks());
  }

  paint() {
    for (const name of ["quiet", "rule", "band", "bad", "accent", "card"]) this[name] = colour(name);
    this.stamps = palette().map((one) => [this.stamp(one, false), this.stamp(one, true)]);
  }

  // The pixels of one mark, some of them half transparent.
  stamp(one, isHollow) {
    const ratio = devicePixelRatio, size = Math.ceil((isHollow ? 9 : 7) * ratio);
    const made = document.createElement("canvas");
    made.width = made.height = size;
    const to = made.getContext("2d", { willReadFrequently: true });
    to.arc(size / 2, size / 2, size / 2 - (isHollow ? 1.2 * ratio : 0.5), 0, 2 * Math.PI);
    to.fillStyle = isHollow ? this.card : one;
    to.fill();
    if (isHollow) {
      to.lineWidth = 1.6 * ratio;
      to.strokeStyle = one;
      to.stroke();
    }
    return { size, pixels: new Uint32Array(to.getImageData(0, 0, size, size).data.buffer) };
  }

  columns() {
    const points = this.points;
    return this.what === "ttft" ? [points.predicted, points.actual, points.bound]
      : [points.predictedWait, points.wait, points.waitBound];
  }

  show(points, workers) {
    this.points = points;
    this.order = new Map(workers.map((one, i) => [one.worker, i % this.stamps.length]));
    const [predicted, actual] = this.columns();
    let most = 1;
    for (let i = 0; i < points.length; i++) {
      if (predicted[i] > most) most = predicted[i];
      if (actual[i] > most) most = actual[i];
    }
    this.shownBounds = this.commonest();
    for (const bound of this.shownBounds) if (bound < 4 * most) most = Math.max(most, bound);
    const top = 10 ** (Math.ceil(4 * Math.log10(most * 1.15)) / 4);
    if (top !== this.top) {
      this.top = top;
      this.chart.setData([[LEAST, top], [null, null]]);
    }
    this.marks();
  }

  // The plot's size in pixels of the screen, and where a time lies on it; shorter ones lie on the edge.
  scale() {
    const { width, height } = this.chart.bbox, least = Math.log10(LEAST);
    const [kx, ky] = [width, height].map((side) => side / (Math.log10(this.top) - least));
    return {
      width: Math.round(width), height: Math.round(height),
      x: (s) => (Math.log10(s < LEAST ? LEAST : s) - least) * kx,
      y: (s) => height - (Math.log10(s < LEAST ? LEAST : s) - least) * ky,
    };
  }

  behind(u) {
    const { x, y } = this.scale(), to = u.ctx, steps = 60;
    const at = (i) => LEAST * (this.top / LEAST) ** (i / steps);
    const near = (s) => Math.max(0.1, 0.15 * s);
    to.save();
    to.translate(u.bbox.left, u.bbox.top);
    to.fillStyle = this.band;
    to.beginPath();
    for (let i = 0; i <= steps; i++) to.lineTo(x(Math.min(at(i) + near(at(i)), this.top)), y(at(i)));
    for (let i = steps; i >= 0; i--) to.lineTo(x(at(i) - near(at(i))), y(at(i)));
    to.fill();
    to.strokeStyle = this.quiet;
    to.beginPath();
    to.moveTo(x(LEAST), y(LEAST));
    to.lineTo(x(this.top), y(this.top));
    to.stroke();
    to.restore();
  }

  marks() {
    if (!this.points || !this.chart.bbox.width) return;
    const scale = this.scale(), { width, height } = scale, canvas = this.canvas;
    if (canvas.width !== width || canvas.height !== height || !this.image) {
      [canvas.width, canvas.height] = [width, height];
      canvas.style.width = canvas.style.height = "100%";
      this.image = new ImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(0);
    this.write(scale, 0);
    this.write(scale, 1);  // hollow ones lie above
    this.to.putImageData(this.image, 0, 0);
    this.bounds(scale);
    this.ring(scale);
  }

  write({ width, height, x, y }, isHollow) {
    const { points, pixels } = this, [predicted, actual] = this.columns(), { matched, worker } = points;
    const stamps = points.names.map((name) => this.stamps[this.order.get(name) ?? 0][isHollow]);
    for (let i = points.length - 1; i >= 0; i--) {
      const place = points.latest(i), p = predicted[place], a = actual[place];
      if ((matched[place] === 0 ? 1 : 0) !== isHollow || !(p === p && a === a)) continue;
      const { size, pixels: stamp } = stamps[worker[place]];
      const left = (x(p) - size / 2) | 0, top = (y(a) - size / 2) | 0;
      for (let row = 0; row < size; row++) {
        const line = top + row;
        if (line < 0 || line >= height) continue;
        for (let column = 0; column < size; column++) {
          const at = left + column, pixel = stamp[row * size + column];
          if (pixel >>> 24 === 0 || at < 0 || at >= width) continue;
          const to = line * width + at;
          if (pixel >>> 24 > 127 || pixels[to] === 0) pixels[to] = pixel;
        }
      }
    }
  }

  // The bounds that most requests have: each may have one of its own.
  commonest() {
    const counted = new Map(), bounds = this.columns()[2];
    for (let i = 0; i < this.points.length; i++) {
      const bound = bounds[i];
      if (bound > LEAST) counted.set(bound, (counted.get(bound) ?? 0) + 1);
    }
    return [...counted].sort((a, b) => b[1] - a[1]).slice(0, MOST_BOUNDS).map(([bound]) => bound);
  }

  bounds({ width, height, x, y }) {
    const { to } = this, ratio = devicePixelRatio;
    const most = this.shownBounds.filter((bound) => bound < this.top);
    to.strokeStyle = to.fillStyle = this.bad;
    to.setLineDash([6 * ratio, 4 * ratio]);
    to.lineWidth = 1.5 * ratio;
    to.font = `${11 * ratio}px system-ui, sans-serif`;
    for (const bound of most) {
      to.beginPath();
      to.moveTo(x(bound), 0);
      to.lineTo(x(bound), height);
      to.moveTo(0, y(bound));
      to.lineTo(width, y(bound));
      to.stroke();
      to.fillText(`bound ${tick(bound)}`, 4 * ratio, y(bound) + (y(bound) > 16 * ratio ? -4 : 13) * ratio);
    }
    to.setLineDash([]);
    this.node.dataset.bounds = most.join(" ");
  }

  ring({ x, y }) {
    const place = this.picked === null ? -1 : this.points.ids.indexOf(this.picked);
    if (place < 0) return;
    const { to } = this, [predicted, actual] = this.columns();
    to.beginPath();
    to.arc(x(predicted[place]), y(actual[place]), 8 * devicePixelRatio, 0, 2 * Math.PI);
    to.strokeStyle = this.accent;
    to.lineWidth = 2.5 * devicePixelRatio;
    to.stroke();
  }

  point(event) {
    if (!this.points) return;
    const over = this.canvas.getBoundingClientRect(), ratio = devicePixelRatio, { x, y } = this.scale();
    const px = (event.clientX - over.left) * ratio, py = (event.clientY - over.top) * ratio;
    const [predicted, actual] = this.columns();
    let best = (14 * ratio) ** 2, found = null;
    for (let i = 0; i < this.points.length; i++) {
      const far = (x(predicted[i]) - px) ** 2 + (y(actual[i]) - py) ** 2;
      if (far < best) [best, found] = [far, i];
    }
    if (found !== null) this.pick(found);
  }

  key(event) {
    if (!this.points?.length) return;
    if (event.key === "Enter") return this.explainPicked();
    const by = { ArrowLeft: 1, ArrowRight: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    this.steps = Math.min(Math.max(this.steps + by, 0), this.points.length - 1);
    this.pick(this.points.latest(this.steps));
  }

  pick(place) {
    const { points } = this, [predicted, actual] = this.columns();
    this.picked = points.ids[place];
    const cache = points.matched[place] === 0 ? ", cache not as credited" : "";
    say(this.told, `${this.picked} on ${points.nameOf(place)}: predicted ${seconds(predicted[place])}, `
      + `real ${seconds(actual[place])}${cache}`);
    this.marks();
  }

  explainPicked() {
    if (this.picked !== null) this.explain(this.picked);
  }
}
