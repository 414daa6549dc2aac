// Follows one pool: a state when it connects, then a tick a second. Draws once a frame at most.

import { Asking } from "./asking.js";
import { Curve, Refusals } from "./charts.js";
import { FleetTable } from "./fleet.js";
import { Scatter } from "./scatter.js";
import { Store } from "./store.js";
import { element, percent, say, seconds } from "./words.js";

const at = (id) => document.getElementById(id);
const LATEST = 25;

class Page {
  constructor() {
    this.store = null;
    this.asked = false;
    this.asking = new Asking(() => this.store?.pool ?? "");
    this.scatter = new Scatter(at("scatter"), at("picked"), (id) => this.store.decides && this.asking.explain(id));
    this.refusals = new Refusals(at("refused"), at("reasons"));
    this.curve = new Curve(at("speed"), at("formula"));
    this.fleet = new FleetTable(at("workers"), () => this.showCurve());
    this.figures = new Map();
    this.latest = [];
    at("what").addEventListener("change", (event) => {
      this.scatter.what = event.target.value;
      this.later();
    });
    at("pools").querySelector("select").addEventListener("change", (event) => this.follow(event.target.value));
    document.querySelector("#predictions details").addEventListener("toggle", () => this.later());
  }

  follow(pool) {
    this.source?.close();
    this.source = new EventSource(pool ? `events?${new URLSearchParams({ pool })}` : "events");
    this.source.addEventListener("state", (event) => this.begin(JSON.parse(event.data)));
    this.source.addEventListener("tick", (event) => this.take(JSON.parse(event.data)));
    this.source.onerror = () => this.status("connection lost, trying again", true);
  }

  status(text, isLost) {
    say(at("status"), text);
    at("status").classList.toggle("lost", isLost);
  }

  begin(state) {
    this.store = new Store(state);
    this.status("live", false);
    say(at("pool"), state.pool);
    document.title = `Leadsman ${state.pool}`;
    at("search").hidden = at("refusals").hidden = !state.decides;
    at("predictions").classList.toggle("alone", !state.decides);
    at("pools").hidden = state.pools.length < 2;
    const select = at("pools").querySelector("select");
    select.replaceChildren(...state.pools.map((name) => element("option", { textContent: name, selected: name === state.pool })));
    this.later();
  }

  take(tick) {
    this.store.take(tick);
    this.later();
  }

  later() {
    if (this.asked || !this.store) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  draw() {
    const { store } = this;
    this.scatter.show(store.points, store.workers);
    if (store.decides) this.refusals.show(store);
    this.fleet.show(store);
    this.showCurve();
    this.showFigures();
    if (document.querySelector("#predictions details").open) this.showLatest();
  }

  showCurve() {
    const speed = this.store?.speeds.get(this.fleet.chosen);
    at("curve").hidden = !speed;
    if (speed && (speed !== this.drawn || this.drawnOf !== this.fleet.chosen)) {
      [this.drawn, this.drawnOf] = [speed, this.fleet.chosen];
      this.curve.show(this.fleet.chosen, speed);
    }
  }

  showFigures() {
    const { points, workers } = this.store, number = points.length;
    let near = 0, close = 0, told = 0, off = 0;
    for (let i = 0; i < number; i++) {
      const error = Math.abs(points.predicted[i] - points.actual[i]);
      near += error <= 1;
      close += error <= Math.max(0.1, 0.15 * points.actual[i]);
      told += points.matched[i] >= 0;
      off += points.matched[i] === 0;
    }
    const ready = workers.filter((one) => one.ready), waits = ready.map((one) => one.wait);
    this.figure("workers ready", `${ready.length} of ${workers.length}`);
    this.figure("shortest wait", waits.length ? seconds(Math.min(...waits)) : "–");
    this.figure("longest wait", waits.length ? seconds(Math.max(...waits)) : "–");
    this.figure("within 1 s", percent(near, number));
    this.figure("within 0.1 s or 15 %", percent(close, number));
    this.figure("cache not as credited", percent(off, told));
    if (this.store.decides) {
      const { admitted, refused } = this.store.hour();
      this.figure("refused in an hour", percent(refused, admitted + refused));
    }
    this.figure("predictions shown", number.toLocaleString("en"));
  }

  figure(name, value) {
    let node = this.figures.get(name);
    if (!node) {
      node = element("dd");
      at("figures").append(element("div", {}, element("dt", { textContent: name }), node));
      this.figures.set(name, node);
    }
    say(node, value);
  }

  showLatest() {
    const { points } = this.store, body = at("latest").tBodies[0];
    while (this.latest.length < Math.min(LATEST, points.length)) {
      const button = element("button", { className: "link", type: "button", disabled: !this.store.decides });
      button.addEventListener("click", () => this.asking.explain(button.textContent));
      const cells = Array.from({ length: 5 }, () => element("td"));
      body.append(element("tr", {}, element("td", {}, button), ...cells));
      this.latest.push({ button, cells });
    }
    this.latest.forEach(({ button, cells }, i) => {
      if (document.activeElement === button) return;  // it must not change under the finger
      const place = points.latest(i), matched = points.matched[place];
      say(button, points.ids[place]);
      [points.nameOf(place), seconds(points.predicted[place]), seconds(points.actual[place]),
        seconds(points.bound[place]), matched < 0 ? "–" : matched ? "as credited" : "another"]
        .forEach((text, j) => say(cells[j], text));
    });
  }
}

// `leadsman` is for tests and benchmarks, which feed the page with more than a server would.
globalThis.leadsman = new Page();
globalThis.leadsman.follow(new URLSearchParams(location.search).get("pool"));
