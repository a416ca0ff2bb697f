// A card for each signal: its curve, what it means, and what to do when it is bad.
import { chart } from "./chart.js";
import { bandsOf, evalPoints, lineOf, marksOf, named } from "./data.js";
import { h, state } from "./dom.js";
import { GLYPHS } from "./draw.js";
import { share } from "./format.js";
import { withCode, visible } from "./text.js";

const SECTIONS = [
  ["reward", "Reward", "Is it learning, and is the gain real?"],
  ["policy", "Policy", "How far and how fast it moves from the starting model."],
  ["groups", "Groups", "Whether the answers of a group differ: without spread there is nothing to learn from."],
  ["length", "Length", "What an answer costs."],
  ["turns", "Turns", "What the model does with its turns and tools, and what it is answered."],
  ["optimizer", "Optimizer", "Learning rate and the size of updates."],
  ["machine", "Machine", "Speed, and the health of graders and sampler."],
];

/**
 * All cards of what is shown. `update` draws what is new and adds cards for new signals.
 * @param {any} shown see curves.js
 */
export function cardsOf(shown) {
  const element = h("div.sections"), opened = new Set();
  let cards = [], shownKey = null;
  const build = (all) => {
    cards.forEach((card) => card.chart.remove());
    const entries = all.filter((entry) => !isStill(shown, entry) || opened.has(entry.name));
    cards = entries.map((entry) => card(shown, entry));
    if (shown.flat) return element.replaceChildren(h("div.cards", {}, cards.map((each) => each.element)));
    const parts = SECTIONS.map(([key, title, about]) => {
      const own = cards.filter((_, i) => entries[i].section === key);
      const still = all.filter((entry) => entry.section === key && !entries.includes(entry));
      return own.length + still.length > 0 && h("section", { "aria-label": title },
        h("h2", {}, title, h("small.dim", {}, about)), h("div.cards", {}, own.map((each) => each.element)),
        still.length > 0 && h("p.still", {}, "Always 0: ", still.map((entry) => stillButton(entry, () => {
          opened.add(entry.name);
          update();
        }))));
    }).filter(Boolean);
    element.replaceChildren(...(parts.length ? parts : [nothingYet(shown)]));
  };
  const update = () => {
    const all = entriesOf(shown);
    const key = all.map((entry) => [...entry.names, isStill(shown, entry), opened.has(entry.name)].join()).join("|");
    if (key !== shownKey) build(all);
    shownKey = key;
    cards.forEach((each) => each.update());
  };
  update();
  return {
    element, update,
    remove: () => cards.forEach((each) => each.chart.remove()),
  };
}

/** Whether a signal that is bad above zero was always zero: its chart is folded to a button. */
function isStill(shown, entry) {
  if (!(entry.bad_band?.[0] > 0)) return false;
  const values = shown.runs.flatMap((run) => entry.names.flatMap((name) => run.metrics.series[name]?.mean ?? []));
  return values.length > 0 && values.every((value) => value === 0 || value === null);
}

function stillButton(entry, onclick) {
  return h("button", { type: "button", title: "Show the chart", "data-still": entry.name, onclick },
    visible(entry.title || entry.name));
}

function nothingYet(shown) {
  if (["sft", "stages"].includes(shown.runs[0].summary.kind)) return "";
  const running = shown.runs.some((run) => run.summary.status === "running");
  return state("No finished steps yet", running
    ? "The run is loading, warming up or evaluating. Curves appear after the first step."
    : "This run has no GRPO steps; see below, or its Recipe page.");
}

/** The charts that have data. Several runs over each other get a chart for each signal, one run may share one. */
function entriesOf(shown) {
  const several = shown.runs.length > 1;
  const has = (name) => shown.runs.some((run) => lineOf(run, name, "steps", 0));
  const series = Object.assign({}, ...shown.runs.map((run) => run.metrics.series));
  const found = shown.catalogue.flatMap((entry) => {
    const names = [entry.name, ...(entry.also ?? [])].flatMap((each) => named(each, series)).filter(has);
    if (!names.length || (entry.name.endsWith("*") && names.length < 2 && !entry.name.startsWith("time"))) return [];
    if (!several || names.length === 1) return [{ ...entry, names }];
    const bare = { good_band: null, bad_band: null };  // bands are those of the first
    return names.map((name) => ({ ...entry, names: [name], ...(name === entry.name ? {} : { title: name, ...bare }) }));
  });
  return withEvals(shown, found);
}

/** Held-out success is a chart of its own beside what the training prompts show. */
function withEvals(shown, found) {
  if (!shown.runs.some((run) => run.evals.length)) return found;
  return [{
    names: [], name: "held-out", title: "Held-out success", section: "reward", bands: [],
    what: "Problems that are not in training, with 95% intervals.",
    good: "rises with the reward",
    bad: "flat while the reward rises: the reward is gamed, or the prompts are memorized",
  }, ...found];
}

function card(shown, entry) {
  const read = h("div.read"), plot = h("div.chart"), legend = h("div.series");
  const tag = h("span.verdict"), unit = entry.unit && h("small.dim", {}, ` ${entry.unit}`);
  let log = Boolean(entry.log);
  const toggle = h("button.tiny", { type: "button", "aria-pressed": String(log), title: "Log scale",
    onclick: () => { log = !log; toggle.setAttribute("aria-pressed", String(log)); update(); } }, "log");
  const wide = h("button.tiny", { type: "button", "aria-pressed": "false", title: "Larger", "aria-label": "Larger",
    onclick: () => wide.setAttribute("aria-pressed", String(element.classList.toggle("wide"))) }, "⤢");
  const element = h("article.card.signal", { "data-signal": entry.name },
    h("header", {},
      h("h3", { title: entry.names.join(", ") }, visible(entry.title || entry.name), unit), tag, h("span.grow"), read),
    h("div.tiny-tools", {}, toggle, wide),
    plot, legend, h("p.what", {}, withCode(entry.what)),
    entry.bad && h("p.bad", {}, h("b", {}, "When bad: "), withCode(entry.bad)));
  const drawn = chart(plot, { title: entry.title || entry.name, group: shown.group, read, bands: bandsOf(entry) });
  const update = () => {
    const { lines, points, names } = contentOf(shown, entry);
    const marks = shown.runs.length === 1 ? marksOf(shown.runs[0], entry.names, shown.x) : [];
    const smooth = entry.names.length ? shown.smooth : 0;  // evaluations are few and have their intervals
    drawn.set({ marks, lines, points, smooth, log: log || shown.log, xKind: shown.x });
    legend.replaceChildren(...names.map(([style, name]) =>
      h("span", {}, h(`i.line-${style}`, { "aria-hidden": "true" }, GLYPHS[style % 8]), visible(name))));
    element.classList.toggle("failing", marks.length > 0);
    judge(tag, entry, lines);
  };
  return { element, chart: drawn, update };
}

/** Lines and points, and what they are called where that is not said elsewhere. */
function contentOf(shown, entry) {
  const several = shown.runs.length > 1;
  if (entry.name === "held-out") return evalContent(shown, several);
  const lines = shown.runs.flatMap((run) => entry.names.map((name, i) =>
    lineOf(run, name, shown.x, several ? run.style : i, several ? run.summary.name : name))).filter(Boolean);
  const names = !several && entry.names.length > 1 ? entry.names.map((name, i) => [i, name]) : [];
  return { lines, points: [], names };
}

function evalContent(shown, several) {
  const splits = [...new Set(shown.runs.flatMap((run) => run.evals.map((each) => each.split)))];
  const used = several ? splits.slice(0, 1) : splits;
  const of = (run) => (several && !run.evals.some((each) => each.split === used[0])  // of another trainer: its own
    ? run.evals.slice(0, 1).map((each) => each.split) : used);
  const points = shown.runs.map((run) =>
    of(run).map((split, i) => evalPoints(run, split, shown.x, several ? run.style : i)));
  const lines = points.flatMap((each, k) => each.map((row, i) => ({
    name: several ? [shown.runs[k].summary.name, ...of(shown.runs[k]).filter((split) => split !== used[0])].join(", ")
      : used[i], style: several ? shown.runs[k].style : i,
    x: row.map((point) => point.x), y: row.map((point) => point.y),
  }))).filter((line) => line.x.length);
  const names = several ? [] : used.map((split, i) => [i, withPasses(shown.runs[0], split)]);
  return { lines, points: points.flat(2), names };
}

/** A split with its pass@k, before and now: "test, pass@1 0.42 → 0.93". */
function withPasses(run, split) {
  const rows = run.evals.filter((each) => each.split === split);
  const [first, last] = [rows[0], rows[rows.length - 1]].map((row) => row?.pass_at ?? {});
  const parts = Object.keys(last).sort((a, b) => a - b).map((k) => rows.length > 1 && k in first
    ? `pass@${k} ${first[k].toFixed(2)} → ${last[k].toFixed(2)}` : `pass@${k} ${last[k].toFixed(2)}`);
  const [before, after] = [rows[0], rows[rows.length - 1]].map((row) => row?.reward);
  if (typeof after === "number" && rows.some((row) => Math.abs(row.reward - row.success) > 1e-5)) {
    parts.push(rows.length > 1 ? `reward ${share(before)} → ${share(after)}` : `reward ${share(after)}`);
  }
  return [split, ...parts].join(", ");
}

/** The band of the latest values. Whether that is a failure mode is the doctor's call, which reads all curves. */
function judge(tag, entry, lines) {
  const last = (lines[0]?.y ?? []).filter((value) => value !== null).slice(-5);
  const mean = last.reduce((sum, value) => sum + value, 0) / last.length;
  const within = (band) => band && last.length > 0 && mean >= (band[0] ?? -Infinity) && mean <= (band[1] ?? Infinity);
  const kind = lines.length > 0 && within(entry.bad_band) ? "bad" : within(entry.good_band) ? "good" : "";
  tag.className = `verdict ${kind}`;
  tag.textContent = { bad: "! check", good: "✓ good", "": "" }[kind];
  tag.title = kind && `The latest values are in the ${kind} band.`;
}
