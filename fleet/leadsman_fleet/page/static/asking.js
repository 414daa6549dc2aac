// Finds decisions, and shows the screen of `leadsman explain` on one.

import { element, plain } from "./words.js";

export class Asking {
  constructor(pool) {
    this.pool = pool;
    this.dialog = document.getElementById("explained");
    this.screen = document.getElementById("screen");
    this.title = document.getElementById("explained-title");
    this.found = document.getElementById("found");
    document.getElementById("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.find(document.getElementById("like").value);
    });
    this.found.querySelector(".title button").addEventListener("click", () => this.close());
  }

  close() {
    this.found.hidden = true;
    document.getElementById("like").focus();
  }

  ask(what, about) {
    return fetch(`${what}?${new URLSearchParams({ ...about, pool: this.pool() })}`);
  }

  async find(like) {
    const answer = await this.ask("requests", { like });
    const found = answer.ok ? await answer.json() : [];
    const list = this.found.querySelector("ul");
    list.replaceChildren(...found.map((one) => {
      const button = element("button", { className: "link", type: "button", textContent: one.request });
      button.addEventListener("click", () => this.explain(one.request));
      const when = new Date(1000 * one.at).toLocaleTimeString();
      const became = one.is_refused ? `refused: ${plain(one.became)}` : one.became;
      return element("li", {}, button, element("div", { className: "quiet", textContent: `${when}, ${one.model}, ${became}` }));
    }));
    if (!found.length) list.append(element("li", { className: "quiet", textContent: "None of the last decisions has that." }));
    this.found.hidden = false;
    (list.querySelector("button") ?? this.found).focus?.();
  }

  async explain(request) {
    const answer = await this.ask("explain", { request });
    this.title.textContent = request;
    if (answer.ok) this.screen.replaceChildren(...screen(await answer.json()));
    else this.screen.replaceChildren(element("p", { textContent: "It is not remembered here any more, or was decided elsewhere: leadsman explain reads older records." }));
    if (!this.dialog.open) this.dialog.showModal();
  }
}

function screen(told) {
  const line = (text, more = {}) => element("p", { textContent: text, ...more });
  const shown = [line(told.asked, { className: "quiet" }), element("p", {}, element("strong", { textContent: told.verdict })),
    line(`Allowed: ${told.allowed}`)];
  if (told.prices.length) {
    const cell = (text, i, tag) => element(tag, { textContent: text, className: i && i < told.columns.length - 1 ? "number" : "" });
    const head = told.columns.map((name, i) => Object.assign(cell(name, i, "th"), { scope: "col" }));
    const rows = told.prices.map((one) => element("tr", { className: one.kind }, ...one.cells.map((text, i) => cell(text, i, "td"))));
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
    shown.push(element("div", { className: "wide", tabIndex: 0 }, table));
    shown.push(line("≤: at the budget's confidence. spared: prefill by what is cached. ahead: requests/tokens.", { className: "quiet" }));
  }
  if (told.because.length) shown.push(element("ul", {}, ...told.because.map((text) => element("li", { textContent: text }))));
  return [...shown, ...told.then.map((text) => line(text))];
}
