// Runs side by side: recipe keys that differ, results, and overlaid curves.
import { significance } from "./answers.js";
import { get } from "./api.js";
import { chartGroup } from "./chart.js";
import { cardsOf } from "./cards.js";
import { load, signals } from "./data.js";
import { h, state } from "./dom.js";
import { interval, share, short, signed, typed } from "./format.js";
import { dots, swatch } from "./plots.js";
import { to } from "./route.js";
import { trainerTag } from "./runs.js";
import { visible } from "./text.js";

const CURVES = ["reward_mean", "success_rate", "kl_mean", "entropy_mean", "group_diversity", "len_mean"];

const FIGURES = [
  ["reward_mean", "training reward"], ["kl_mean", "KL"], ["entropy_mean", "entropy"], ["group_diversity", "diversity"],
  ["informative", "informative"], ["len_mean", "length"], ["truncated", "truncated"], ["adv_noise", "advantage noise"],
  ["steps", "steps"], ["seconds", "seconds"],
  ["device_seconds", "device-seconds"], ["price", "price"], ["tokens_per_s", "tokens/s"],
];

export async function open(scope) {
  const { page, query } = scope;
  const ids = [...new Set(query.getAll("run"))].slice(0, 8);
  if (ids.length < 2) {
    const back = h("a.button", { href: "#/runs" }, "All runs");
    return page.replaceChildren(state("Select at least two runs", "In the list of runs, then Compare.", back));
  }
  const figures = get("compare", { run: ids }, scope.signal);  // slow: it reads answers
  const [catalogue, ...runs] = await Promise.all([signals(), ...ids.map((id, i) => load(id, i, scope.signal))]);
  scope.crumbs({ text: "Runs", href: "#/runs" }, { text: "Compare" });
  const chosen = catalogue.filter((each) => CURVES.includes(each.name)).map((each) => ({ ...each, also: [] }));
  const looks = { x: "steps", smooth: 0.6, log: false, flat: true };
  const shown = { runs, catalogue: chosen, group: chartGroup(), scope, ...looks };
  const cards = cardsOf(shown);
  scope.onClose(cards.remove);
  const table = h("p.state.waiting", {}, "Loading figures …"), answers = h("section.card", { hidden: true });
  page.replaceChildren(
    h("div.headline", {}, h("h1", {}, `${runs.length} runs side by side`),
      h("a.button", { href: to("run", { run: ids }) }, "Overlay curves")),
    success(runs), answers, table, cards.element);
  fillAnswers(answers, ids, scope);
  table.replaceWith(tables(await figures, runs));
}

/** How many held-out answers each run gained and lost against the first. */
async function fillAnswers(element, [first, ...others], scope) {
  const pages = await Promise.all(others.map((other) =>
    get("answers", { run: first, other, limit: 1 }, scope.signal).catch(() => null)));
  const rows = others.map((other, i) => pages[i]?.changes && h("p", {},
    h("a", { href: to("answers", { run: first, other }) }, visible(other)), " ", significance(pages[i].changes)));
  if (!rows.some(Boolean)) return;
  const split = pages.find((page) => page?.changes).changes.split;
  element.hidden = false;
  const how = h("small.dim", {}, `${visible(split)}, against the first run`);
  element.replaceChildren(h("h2", {}, "Held-out answers", how), ...rows.filter(Boolean));
}

function success(runs) {
  const rows = runs.filter((run) => run.summary.after).map((run) => ({
    name: run.summary.name, href: to("run", { run: run.id }), value: run.summary.after.success,
    low: run.summary.after.low, high: run.summary.after.high, before: run.summary.before?.success,
  }));
  if (!rows.length) return "";
  const how = h("small.dim", {}, "dot with 95% interval; the small tick is before training");
  return h("section.card", {}, h("h2", {}, "Held-out success", how), dots(rows, "Held-out success"));
}

/** Keys that differ, then every figure: a column for each run. */
function tables(comparison, runs) {
  const heads = h("tr", {}, h("td", {}), runs.map((run) => h("th", { scope: "col" }, swatch(run.style),
    h("a", { href: to("run", { run: run.id }) }, visible(run.summary.name)), trainerTag(run.summary))));
  const line = (title, values, classes = "") => h(`tr${classes}`, {}, h("th", { scope: "row" }, visible(title)),
    values.map((value) => h("td.num", {}, visible(value))));
  const across = { colspan: runs.length + 1 };
  const keys = comparison.keys.map((each) => line(each.key, each.values.map(typed), ".mono-row"));
  const body = h("tbody", {},
    h("tr.between", {}, h("th", across, "Recipe keys that differ")),
    keys.length ? keys : h("tr", {}, h("td.dim", across, "none")),
    h("tr.between", {}, h("th", across, "Results")),
    figureRows(comparison).map(([title, values]) => line(title, values)));
  return h("section.card", {}, h("h2", {}, "Recipe and results"),
    h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Comparison table" },
      h("table.side", {}, h("thead", {}, heads), body)),
    comparison.notes.map((note) => h("p.dim", {}, visible(note))));
}

/** The figures of `outdo compare`, in its order, where a run has them. */
function figureRows(comparison) {
  const has = ([name]) => comparison.rows.some((row) => typeof row[name] === "number");
  const each = (call) => comparison.rows.map(call);
  return [
    ["status", each((row) => row.status)],
    ...splitRows(comparison, each),
    ...FIGURES.filter(has).map(([name, title]) => [title, each((row) => short(row[name]))]),
    ["findings", each((row) => (row.findings ?? []).join(", ") || "none")],
  ];
}

/** Success, sampled success and, with partial credit, reward of every split. */
function splitRows(comparison, each) {
  const splits = [...new Set(comparison.rows.flatMap((row) => Object.keys(row.splits ?? {})))];
  return splits.flatMap((split) => {
    const of = (row) => row.splits?.[split] ?? {};
    const against = (measure) =>
      ["difference from the first", each((row, i) => (i ? difference(comparison, row.run, split, measure) : ""))];
    const rewards = comparison.rows.some((row) => of(row).partial);
    return [
      [`${split}: success [95%]`, each((row) =>
        `${share(of(row).success_rate)} ${interval(of(row).low, of(row).high)}`)],
      ["before", each((row) => share(of(row).before))],
      against("success"),
      [`${split}: sampled success`, each((row) => share(of(row).passes?.["pass@1"]?.value))],
      ...(rewards ? [
        [`${split}: reward [95%]`, each((row) =>
          `${share(of(row).reward)} ${interval(of(row).reward_low, of(row).reward_high)}`)],
        against("reward"),
      ] : []),
    ];
  });
}

function difference(comparison, run, split, measure) {
  const gap = comparison.differences.find((each) =>
    each.run === run && each.split === split && each.measure === measure);
  if (!gap) return "–";
  const [value, low, high] = [gap.difference, gap.low, gap.high].map((each) => signed(each, 3));
  return `${value} [${low}, ${high}]${gap.noise ? ", within noise" : ""}`;
}
