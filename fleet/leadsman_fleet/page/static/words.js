// How numbers read, and how elements are made. Text is always set as text.

export const seconds = (s) =>
  s === null || Number.isNaN(s) ? "–" : s >= 1e6 ? "never" : s >= 100 ? `${s.toFixed(0)} s`
    : s >= 1 ? `${s.toFixed(2)} s` : `${(1000 * s).toFixed(0)} ms`;

export const tick = (s) => (s >= 1 ? `${+s.toPrecision(3)} s` : `${+(1000 * s).toPrecision(3)} ms`);

// A logarithmic axis of uPlot: lines at 1, 2 and 5, of which the ones are named.
export const decades = (name) => ({
  splits: (u, axis, least, most) => {
    const found = [];
    for (let ten = Math.floor(Math.log10(least)); ten <= Math.log10(most); ten++)
      for (const n of [1, 2, 5]) found.push(+(n * 10 ** ten).toPrecision(1));
    return found.filter((s) => s >= least * 0.999 && s <= most * 1.001);
  },
  filter: (_, splits) => splits,
  values: (_, splits) => splits.map((s) => (Math.abs(Math.log10(s) % 1) < 1e-9 ? name(s) : "")),
});

export const thousands = (n) =>
  n >= 1e6 ? `${(n / 1e6).toFixed(2)}M` : n >= 1000 ? `${(n / 1000).toFixed(1)}K` : `${n}`;

export const percent = (part, whole) =>
  whole ? `${(100 * part / whole).toFixed(part && part < whole ? 1 : 0)} %` : "–";

// The prefill of n tokens alone, by what prices now.
export const alone = ({ now: [prompt, step, a, b], step_tokens: most }, n) =>
  prompt + step * Math.ceil(n / most) + n * (a + b * n);

export const clock = (at) => new Date(1000 * at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });

export const plain = (name) => name.replaceAll("_", " ");

export const COLOURS = ["#1f6feb", "#d9480f", "#2b8a3e", "#862e9c", "#0b7285", "#c2255c", "#5c7c00",
  "#e67700", "#087f5b", "#a61e4d", "#1098ad", "#9c36b5"];
const PALE = ["#6ea8ff", "#ff9a6b", "#69d07e", "#d49be6", "#5cc8d9", "#ff8fb2", "#b3cf52",
  "#ffbe5c", "#4fcfa3", "#f083a8", "#66d5e6", "#dfa1f0"];

const isDark = matchMedia("(prefers-color-scheme: dark)");
export const palette = () => (isDark.matches ? PALE : COLOURS);
const known = new Map();
isDark.addEventListener("change", () => known.clear());

// A colour of page.css as the canvas wants it. Asked of a node, and so only once for each theme.
export const colour = (name) => {
  if (!known.has(name)) known.set(name, asked(name));
  return known.get(name);
};
const asked = (name) => {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};
export const onTheme = (told) => isDark.addEventListener("change", told);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Change a text only where it changed: a screen reader would read it again, and nodes would be made.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
