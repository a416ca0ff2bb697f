// Runs side by side: in what they were told to differ, what came of it, and their curves over each other.
import { get } from "./api.js";
import { chartGroup } from "./chart.js";
import { cardsOf } from "./cards.js";
import { load, signals } from "./data.js";
import { h, state } from "./dom.js";
import { interval, share, short, signed, typed } from "./format.js";
import { dots } from "./plots.js";
import { to } from "./route.js";
import { swatch } from "./curves.js";
import { visible } from "./text.js";

const CURVES = ["reward_mean", "success_rate", "kl_mean", "entropy_mean", "group_diversity", "len_mean"];

const FIGURES = [
  ["reward_mean", "reward"], ["kl_mean", "KL"], ["entropy_mean", "entropy"], ["group_diversity", "diversity"],
  ["informative", "informative"], ["len_mean", "length"], ["truncated", "truncated"], ["adv_noise", "advantage noise"],
  ["steps", "steps"], ["seconds", "seconds"], ["tokens_per_s", "tokens/s"],
];

export async function open(scope) {
  const { page, query } = scope;
  const ids = [...new Set(query.getAll("run"))].slice(0, 8);
  if (ids.length < 2) {
    return page.replaceChildren(state("Two runs at least", "Pick them in the list of runs, then Compare.", h("a.button", { href: "#/runs" }, "All runs")));
  }
  const [told, catalogue, ...runs] = await Promise.all([
    get("compare", { run: ids }, scope.signal), signals(), ...ids.map((id, i) => load(id, i, scope.signal)),
  ]);
  scope.crumbs({ text: "Runs", href: "#/runs" }, { text: "Compare" });
  const chosen = catalogue.filter((each) => CURVES.includes(each.name)).map((each) => ({ ...each, also: [] }));
  const shown = { runs, catalogue: chosen, group: chartGroup(), scope, x: "steps", smooth: 0.6, log: false, flat: true };
  const cards = cardsOf(shown);
  const redraw = () => cards.redraw();
  document.addEventListener("theme", redraw);
  scope.onClose(() => { document.removeEventListener("theme", redraw); cards.remove(); });
  page.replaceChildren(
    h("div.headline", {}, h("h1", {}, `${runs.length} runs side by side`),
      h("a.button", { href: to("run", { run: ids }) }, "All their curves")),
    success(runs), tables(told, runs), cards.element);
}

function success(runs) {
  const rows = runs.filter((run) => run.summary.after).map((run) => ({
    name: run.summary.name, href: to("run", { run: run.id }), value: run.summary.after.success,
    low: run.summary.after.low, high: run.summary.after.high, before: run.summary.before?.success,
  }));
  return rows.length > 0 && h("section.card", {}, h("h2", {}, "Held-out success",
    h("small.dim", {}, "dot with its 95% interval; the small tick is before training")), dots(rows, "Held-out success"));
}

/** Keys that differ, then every figure: a column for each run. */
function tables(told, runs) {
  const heads = h("tr", {}, h("td", {}), runs.map((run) => h("th", { scope: "col" }, swatch(run.style),
    h("a", { href: to("run", { run: run.id }) }, visible(run.summary.name)))));
  const line = (title, values, classes = "") => h(`tr${classes}`, {}, h("th", { scope: "row" }, visible(title)),
    values.map((value) => h("td.num", {}, visible(value))));
  const keys = told.keys.map((each) => [each.key, each.values]), figures = figureRows(told);
  return h("section.card", {}, h("h2", {}, "What differs, and what came of it"),
    h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Table of the runs" }, h("table.side", {}, h("thead", {}, heads),
      h("tbody", {}, h("tr.between", {}, h("th", { colspan: runs.length + 1 }, "Keys of the recipe that differ")),
        keys.length ? keys.map(([key, values]) => line(key, values.map(typed), ".mono-row"))
          : h("tr", {}, h("td.dim", { colspan: runs.length + 1 }, "none: only chance differs")),
        h("tr.between", {}, h("th", { colspan: runs.length + 1 }, "What came of it")),
        figures.map(([title, values]) => line(title, values))))),
    told.notes.map((words) => h("p.dim", {}, visible(words))));
}

/** The figures of `outdo compare`, in its order, where a run has them. */
function figureRows(told) {
  const has = ([name]) => told.rows.some((row) => typeof row[name] === "number");
  const each = (call) => told.rows.map(call);
  return [
    ["status", each((row) => row.status)],
    ["held-out success [95%]", each((row) => `${share(row.success_rate)} ${interval(row.low, row.high)}`)],
    ["before", each((row) => share(row.before))],
    ["difference to the first", each((row, i) => (i ? difference(told.differences.find((gap) => gap.run === row.run)) : ""))],
    ...FIGURES.filter(has).map(([name, title]) => [title, each((row) => short(row[name]))]),
    ["findings", each((row) => (row.findings ?? []).join(", ") || "none")],
  ];
}

function difference(gap) {
  if (!gap) return "–";
  return `${signed(gap.difference, 3)} [${signed(gap.low, 3)}, ${signed(gap.high, 3)}]${gap.noise ? ", within noise" : ""}`;
}
