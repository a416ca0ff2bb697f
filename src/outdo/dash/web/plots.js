// Small charts in SVG and HTML: stacked bars, dots with intervals, parallel coordinates.
import { h, svg } from "./dom.js";
import { DASHES } from "./draw.js";
import { clock, short, typed } from "./format.js";
import { visible } from "./text.js";

export const PATTERNS = ["p0", "p1", "p2", "p3", "p4"];  // colour and hatching, by CSS

/** A piece of a run's line. @param {number} style */
export function swatch(style) {
  const dash = DASHES[style % DASHES.length].join(" ");
  return svg("svg", { class: `swatch line-${style}`, viewBox: "0 0 28 8", "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 28, y1: 4, y2: 4, "stroke-dasharray": dash || null }));
}

/**
 * A stacked bar for each range of steps.
 * @param {{from: number, to: number, values: number[]}[]} bars @param {string[]} names
 */
export function stackedBars(bars, names) {
  const tallest = Math.max(...bars.map((bar) => bar.values.reduce((sum, value) => sum + value, 0)), 1e-9);
  const readout = h("p.dim.num", { role: "status" }, `the tallest bar is ${clock(tallest)} per step`);
  const show = (bar) => {
    const steps = bar.from === bar.to ? `step ${bar.from}` : `steps ${bar.from} to ${bar.to}`;
    const values = names.map((name, i) => bar.values[i] > 5e-4 && `${name} ${short(bar.values[i])} s`).filter(Boolean);
    readout.textContent = [steps, ...values].join(" · ");
  };
  const columns = bars.map((bar) => h("button.column", { type: "button", "aria-label": `steps ${bar.from} to ${bar.to}`,
    onpointerenter: () => show(bar), onfocus: () => show(bar) },
  bar.values.map((value, i) => h(`span.phase.${PATTERNS[i]}`, { style: { height: `${(100 * value) / tallest}%` } }))));
  return h("div", {}, h("div.columns", {}, h("span.most", {}, clock(tallest)), columns),
    h("div.axis", {}, h("span", {}, `step ${bars[0].from}`), h("span", {}, `step ${bars.at(-1).to}`)), readout);
}

/**
 * Rows with a dot and its interval on one scale.
 * @param {{name: string, href?: string, value: number, low?: number|null, high?: number|null,
 *   before?: number|null}[]} rows
 */
export function dots(rows, title) {
  const isNumber = (value) => typeof value === "number";
  const all = rows.flatMap((row) => [row.value, row.low, row.high, row.before]).filter(isNumber);
  const share = all.every((each) => each >= 0 && each <= 1);
  const [low, high] = share ? [0, 1] : [Math.min(...all), Math.max(...all)];
  const at = (value) => `${(100 * (value - low)) / (high - low || 1)}%`;
  return h("div.dots", { role: "list", "aria-label": title }, rows.map((row) => h("div.dot-row", { role: "listitem" },
    row.href ? h("a", { href: row.href }, visible(row.name)) : h("span", {}, visible(row.name)),
    h("div.rail", {},
      isNumber(row.before) && h("i.before", { style: { left: at(row.before) }, title: `before ${short(row.before)}` }),
      isNumber(row.low) && h("i.span", { style: { left: at(row.low), right: `calc(100% - ${at(row.high)})` } }),
      h("i.dot", { style: { left: at(row.value) } })),
    h("span.num", {}, share ? row.value.toFixed(3) : short(row.value)))));
}

/**
 * Parallel coordinates: a line per row across the varied keys, then the results.
 * @param {{name: string, values: Record<string, any>}[]} rows @param {string[]} keys @param {string[]} figures
 * @param {(name: string) => void} onPick
 */
export function parallel(rows, keys, figures, onPick) {
  const axes = [...keys, ...figures];
  const width = Math.max(420, axes.length * 190), tall = 250, top = 34, foot = 20;
  const x = (i) => 60 + (i * (width - 120)) / Math.max(1, axes.length - 1);
  const scales = axes.map((axis, i) => (i < keys.length ? stepsOf : scaleOf)(rows.map((row) => row.values[axis])));
  const y = (part) => tall - foot - part * (tall - top - foot);
  const last = scales.length - 1;
  const lines = rows.map((row) => {
    const points = axes.map((axis, i) => [x(i), scales[i].part(row.values[axis])]).filter(([, part]) => part !== null)
      .map(([px, part]) => `${px},${y(part)}`);
    const good = scales[last].part(row.values[axes[last]]) ?? 0;
    return svg("polyline", { points: points.join(" "), fill: "none", class: "thread", tabindex: 0, role: "img",
      "aria-label": `${visible(row.name)}: ${axes.map((axis) => `${axis} ${formatted(row.values[axis])}`).join(", ")}`,
      "stroke-opacity": (0.25 + 0.75 * good).toFixed(2), "stroke-width": (1 + 2 * good).toFixed(2),
      onpointerenter: () => onPick(row.name), onfocus: () => onPick(row.name) });
  });
  const marks = axes.map((axis, i) => [
    svg("line", { x1: x(i), x2: x(i), y1: top, y2: tall - foot, class: "axis" }),
    svg("text", { x: x(i), y: 14, "text-anchor": "middle", class: "axis-name" }, visible(axis)),
    ...scales[i].ticks.map(([part, word]) =>
      svg("text", { x: x(i) + 6, y: y(part) + 4, class: "axis-tick" }, visible(word))),
  ]);
  const frame = { viewBox: `0 0 ${width} ${tall}`, class: "parallel", role: "group" };
  const picture = svg("svg", { ...frame, "aria-label": "Parallel coordinates" }, lines, marks.flat());
  picture.style.minWidth = `${axes.length * 130}px`;  // narrower labels are unreadable: it scrolls instead
  return picture;
}

const formatted = (value) => (typeof value === "number" ? short(value) : typed(value));

/** Figures: where each lies between the lowest and the highest. */
function scaleOf(values) {
  const has = values.filter((value) => typeof value === "number");
  const [low, high] = [Math.min(...has), Math.max(...has)];
  if (!(high > low)) return { part: (value) => (typeof value === "number" ? 0.5 : null), ticks: [[0.5, short(low)]] };
  const part = (value) => (typeof value === "number" ? (value - low) / (high - low) : null);
  return { part, ticks: [0, 0.5, 1].map((each) => [each, short(low + each * (high - low))]) };
}

/** Values of a key: evenly spaced, in order. */
function stepsOf(values) {
  const order = [...new Set(values.map(typed))].toSorted((a, b) => Number(a) - Number(b) || a.localeCompare(b));
  const place = (i) => (order.length === 1 ? 0.5 : i / (order.length - 1));
  return { part: (value) => place(order.indexOf(typed(value))), ticks: order.map((value, i) => [place(i), value]) };
}
