// A run's rows as the page has them, and what a chart draws of them.
import { get } from "./api.js";

/**
 * @typedef {{steps: number[], time: number[], tokens: number[], total: number, exact: boolean,
 *   series: Record<string, {mean: (number|null)[], low: (number|null)[]|null, high: (number|null)[]|null}>}} Metrics
 * @typedef {{id: string, style: number, summary: any, metrics: Metrics, window: Metrics|null, evals: any[],
 *   findings: any[]}} Held   one run of those that are shown; `window` has more detail of what was zoomed to
 */

/** @param {string} id @param {number} style @returns {Promise<Held>} */
export async function load(id, style, signal) {
  const [about, metrics, { evals }, { findings }] = await Promise.all([
    get("run", { run: id }, signal), get("metrics", { run: id, points: 1000 }, signal),
    get("evals", { run: id }, signal), get("findings", { run: id }, signal),
  ]);
  return { id, style, about, summary: about.summary, metrics, window: null, evals, findings };
}

/** Appends new rows; rows that exist are skipped. @param {Metrics} metrics */
export function append(metrics, more) {
  const last = metrics.steps.length ? metrics.steps[metrics.steps.length - 1] : -1;
  const from = more.steps.findIndex((step) => step > last);
  if (from < 0) return false;
  const start = metrics.steps.length, added = more.steps.length - from;
  for (const key of ["steps", "time", "tokens"]) metrics[key].push(...more[key].slice(from));
  for (const name of new Set([...Object.keys(metrics.series), ...Object.keys(more.series)])) {
    const series = (metrics.series[name] ??= { mean: Array(start).fill(null), low: null, high: null });
    const values = more.series[name]?.mean.slice(from) ?? Array(added).fill(null);
    for (const key of ["mean", "low", "high"]) series[key]?.push(...values);
  }
  metrics.total += added;
  return true;
}

/** The values on the x axis; a missing one repeats the one before. @param {Metrics} metrics */
export function xOf(metrics, kind) {
  let last = 0;
  return kind === "steps" ? metrics.steps : metrics[kind].map((value) => (last = value ?? last));
}

/** The x position of a number of finished steps. @param {Metrics} metrics */
export function place(metrics, step, kind) {
  if (kind === "steps") return step;
  let i = metrics.steps.length - 1;
  while (i >= 0 && metrics.steps[i] > step) i--;
  return i < 0 ? 0 : metrics[kind][i] ?? 0;
}

/** The steps in a range of the x axis. @param {Metrics} metrics @param {[number, number]} range */
export function stepsIn(metrics, range, kind) {
  const inside = metrics.steps.filter((_, i) => metrics[kind][i] >= range[0] && metrics[kind][i] <= range[1]);
  return inside.length ? [Math.max(0, inside[0] - 1), inside[inside.length - 1] + 1] : null;
}

/** The series that a catalogue name matches: itself, or all with its prefix where it ends in a star. */
export function named(entry, series) {
  if (!entry.endsWith("*")) return entry in series ? [entry] : [];
  return Object.keys(series).filter((name) => name.startsWith(entry.slice(0, -1)));
}

/** A line for a chart, or null where the run has no such series. @param {Held} held */
export function lineOf(held, name, kind, style, title = name) {
  const metrics = held.window ?? held.metrics;
  const series = metrics.series[name];
  if (!series || series.mean.every((value) => value === null)) return null;
  return { name: title, x: xOf(metrics, kind), y: series.mean, low: series.low, high: series.high, style };
}

/** Evaluations as points with intervals. @param {Held} held @param {string} split */
export function evalPoints(held, split, kind, style) {
  return held.evals.filter((each) => each.split === split && typeof each.success === "number").map((each) => ({
    name: split, x: place(held.metrics, each.step, kind), y: each.success, low: each.low, high: each.high, style,
  }));
}

/** Findings on one of these signals, as marks. @param {Held} held @param {string[]} names */
export function marksOf(held, names, kind) {
  const holds = (finding) =>
    !finding.past && isFailure(finding) && finding.signals.some((name) => names.includes(name));
  return held.findings.filter(holds).map(({ step, code, severity }) =>
    ({ x: place(held.metrics, step, kind), label: code, severity }));
}

/** Whether it is a failure mode rather than "healthy" or "too early". */
export function isFailure(finding) {
  return finding.severity !== "info" && finding.code !== "healthy" && finding.code !== "too_early";
}

let catalogue = null;
/** The catalogue of charts, fetched once. */
export async function signals() {
  catalogue ??= (await get("signals")).charts;
  return catalogue;
}

/** [lo, hi] with null for no end, as a chart's bands. */
export function bandsOf(entry) {
  return [["good", entry.good_band], ["bad", entry.bad_band]].filter(([, band]) => band)
    .map(([kind, band]) => ({ kind, from: band[0], to: band[1] }));
}
