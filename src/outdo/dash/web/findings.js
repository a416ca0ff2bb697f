// The doctor's findings on a run: explanation, evidence on the curve, the change to make.
import { listen } from "./api.js";
import { chart } from "./chart.js";
import { bandsOf, evalPoints, isFailure, lineOf, load, signals } from "./data.js";
import { copyButton, h, state } from "./dom.js";
import { SEVERITY, typed } from "./format.js";
import { runHead } from "./head.js";
import { to } from "./route.js";
import { withCode, visible } from "./text.js";

const DIRECTIONS = { up: "rises", down: "falls", steady: "holds" };

export async function open(scope) {
  const { page, query } = scope;
  const run = query.get("run") ?? "";
  const [held, catalogue] = await Promise.all([load(run, 0, scope.signal), signals()]);
  const head = runHead(scope, "findings", held.about, held.findings);
  const list = h("div.finding-list");
  page.replaceChildren(head.element, list);
  let charts = [];
  const draw = () => {
    head.update(held.summary, held.findings);
    charts.forEach((each) => each.remove());
    charts = [];
    list.replaceChildren(...parts(held, catalogue, charts));
  };
  draw();
  scope.onClose(() => charts.forEach((each) => each.remove()));
  scope.onClose(listen([run], {
    onEvent: (kind, data) => {
      if (kind === "status") head.update((held.summary = data.summary), held.findings);
      if (kind === "findings" && JSON.stringify(data.findings) !== JSON.stringify(held.findings)) {
        held.findings = data.findings;
        draw();
      }
    },
  }));
}

function parts(held, catalogue, charts) {
  const now = held.findings.filter((finding) => !finding.past && isFailure(finding));
  const notes = held.findings.filter((finding) => !finding.past && !isFailure(finding));
  const past = held.findings.filter((finding) => finding.past);
  const made = now.map((finding) => card(held, catalogue, charts, finding));
  if (!now.length) made.push(healthy(notes, held));
  else made.push(...notes.map((finding) => card(held, catalogue, charts, finding)));
  if (past.length) {
    const note = h("small.dim", {}, "Reported during the run; the complete history does not show it.");
    made.push(h("h2", {}, "No longer holds", note),
      ...past.map((finding) => card(held, catalogue, charts, finding)));
  }
  return made;
}

function healthy(notes, held) {
  if (!held.metrics.steps.length) {
    return state("No diagnosis yet", "The doctor reads the curves; there are none so far.");
  }
  const early = notes.some((finding) => ["too_early", "too_little_data"].includes(finding.code));
  const explanation = notes.map((finding) => visible(finding.what)).filter(Boolean).join(" ");
  return state(early ? "Too early to say" : "✓ No findings",
    explanation || "No rule of the doctor fires on these curves.",
    h("p", {}, h("a.button", { href: to("run", { run: held.id }) }, "Show curves")));
}

function card(held, catalogue, charts, finding) {
  const severity = finding.severity in SEVERITY ? finding.severity : "info";
  const names = finding.signals.filter((name) => curveOf(held, name).lines.length).slice(0, 3);
  const text = h("div", {}, h("dl", {},
      row("Evidence", h("span.mono", {}, visible(finding.evidence))),
      finding.why && row("Why", withCode(finding.why)),
      finding.do && row("Do", withCode(finding.do)),
      finding.expect && row("Expect", visible(finding.expect.words ??
        `${finding.expect.signal} ${DIRECTIONS[finding.expect.direction]} within ${finding.expect.steps} steps`)),
      finding.also?.length > 0 && row("Also seen", visible(`explained by it: ${finding.also.join(", ")}`)),
      finding.page && row("Page", h("span.mono", {}, visible(finding.page)))),
    finding.change && change(finding.change));
  const curves = names.map((name) => evidenceChart(held, catalogue, charts, finding, name));
  return h(`article.card.finding.${finding.past ? "past" : severity}`, { "aria-label": visible(finding.code) },
    h("header", {}, h(`span.tag.${severity}`, {}, SEVERITY[severity], " ", severity),
      h("h3", {}, visible(finding.what || finding.code)), h("span.grow"),
      h("span.dim", {}, h("code", {}, visible(finding.code)), ` since step ${finding.step}`)),
    h("div.halves", {}, text, curves.length > 0 && h("div", {}, curves)));
}

const row = (title, value) => [h("dt", {}, title), h("dd", {}, value)];

/** The change, as an override for `outdo train`. */
function change(made) {
  const override = made.override ?? `${made.key}=${typed(made.to)}`;
  return h("div.change", {}, h("span.do", {}, "Change"), h("code", {}, visible(override)), copyButton(override),
    h("span.dim", {}, visible(made.words ?? `${made.key}: ${typed(made.from)} → ${typed(made.to)}`)));
}

/** A signal of the evidence: a curve of the run, or its evaluations. */
function curveOf(held, name) {
  if (name !== "eval_success_rate") return { lines: [lineOf(held, name, "steps", 0)].filter(Boolean), points: [] };
  const points = evalPoints(held, held.evals[0]?.split, "steps", 0);
  const line = { name, x: points.map((each) => each.x), y: points.map((each) => each.y) };
  return { points, lines: points.length ? [line] : [] };
}

/** The signal's curve, shaded from the step of the finding on. */
function evidenceChart(held, catalogue, charts, finding, name) {
  const entry = catalogue.find((each) => each.name === name || each.also?.includes(name));
  const plot = h("div.chart"), read = h("div.read");
  const { lines, points } = curveOf(held, name);
  const until = Math.max(...lines[0].x);
  charts.push(chart(plot, {
    title: name, read, lines, points, bands: entry && entry.name === name ? bandsOf(entry) : [],
    marks: [{ x: Math.min(finding.step, until), label: finding.code, severity: finding.severity, until }],
  }));
  return h("figure.signal", {}, h("header", {}, h("h4.mono", {}, visible(name)), h("span.grow"), read), plot);
}
