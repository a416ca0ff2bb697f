// Time by phase, speed, memory, and the cost of the run so far.
import { get, listen } from "./api.js";
import { chart, chartGroup } from "./chart.js";
import { append, lineOf, load } from "./data.js";
import { h, later, state } from "./dom.js";
import { clock, count, size } from "./format.js";
import { elapsed, fact, runHead } from "./head.js";
import { note } from "./route.js";
import { PATTERNS, stackedBars } from "./plots.js";

const PHASES = [
  ["rollout", "Rollout", "sampling answers"],
  ["grade", "Grade", "grading them"],
  ["update", "Update", "updating the model"],
  ["save", "Save", "checkpoints"],
  ["other", "Other", "the rest of a step"],
];

export async function open(scope) {
  const { page, query } = scope;
  const run = query.get("run") ?? "";
  const held = await load(run, 0, scope.signal);
  const head = runHead(scope, "resources", held.about, held.findings);
  const body = h("div.resources");
  page.replaceChildren(head.element, body);
  let charts = [];
  const price = { value: Number(query.get("price")) || held.about.recipe?.price_per_hour || 0 };
  const draw = () => {
    charts.forEach((each) => each.remove());
    charts = [];
    const none = () => [state("No finished steps yet", "Times appear after the first step.")];
    body.replaceChildren(...(held.metrics.steps.length ? parts(held, charts, price, draw) : none()));
  };
  draw();
  const redraw = later(1000, async () => {
    held.about = await get("run", { run }, scope.signal).catch(() => held.about);
    if (!scope.closed) draw();
  });
  scope.onClose(() => charts.forEach((each) => each.remove()));
  scope.onClose(listen([run], {
    after: () => [held.metrics.steps.at(-1) ?? -1],
    onState: (state) => scope.live(held.summary.status === "running" ? state : "off"),
    onEvent: (kind, data) => {
      if (kind === "status") head.update((held.summary = data.summary));
      if (kind === "metrics" && append(held.metrics, data)) redraw();
    },
  }));
}

function parts(held, charts, price, draw) {
  const { about } = held;
  return [
    h("section.card", {}, h("h2", {}, "Time by phase"), whole(about)),
    Object.keys(about.phases).length > 0 && h("section.card", {},
      h("h2", {}, "Time by step", h("small.dim", {}, "seconds per step, mean of each range")),
      stackedBars(ranges(held.metrics), PHASES.map(([, word]) => word))),
    h("div.cards", {}, curve(held, charts, "tokens_per_s", "Tokens per second"),
      curve(held, charts, "time/step", "Seconds per step"), memory(held, charts)),
    h("section.card", {}, h("h2", {}, "Cost so far"), cost(about, price, draw)),
  ].filter(Boolean);
}

/** One bar for the whole run, with its figures. */
function whole(about) {
  const { phases } = about;
  const total = PHASES.reduce((sum, [key]) => sum + (phases[key] ?? 0), 0);
  if (!total) return h("p.dim", {}, "Times by phase were not recorded.");
  const has = PHASES.map((phase, i) => [...phase, i]).filter(([key]) => phases[key] > 0);
  const label = has.map(([key, word]) => `${word} ${percent(phases[key] / total)}`).join(", ");
  return [
    h("div.whole", { role: "img", "aria-label": label },
      has.map(([key, , , i]) => h(`div.phase.${PATTERNS[i]}`, { style: { flexGrow: String(phases[key] / total) } }))),
    h("table.plain", {}, h("tbody", {}, has.map(([key, word, what, i]) => h("tr", {},
      h("td", {}, h(`i.phase.key.${PATTERNS[i]}`)), h("th", { scope: "row" }, word, h("small.dim", {}, ` ${what}`)),
      h("td.num", {}, clock(phases[key])), h("td.num", {}, percent(phases[key] / total)))))),
    h("p.dim", {}, `The steps took ${clock(total)} of the ${clock(elapsed(about.summary, about))} since the start; `,
      "the rest is loading, warm-up, evaluation and waiting."),
  ];
}

const percent = (part) => (part > 0 && part < 0.005 ? "< 1%" : `${Math.round(100 * part)}%`);

/** Mean seconds by phase over at most 60 ranges of steps. Grading within the rollout is subtracted from it. */
function ranges(metrics) {
  const of = (name, i) => metrics.series[name]?.mean[i] ?? 0;
  const width = Math.max(1, Math.ceil(metrics.steps.length / 60));
  const found = [];
  for (let i = 0; i < metrics.steps.length; i += width) {
    const rows = Array.from({ length: Math.min(width, metrics.steps.length - i) }, (_, k) => i + k);
    const mean = (name) => rows.reduce((sum, k) => sum + of(name, k), 0) / rows.length;
    const [step, rollout, update, save] = ["time/step", "time/rollout", "time/update", "time/save"].map(mean);
    const grade = Math.min(mean("time/grade"), rollout);
    found.push({
      from: metrics.steps[rows[0]], to: metrics.steps[rows[rows.length - 1]],
      values: [rollout - grade, grade, update, save, Math.max(0, step - rollout - update - save)],
    });
  }
  return found;
}

const group = chartGroup();

function curve(held, charts, name, title) {
  const line = lineOf(held, name, "steps", 0);
  if (!line) return null;
  const plot = h("div.chart"), read = h("div.read");
  charts.push(chart(plot, { title, read, group, lines: [line] }));
  return h("article.card.signal", {}, h("header", {}, h("h3", {}, title), h("span.grow"), read), plot);
}

function memory(held, charts) {
  const name = Object.keys(held.metrics.series).find((each) => /memory|peak/.test(each));
  if (name) return curve(held, charts, name, "Memory");
  return h("article.card.signal", {}, h("header", {}, h("h3", {}, "Memory")),
    held.about.memory ? h("p.big", {}, size(held.about.memory)) : h("p.dim", {}, "Memory was not recorded."));
}

/** Runs of other trainers may not have recorded it: then it is not 0. */
const known = (about, value, format) => (about.summary.trainer && !value ? "not recorded" : format(value));

/** Tokens and device-seconds, and money where a price is given. */
function cost(about, price, draw) {
  const seconds = about.device_seconds, money = (seconds / 3600) * price.value;
  const field = h("input", { type: "number", min: "0", step: "0.1", value: price.value || "", placeholder: "0",
    "aria-label": "Price of a device-hour", onchange: () => {
      price.value = Number(field.value) || 0;
      note({ price: price.value || "" });
      draw();
    } });
  return h("div.standing", {},
    fact("Tokens sampled", known(about, about.tokens, count), about.answers ? `${count(about.answers)} answers` : ""),
    fact("Device time", known(about, seconds, clock),
      seconds > 0 ? `${Math.round(seconds).toLocaleString("en-GB")} device-seconds` : ""),
    about.trained_tokens > 0 && fact("Tokens trained on", count(about.trained_tokens), "SFT included"),
    about.tokens > 0 && fact("Per million tokens", clock((1e6 * seconds) / about.tokens), "of device time"),
    price.value > 0 && fact("Price", money.toFixed(money < 1 ? 4 : 2), `at ${price.value} per hour`),
    h("label.field", {}, h("span", {}, "Price of a device-hour"), field));
}
