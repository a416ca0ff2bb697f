// Live curves of a run, or overlaid curves of several runs.
import { get, listen } from "./api.js";
import { chartGroup } from "./chart.js";
import { cardsOf } from "./cards.js";
import { append, load, signals, stepsIn } from "./data.js";
import { h, later, segmented, state } from "./dom.js";
import { runHead } from "./head.js";
import { swatch } from "./plots.js";
import { note, to } from "./route.js";
import { statusMark, trainerTag } from "./runs.js";
import { visible } from "./text.js";
import { warmup } from "./warmup.js";

const SMOOTH = 0.6;  // a step is a small sample: without it the trend is hard to see
const MAX_RUNS = 8;  // overlaid: there are no more distinguishable colours and dashes
const BATCH = 100;  // milliseconds in which events are drawn together

export async function open(scope) {
  const { page, query } = scope;
  const ids = [...new Set(query.getAll("run"))].slice(0, MAX_RUNS);
  if (!ids.length) return page.replaceChildren(state("No run selected", "Select one in the list of runs."));
  const [catalogue, ...runs] = await Promise.all([signals(), ...ids.map((id, i) => load(id, i, scope.signal))]);
  const range = query.get("zoom")?.split(":").map(Number);
  const shown = {
    runs, catalogue, group: chartGroup(), scope,
    x: ["time", "tokens"].includes(query.get("x")) ? query.get("x") : "steps",
    smooth: Math.min(0.99, Math.max(0, Number(query.get("smooth") ?? SMOOTH) || 0)), log: query.get("log") === "1",
  };
  if (range?.length === 2 && range.every(Number.isFinite)) shown.group.range = range;
  const head = runs.length === 1 ? runHead(scope, "run", runs[0].about, runs[0].findings) : severalHead(scope, shown);
  const cards = cardsOf(shown);
  const tools = toolbar(shown, cards);
  tools.hidden = runs.length === 1 && ["sft", "stages"].includes(runs[0].summary.kind);  // no GRPO steps
  page.replaceChildren(head.element, tools, cards.element);
  if (runs.length === 1) page.append(warmup(scope, runs[0]));
  if (runs[0].summary.kind === "stages") page.append(await stagesOf(scope, runs[0]));
  shown.group.onZoom = later(200, (window) => onZoom(shown, cards, window));
  if (shown.group.range) onZoom(shown, cards, shown.group.range);
  scope.onClose(cards.remove);
  scope.onClose(listen(ids, {
    after: () => shown.runs.map((run) => run.metrics.steps.at(-1) ?? -1),
    onBack: () => catchUp(shown, cards, head),
    onState: (state) => scope.live(runs.some((run) => run.summary.status === "running") ? state : "off"),
    onEvent: (kind, data) => onEvent(shown, cards, head, kind, data),
  }));
}

/** A run with stages has no curves itself: each stage is a run. */
async function stagesOf(scope, run) {
  const { runs } = await get("runs", {}, scope.signal);
  const inside = runs.filter((each) => each.id !== run.id && (run.id === "." || each.id.startsWith(`${run.id}/`)));
  inside.sort((a, b) => a.id.localeCompare(b.id));
  return h("section", {}, h("h2", {}, "Stages", h("small.dim", {}, "each is a separate run")),
    h("div.cards", {}, inside.map((each) => h("a.card.sweep-card", { href: to("run", { run: each.id }) },
      h("small.dim", {}, visible(each.kind)), h("b", {}, visible(each.name)), statusMark(each)))));
}

/** Loads what changed while the page was hidden. */
async function catchUp(shown, cards, head) {
  for (const run of shown.runs) {
    const fresh = await load(run.id, run.style, shown.scope.signal).catch((error) => error);
    if (fresh.status === 404) gone(shown, run);
    if (fresh instanceof Error || shown.scope.closed) return;
    Object.assign(run.about, fresh.about);  // the head refers to it
    Object.assign(run, fresh, { about: run.about, window: run.window });
    head.update(run.summary, run.findings);
  }
  cards.update();
}

/** A run that was deleted while it was shown: what was loaded stays, with a notice. */
function gone(shown, run) {
  if (!shown.scope.page.querySelector(".gone")) {
    shown.scope.page.prepend(h("p.notice.gone", { role: "alert" },
      `${visible(run.summary.name)} no longer exists: its folder was moved or deleted. `,
      "This is what was loaded before. ", h("a", { href: "#/runs" }, "All runs")));
  }
  shown.scope.live("off");
}

function onEvent(shown, cards, head, kind, data) {
  const run = shown.runs.find((each) => each.id === data.run);
  if (!run) return;
  if (kind === "reset") return void catchUp(shown, cards, head);
  if (kind === "gone") return gone(shown, run);
  if (kind === "metrics") {
    if (!append(run.metrics, data)) return;
    grow(run);
    if (!run.metrics.exact && run.metrics.steps.length > 1500) return void catchUp(shown, cards, head);
  } else if (kind === "evals") run.evals = mergedEvals(run.evals, data.evals);
  else if (kind === "findings") run.findings = data.findings;
  else if (kind === "status") {
    const ended = run.summary.status === "running" && data.summary.status !== "running";
    run.summary = data.summary;
    if (ended) catchUp(shown, cards, head);  // the doctor reads the complete run
    shown.scope.live(shown.runs.some((each) => each.summary.status === "running") ? "live" : "off");
  }
  shown.due ||= setTimeout(() => {  // several events may arrive at once
    shown.due = 0;
    if (shown.scope.closed) return;
    head.update(run.summary, run.findings);
    cards.update();
  }, BATCH);
}

/** Updates the head from new rows, which come without a summary. */
function grow({ metrics, summary, about }) {
  summary.steps = metrics.total;
  summary.spark = [metrics.series.reward_mean?.mean.at(-1) ?? null];
  about.tokens = metrics.tokens.at(-1) ?? about.tokens;
}

function mergedEvals(old, more) {
  const key = (each) => `${each.step} ${each.split}`;
  return [...new Map([...old, ...more].map((each) => [key(each), each])).values()];
}

/** Loads more detail of the zoomed range, where the curve is downsampled. */
async function onZoom(shown, cards, range) {
  shown.scope.page.querySelector(".reset").hidden = !range;
  note({ zoom: range && range.map((x) => Number(x.toPrecision(6))).join(":") });
  await Promise.all(shown.runs.map(async (run) => {
    const steps = range && !run.metrics.exact ? stepsIn(run.metrics, range, shown.x) : null;
    run.window = steps && await get("metrics",
      { run: run.id, points: 1000, first: steps[0], last: steps[1] }, shown.scope.signal).catch(() => null);
  }));
  if (!shown.scope.closed) cards.update();
}

function toolbar(shown, cards) {
  const out = h("output", {}, shown.smooth.toFixed(2));
  const slider = h("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(shown.smooth),
    "aria-label": "Smoothing", oninput: () => {
      shown.smooth = Number(slider.value);
      out.textContent = shown.smooth.toFixed(2);
      note({ smooth: shown.smooth === SMOOTH ? "" : shown.smooth.toFixed(2) });
      cards.update();
    } });
  const log = h("input", { type: "checkbox", checked: shown.log, onchange: () => {
    shown.log = log.checked;
    note({ log: shown.log && "1" });
    cards.update();
  } });
  const reset = h("button.reset", { type: "button", hidden: !shown.group.range,
    onclick: () => shown.group.zoom(null) }, "Reset zoom");
  return h("div.bar.tools", { role: "toolbar", "aria-label": "Chart options" },
    segmented("X axis", [["steps", "Steps"], ["time", "Time"], ["tokens", "Tokens"]], shown.x, (x) => {
      shown.x = x;
      note({ x: x === "steps" ? "" : x });
      shown.group.zoom(null);
      cards.update();
    }),
    h("label.field", {}, h("span", {}, "Smoothing"), slider, out),
    h("label.check", {}, log, h("span", {}, "Log scale")), reset,
    h("span.dim.hint", {}, "drag to zoom, double-click to reset"));
}

/** The head of several runs: which line is which. */
function severalHead(scope, shown) {
  const ids = shown.runs.map((run) => run.id);
  scope.crumbs({ text: "Runs", href: "#/runs" }, { text: `${ids.length} runs` });
  const element = h("div.run-head", {},
    h("div.headline", {}, h("h1", {}, `${ids.length} runs`),
      h("a.button", { href: to("compare", { run: ids }) }, "Compare")),
    scope.query.getAll("run").length > MAX_RUNS &&
      h("p.dim", {}, `Only the first ${MAX_RUNS} are shown.`),
    h("ul.legend", { "aria-label": "Legend" }, shown.runs.map((run) => h("li", {},
      swatch(run.style), h("a", { href: to("run", { run: run.id }) }, visible(run.summary.name)),
      trainerTag(run.summary),
      h("a.quiet", { href: to("run", { run: ids.filter((id) => id !== run.id) }), title: "Remove",
        "aria-label": `Remove ${visible(run.summary.name)}` }, "×")))));
  return { element, update() {} };
}
