// The fleet as a table, a row a worker: made once, and changed in place.

import { alone, element, say, palette, seconds, thousands } from "./words.js";

const LABELS = ["Worker", "Trust", "Queue", "Requests", "Cache", "8K prompt alone"];

export class FleetTable {
  constructor(table, chosen) {
    this.body = table.tBodies[0];
    this.onChosen = chosen;
    this.chosen = null;
    this.rows = new Map();
  }

  show(store) {
    const longest = Math.max(1, ...store.workers.map((one) => (one.wait < 1e6 ? one.wait : 0)));
    const colours = palette();
    const there = new Set(store.workers.map((one) => one.worker));
    for (const [name, row] of this.rows) {
      if (!there.has(name)) { row.row.remove(); this.rows.delete(name); }
    }
    store.workers.forEach((one, place) => {
      const row = this.rows.get(one.worker) ?? this.make(one.worker);
      if (this.body.rows[place] !== row.row) this.body.insertBefore(row.row, this.body.rows[place] ?? null);
      this.fill(row, one, store.speeds.get(one.worker), longest, colours[place]);
    });
    if (!there.has(this.chosen) && store.workers.length) this.choose(store.workers[0].worker);
  }

  make(name) {
    const cells = LABELS.map((label) => {
      const cell = element("td");
      cell.dataset.label = label;
      return cell;
    });
    const button = element("button", { className: "link", type: "button", textContent: name, title: "Show its curve" });
    button.addEventListener("click", () => this.choose(name));
    const model = element("div", { className: "quiet" });
    const key = element("span", { className: "key" });
    cells[0].append(element("div", {}, element("div", { className: "name" }, key, button), model));
    const meter = element("meter", { min: 0, max: 1 });
    const wait = element("span"), queue = element("div", { className: "quiet" });
    cells[2].append(element("div", {}, meter, wait, queue));
    const flights = element("span"), engine = element("div", { className: "quiet" });
    cells[3].append(element("div", {}, flights, engine));
    const trust = element("strong"), why = element("div", { className: "quiet" });
    cells[1].append(element("div", {}, trust, why));
    const tiers = element("div");
    cells[4].append(tiers);
    const row = { row: element("tr", {}, ...cells), cells, key, button, model, meter, wait, queue, flights, engine, trust, why, tiers, held: new Map() };
    this.rows.set(name, row);
    return row;
  }

  fill(row, one, speed, longest, paint) {
    row.row.classList.toggle("is-chosen", one.worker === this.chosen);
    row.button.setAttribute("aria-pressed", `${one.worker === this.chosen}`);
    say(row.model, one.model);
    row.trust.className = one.ready ? one.trust : "away";
    say(row.trust, one.ready ? one.trust : "not ready");
    const heard = one.unheard === null ? "never heard" : one.unheard > 10 ? `heard ${seconds(one.unheard)} ago` : "";
    say(row.why, [one.reason, heard].filter(Boolean).join("; "));
    row.meter.max = longest;
    row.meter.value = Math.min(one.wait, longest);
    row.meter.setAttribute("aria-label", `wait ${seconds(one.wait)}`);
    say(row.wait, seconds(one.wait));
    say(row.queue, `${thousands(one.queued_tokens)} tokens, ${one.queued_requests} requests`);
    say(row.flights, `${one.in_flight} sent, ${one.slots} slots`);
    say(row.engine, one.running === null ? "" : `it says ${one.running} run, ${one.waiting} wait`);
    this.tiers(row, one.cache);
    const told = speed ? seconds(alone(speed, 8192)) : "–";
    say(row.cells[5], `${told}${speed && speed.now_from !== "own" ? ` (${speed.now_from})` : ""}`);
    row.key.style.background = paint ?? "transparent";
  }

  tiers(row, cache) {
    for (const { tier, tokens, room } of cache) {
      let held = row.held.get(tier);
      if (!held) {
        held = { meter: element("meter", { min: 0 }), text: element("span") };
        row.tiers.append(element("div", {}, held.meter, held.text));
        row.held.set(tier, held);
      }
      held.meter.hidden = room === null;
      if (room !== null) {
        held.meter.max = room || 1;
        held.meter.value = tokens;
        held.meter.setAttribute("aria-label", `${tier} in use`);
      }
      say(held.text, `${tier} ${thousands(tokens)}${room === null ? "" : ` of ${thousands(room)}`}`);
    }
  }

  choose(name) {
    this.chosen = name;
    for (const [worker, row] of this.rows) {
      row.row.classList.toggle("is-chosen", worker === name);
      row.button.setAttribute("aria-pressed", `${worker === name}`);
    }
    this.onChosen(name);
  }
}
