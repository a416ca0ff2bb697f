// A sweep: its table, a heat map over two keys, and parallel coordinates over all.
import { get } from "./api.js";
import { h, select, segmented, state } from "./dom.js";
import { interval, share, short, typed } from "./format.js";
import { dots, parallel } from "./plots.js";
import { note, to } from "./route.js";
import { statusMark } from "./runs.js";
import { visible } from "./text.js";

const FIGURES = [
  ["success_rate", "success"], ["before", "before"], ["sampled", "sampled success"],
  ["held_reward", "held-out reward"], ["reward_mean", "training reward"], ["kl_mean", "KL"],
  ["entropy_mean", "entropy"], ["group_diversity", "diversity"], ["informative", "informative"], ["len_mean", "length"],
  ["tokens_per_s", "tokens/s"], ["seconds", "seconds"],
];
const POLL = 5000;  // milliseconds between two requests

export async function open(scope) {
  const { page, query } = scope;
  const id = query.get("sweep") ?? "";
  const seen = { id, figure: query.get("figure") ?? "success_rate", sort: "success_rate", order: -1,
    x: query.get("x"), y: query.get("y") };
  let found = await get("sweep", { sweep: id }, scope.signal);
  const draw = () => {
    scope.crumbs({ text: "Runs", href: "#/runs" }, { text: found.title || id });
    page.replaceChildren(...parts(found, seen, draw));
  };
  draw();
  const timer = setInterval(async () => {
    if (document.hidden || found.done === found.cells) return;
    const next = await get("sweep", { sweep: id }, scope.signal).catch(() => null);
    if (next && !scope.closed && JSON.stringify(next) !== JSON.stringify(found)) {
      found = next;
      draw();
    }
  }, POLL);
  scope.onClose(() => clearInterval(timer));
}

function parts(found, seen, draw) {
  const rows = (found.rows ?? []).map(flat);
  const head = h("div.headline", {}, h("h1", {}, visible(found.title || found.id)),
    h("span.dim", {}, `${found.done} of ${found.cells} cells done`), h("span.dim.root", {}, visible(found.id)));
  if (!rows.length) return [head, state("No finished cells yet", "Each cell appears when it ends.")];
  const settings = settingsOf(rows);
  const keys = variedKeys(rows, found.keys);
  const others = [...new Set(rows.flatMap((row) => Object.keys(row.splits ?? {}).slice(1)))];
  const known = [...FIGURES, ...others.map((split) => [`split ${split}`, split])];
  const figures = known.filter(([name]) => rows.some((row) => typeof row[name] === "number"));
  const chooser = select("Figure", figures, seen.figure, (figure) => {
    seen.figure = figure;
    note({ figure });
    draw();
  });
  return [head, pick(found), h("div.bar", {}, chooser),
    keys.length >= 2 ? heatSection(settings, keys, seen, draw) : dotSection(settings, seen),
    parallelSection(settings, keys, seen, figures), table(rows, keys, figures, seen, draw)].filter(Boolean);
}

function pick(found) {
  if (!found.why) return null;
  const best = found.pick && h("b", {}, "Best setting: ", visible(found.pick), ". ");
  return h("p.notice.pick", {}, best, visible(found.why));
}

/** Keys with more than one value among the cells, except the seed. */
/** With sampled success, the reward where it says more than success, and the success of the other splits. */
function flat(row) {
  const others = Object.entries(row.splits ?? {}).slice(1);
  const splits = others.map(([name, split]) => [`split ${name}`, split.success_rate]);
  return { ...row, sampled: row.passes?.["pass@1"]?.value ?? null, held_reward: row.partial ? row.reward : null,
    ...Object.fromEntries(splits) };
}

function variedKeys(rows, given) {
  const names = given?.length ? given : [...new Set(rows.flatMap((row) => Object.keys(row.keys ?? {})))];
  return names.filter((key) => key !== "seed" && new Set(rows.map((row) => typed(row.keys?.[key]))).size > 1);
}

/** Cells that differ only by seed are one setting: means over seeds, with the figures of each. */
function settingsOf(rows) {
  const found = new Map();
  for (const row of rows) {
    const name = row.setting || row.name;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(row);
  }
  return [...found].map(([name, cells]) => ({
    name, cells, keys: cells[0].keys ?? {},
    of: (figure) => {
      const has = cells.map((cell) => cell[figure]).filter((value) => typeof value === "number");
      return has.length ? has.reduce((sum, value) => sum + value, 0) / has.length : null;
    },
  }));
}

function heatSection(settings, keys, seen, draw) {
  const x = keys.includes(seen.x) ? seen.x : keys[0];
  const y = keys.includes(seen.y) && seen.y !== x ? seen.y : keys.find((key) => key !== x);
  const choose = (which) => (key) => {
    Object.assign(seen, which === "x" ? { x: key, y: key === y ? x : y } : { y: key, x: key === x ? y : x });
    note({ x: seen.x, y: seen.y });
    draw();
  };
  const names = keys.map((key) => [key, key]);
  const pickers = () => [segmented("Across", names, x, choose("x")), segmented("Down", names, y, choose("y"))];
  const title = h("h2", {}, "Heat map", h("small.dim", {}, "stronger: higher"));
  return h("section.card", {}, h("header", {}, title, h("span.grow"), keys.length > 2 && pickers()),
    heatMap(settings, x, y, seen.figure));
}

/** A table with darker cells for higher figures, and the figure in each. */
function heatMap(settings, x, y, figure) {
  const values = (key) => [...new Set(settings.map((each) => typed(each.keys[key])))]
    .toSorted((a, b) => (Number.isNaN(Number(a) - Number(b)) ? a.localeCompare(b) : Number(a) - Number(b)));
  const at = (vx, vy) => settings.filter((each) => typed(each.keys[x]) === vx && typed(each.keys[y]) === vy);
  const mean = (list) => {
    const has = list.map((each) => each.of(figure)).filter((value) => value !== null);
    return has.length ? has.reduce((sum, value) => sum + value, 0) / has.length : null;
  };
  const all = settings.map((each) => each.of(figure)).filter((value) => value !== null);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const cell = (vx, vy) => {
    const here = at(vx, vy), value = mean(here), runs = here.reduce((sum, each) => sum + each.cells.length, 0);
    const heat = value === null ? 0 : (value - low) / (high - low || 1);
    return h(`td.num${heat > 0.55 ? ".hot" : ""}`, { style: { "--heat": heat.toFixed(3) } }, short(value),
      h("small", {}, runs === 1 ? "1 run" : `${runs} runs`));
  };
  const head = (scope, text) => h("th", { scope }, visible(text));
  return h("div.scroll", {}, h("table.heat", {},
    h("thead", {}, h("tr", {}, head("col", `${y} ↓  ${x} →`), values(x).map((vx) => head("col", vx)))),
    h("tbody", {}, values(y).map((vy) => h("tr", {}, head("row", vy), values(x).map((vx) => cell(vx, vy)))))));
}

function dotSection(settings, seen) {
  const success = seen.figure === "success_rate";
  const rows = settings.filter((each) => each.of(seen.figure) !== null).map((each) => ({
    name: each.name, value: each.of(seen.figure),
    ...(success && { low: each.of("low"), high: each.of("high"), before: each.of("before") }),
  }));
  if (!rows.length) return null;
  const title = h("h2", {}, "By setting", h("small.dim", {}, "means over seeds"));
  return h("section.card", {}, title, dots(rows, "By setting"));
}

function parallelSection(settings, keys, seen, figures) {
  if (!keys.length || settings.length < 2) return null;
  const known = (name) => figures.some(([figure]) => figure === name);
  const outcome = [...new Set(["kl_mean", "entropy_mean", seen.figure])].filter(known);
  const rows = settings.map((each) => ({ name: each.name,
    values: { ...each.keys, ...Object.fromEntries(outcome.map((name) => [name, each.of(name)])) } }));
  const how = "Each line is a setting; thicker is higher on the last axis.";
  const out = h("p.dim.num", { role: "status" }, how);
  const tell = (name) => {
    const row = rows.find((each) => each.name === name);
    out.textContent = [visible(name), ...outcome.map((axis) => `${axis} ${short(row.values[axis])}`)].join(" · ");
  };
  return h("section.card", {}, h("h2", {}, "Parallel coordinates"),
    h("div.scroll", {}, parallel(rows, keys, outcome, tell)), out);
}

function table(rows, keys, figures, seen, draw) {
  const columns = [...keys, ...(rows.some((row) => row.keys?.seed !== undefined) ? ["seed"] : [])];
  const head = ([key, title]) => {
    const way = seen.sort !== key ? "none" : seen.order > 0 ? "ascending" : "descending";
    const sort = () => {
      seen.order = seen.sort === key ? -seen.order : -1;
      seen.sort = key;
      draw();
    };
    return h("th", { scope: "col", "aria-sort": way }, h("button", { type: "button", onclick: sort }, visible(title)));
  };
  const heads = [["name", "cell"], ["status", "status"], ...columns.map((key) => [key, key]), ...figures].map(head);
  return h("section.card", {}, h("h2", {}, "Cells"),
    h("div.scroll", { tabindex: "0", role: "region", "aria-label": "Cells of the sweep" },
      h("table.side", {}, h("thead", {}, h("tr", {}, heads)),
        h("tbody", {}, sorted(rows, seen).map((row) => tableRow(row, columns, figures))))));
}

function sorted(rows, seen) {
  const by = (row) => row[seen.sort] ?? row.keys?.[seen.sort] ?? null;
  return rows.toSorted((a, b) => {
    const [p, q] = [by(a), by(b)];
    if (p === null || q === null) return (p === null) - (q === null);  // missing values come last
    return (p < q ? -1 : p > q ? 1 : 0) * seen.order;
  });
}

function tableRow(row, columns, figures) {
  const name = row.run ? h("a", { href: to("run", { run: row.run }) }, visible(row.name)) : visible(row.name);
  const success = () => [share(row.success_rate), h("small.dim", {}, ` ${interval(row.low, row.high)}`)];
  return h("tr", {}, h("td", {}, name), h("td", {}, statusMark(row)),
    columns.map((key) => h("td.num.mono", {}, visible(typed(row.keys?.[key])))),
    figures.map(([figure]) => h("td.num", {}, figure === "success_rate" ? success() : short(row[figure]))));
}
