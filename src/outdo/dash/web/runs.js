// All runs with their status and results, and a selection of several.
import { get } from "./api.js";
import { h, select, state, svg } from "./dom.js";
import { beside, interval, otherSplits, parsed, SEVERITY, share, STATUS, when } from "./format.js";
import { note, to } from "./route.js";
import { visible } from "./text.js";

const COLUMNS = [  // key, title, what it is sorted by
  ["name", "Run", (run) => run.id.toLowerCase()],
  ["status", "Status", (run) => run.status],
  ["steps", "Steps", (run) => run.steps],
  ["reward", "Reward", (run) => run.spark.findLast((value) => value !== null)],
  ["before", "Before", (run) => run.before?.success],
  ["after", "Held-out success", (run) => run.after?.success],
  ["findings", "Findings", (run) => failures(run).length],
  ["started", "Started", (run) => parsed(run.started)?.getTime()],
];
const POLL = 4000;  // milliseconds between two requests

export async function open(scope) {
  const { page, query } = scope;
  const seen = {
    q: query.get("q") ?? "", status: query.get("status") ?? "", sort: query.get("sort") ?? "started",
    order: query.get("order") ?? "desc", cells: query.get("cells") === "1", picked: new Set(), rows: new Map(),
  };
  let found = await get("runs", {}, scope.signal);
  const draw = () => drawAll(page, found, seen, draw);
  draw();
  const timer = setInterval(async () => {
    if (document.hidden) return;
    const next = await get("runs", {}, scope.signal).catch(() => null);
    if (scope.closed) return;
    scope.live(next ? "off" : "waiting");
    if (!next) return;
    found = next;
    draw();
  }, POLL);
  scope.onClose(() => clearInterval(timer));
}

function drawAll(page, found, seen, draw) {
  if (!found.runs.length && !found.sweeps.length) {
    page.replaceChildren(state("No runs yet", `${visible(found.root)} holds no runs. Start one there:`,
      h("pre", {}, "outdo train"), h("p.dim", {}, "It appears here by itself.")));
    return;
  }
  if (!page.querySelector("table")) page.replaceChildren(...frame(found, seen, draw));
  const inSweep = (run) => found.sweeps.some((sweep) => sweep.id === "." || run.id.startsWith(`${sweep.id}/`));
  const cells = found.runs.filter(inSweep).length;
  const mixed = cells > 0 && cells < found.runs.length;
  const all = !mixed || seen.cells || seen.q;
  const shown = sorted(found.runs.filter((run) => matches(run, seen) && (all || !inSweep(run))), seen);
  fillRows(page.querySelector("tbody"), shown, seen, draw);
  page.querySelector(".cells").hidden = !mixed;
  page.querySelector(".cells span").textContent = `include the ${cells} runs of sweeps`;
  page.querySelector(".none").hidden = shown.length > 0;
  page.querySelector("table.runs").hidden = shown.length === 0;
  page.querySelector(".tally").textContent = shown.length === 1 ? "1 run" : `${shown.length} runs`;
  for (const head of page.querySelectorAll("th[data-key]")) {
    const mine = head.dataset.key === seen.sort;
    head.setAttribute("aria-sort", mine ? (seen.order === "asc" ? "ascending" : "descending") : "none");
  }
  drawPicked(page.querySelector(".picked"), found, seen, draw);
}

function frame(found, seen, draw) {
  const set = (changes) => {
    Object.assign(seen, changes);
    const { q, status, sort, order } = seen;
    note({ q, status, sort: sort === "started" ? "" : sort, order: order === "desc" ? "" : order });
    note({ cells: seen.cells && "1" });
    draw();
  };
  const heads = COLUMNS.map(([key, title]) => h(`th.${key}`, { "data-key": key, scope: "col" },
    h("button", { type: "button", onclick: () => set({ sort: key, order: orderOf(seen, key) }) }, title)));
  const statuses = [["", "any status"], ...Object.entries(STATUS).map(([key, [, word]]) => [key, word])];
  return [
    h("div.headline", {}, h("h1", {}, "Runs"), h("span.tally.dim", {}), h("span.dim.root", {}, visible(found.root))),
    found.sweeps.length > 0 && h("div.sweeps", {}, found.sweeps.map(sweepCard)),
    h("div.bar", {},
      h("input", { type: "search", "aria-label": "Filter runs", value: seen.q,
        placeholder: "Filter by name, task, model, finding …  /", oninput: (event) => set({ q: event.target.value }) }),
      select("Status", statuses, seen.status, (status) => set({ status })),
      h("label.check.cells", {}, h("input", { type: "checkbox", checked: seen.cells,
        onchange: (event) => set({ cells: event.target.checked }) }), h("span", {}))),
    h("table.runs", {}, h("thead", {}, h("tr", {}, h("th.pick", { scope: "col" }, h("span.aside", {}, "Select")),
      heads)),
      h("tbody", {})),
    h("p.state.none", {}, "No run matches this filter."),
    h("div.picked", { role: "region", "aria-label": "Selected runs" }),
  ].filter(Boolean);
}

function orderOf(seen, key) {
  if (seen.sort !== key) return key === "name" || key === "status" ? "asc" : "desc";
  return seen.order === "asc" ? "desc" : "asc";
}

function sweepCard(sweep) {
  return h("a.card.sweep-card", { href: to("sweep", { sweep: sweep.id }) },
    h("small.dim", {}, visible(`Sweep · ${sweep.id}`)), h("b", {}, visible(sweep.title || sweep.id)),
    h("span.dim", {}, `${sweep.done} of ${sweep.cells} cells done`));
}

function matches(run, seen) {
  if (seen.status && run.status !== seen.status) return false;
  const codes = run.findings.map((each) => each.code);
  const text = [run.id, run.task, run.model, run.kind, run.trainer, run.status, ...codes].join(" ");
  return seen.q.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
}

function sorted(runs, seen) {
  const [, , by] = COLUMNS.find(([key]) => key === seen.sort) ?? COLUMNS[0];
  const way = seen.order === "asc" ? 1 : -1;
  return runs.toSorted((a, b) => {
    const [x, y] = [by(a) ?? null, by(b) ?? null];
    if (x === null || y === null) return (x === null) - (y === null);  // missing values come last
    return x < y ? -way : x > y ? way : 0;
  });
}

/** Unchanged rows stay the same elements, which keeps the focus. */
function fillRows(body, runs, seen, draw) {
  const rows = runs.map((run) => {
    const text = JSON.stringify(run);
    const cached = seen.rows.get(run.id);
    if (cached?.text === text) return cached.row;
    const row = rowOf(run, seen, draw);
    seen.rows.set(run.id, { text, row });
    return row;
  });
  const same = rows.length === body.children.length && rows.every((row, i) => body.children[i] === row);
  if (!same) body.replaceChildren(...rows);
}

const failures = (run) => run.findings.filter((finding) => finding.severity !== "info");

function rowOf(run, seen, draw) {
  const label = `Select ${visible(run.name)}`;
  const pick = h("input", { type: "checkbox", checked: seen.picked.has(run.id), "aria-label": label,
    onchange: () => {
      seen.picked[pick.checked ? "add" : "delete"](run.id);
      draw();
    } });
  const folder = run.id.includes("/") ? run.id.slice(0, run.id.lastIndexOf("/")) : "";
  const kind = run.kind === "grpo" ? "" : run.kind;
  return h("tr", {},
    h("td.pick", {}, pick),
    h("td.name", {},
      h("a", { href: to("run", { run: run.id }) }, visible(run.name)), trainerTag(run),
      h("small.dim", {}, visible([kind, run.task, run.model, folder].filter(Boolean).join(" · ")))),
    h("td.status", {}, statusMark(run), run.why && h("small.dim.why", { title: visible(run.why) }, visible(run.why))),
    h("td.steps", {}, progress(run)),
    h("td.reward", {}, sparkline(run.spark)),
    h("td.before", {}, share(run.before?.success)),
    h("td.after", {}, h("b", {}, share(run.after?.success)),
      run.after && h("small.dim", {}, interval(run.after.low, run.after.high)),
      run.after && h("small.dim", {}, beside(run.after)),
      otherSplits(run).map((text) => h("small.dim", {}, visible(text)))),
    h("td.findings", {}, failures(run).map((finding) => h(`a.tag.${finding.severity}`,
      { href: to("findings", { run: run.id }) }, SEVERITY[finding.severity], " ", visible(finding.code))),
      run.trouble.length > 0 &&
        h("span.tag.warning", { title: visible(run.trouble.join("\n")) }, "! partly unreadable")),
    h("td.started", {}, when(run.started)));
}

/** Which trainer a run is of, where it is none of ours. */
export const trainerTag = (run) => run.trainer && [" ", h("span.tag.trainer", {}, visible(run.trainer))];

export function statusMark(run) {
  const [sign, word] = STATUS[run.status] ?? ["?", run.status];
  const lost = "Its manifest says that it is running, but no process writes there.";
  const title = run.status === "lost" ? lost : visible(run.why ?? "");
  return h(`span.status.${run.status}`, { title }, h("i", { "aria-hidden": "true" }, sign), word);
}

function progress(run) {
  const text = run.max_steps ? `${run.steps} / ${run.max_steps}` : String(run.steps ?? "–");
  const part = run.max_steps ? Math.min(1, run.steps / run.max_steps) : 0;
  return [h("span", {}, text), h("div.meter", {}, h("div", { style: { width: `${100 * part}%` } }))];
}

function sparkline(values) {
  const has = values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  if (has.length < 2) return h("span.dim", {}, has.length ? share(has[0][1]) : "–");
  const low = Math.min(...has.map(([, value]) => value)), high = Math.max(...has.map(([, value]) => value));
  const span = Math.max(high - low, 0.2 * Math.abs(high)) || 1;  // noise around a constant must not look like a change
  const point = ([i, value]) => `${(100 * i) / (values.length - 1)},${23 - (21 * (value - low)) / span}`;
  const last = has[has.length - 1][1];
  return [
    svg("svg", { class: "spark", viewBox: "0 0 100 25", preserveAspectRatio: "none", role: "img",
      "aria-label": `reward from ${share(has[0][1])} to ${share(last)}` },
    svg("polyline", { points: has.map(point).join(" "), fill: "none", "vector-effect": "non-scaling-stroke" })),
    h("span", {}, share(last)),
  ];
}

function drawPicked(bar, found, seen, draw) {
  const known = [...seen.picked].filter((id) => found.runs.some((run) => run.id === id));
  bar.hidden = known.length === 0;
  bar.replaceChildren(
    h("b", {}, known.length === 1 ? "1 run selected" : `${known.length} runs selected`),
    h("a.button.first", { href: to("run", { run: known }) }, known.length > 1 ? "Overlay curves" : "Curves"),
    known.length > 1 ? h("a.button", { href: to("compare", { run: known }) }, "Compare")
      : h("span.dim", {}, "select another to compare"),
    h("button.quiet", { type: "button", onclick: () => {
      seen.picked.clear();
      seen.rows.clear();
      draw();
    } }, "Clear"));
}
