// Numbers, dates and values for people.
import { clock, short } from "./scale.js";

export { clock, short };

/** Three decimals: a share or a reward. @param {number|null|undefined} value */
export function share(value) {
  return typeof value === "number" ? value.toFixed(3) : "–";
}

/** With its sign, and a real minus. @param {number|null|undefined} value */
export function signed(value, digits = 2) {
  if (typeof value !== "number") return "–";
  const text = Math.abs(value).toFixed(digits);
  return Number(text) === 0 ? text : (value > 0 ? "+" : "−") + text;
}

/** @param {number|null|undefined} low @param {number|null|undefined} high */
export function interval(low, high) {
  return typeof low === "number" && typeof high === "number" ? `[${low.toFixed(2)}, ${high.toFixed(2)}]` : "";
}

/** Beside greedy success: that of sampled answers, and the mean reward where it says more. */
export function beside(held) {
  const parts = [["sampled", held?.sampled], ["reward", held?.reward]];
  return parts.filter(([, value]) => typeof value === "number").map(([name, value]) => `${name} ${share(value)}`)
    .join(", ");
}

/** The splits beside the first, before and after: "ood 0.400 → 0.200". */
export function otherSplits(summary) {
  return (summary.splits ?? []).slice(1).map(({ split, before, after }) =>
    `${split} ${before ? `${share(before.success)} → ` : ""}${share(after?.success)}`);
}

/** @param {number|null|undefined} count */
export function count(count) {
  if (typeof count !== "number") return "–";
  return count < 10000 ? Math.round(count).toLocaleString("en-GB") : short(count);
}

/** @param {number|null|undefined} bytes */
export function size(bytes) {
  if (typeof bytes !== "number") return "–";
  return bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`;
}

/** A short date: the time today, else with the day. @param {string|null} iso */
export function when(iso) {
  const date = parsed(iso);
  if (!date) return "–";
  const hour = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === new Date().toDateString()) return hour;
  return `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${hour}`;
}

/** A time with the zone written +0000, which not every browser reads. @param {string|null|undefined} iso */
export function parsed(iso) {
  if (!iso) return null;
  const date = new Date(iso.replace(/([+-]\d\d)(\d\d)$/, "$1:$2"));
  return Number.isNaN(date.getTime()) ? null : date;
}

/** A value of a recipe, as the command line takes it. @param {unknown} value */
export function typed(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value === "number") return String(Number(value.toPrecision(6)));
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export const STATUS = {  // a sign beside the word, so that colour is not the only cue
  running: ["▶", "running"],
  done: ["✓", "done"],
  stopped: ["■", "stopped"],
  failed: ["✗", "failed"],
  lost: ["?", "lost"],
  unreadable: ["⚠", "unreadable"],
};
export const SEVERITY = { critical: "‼", warning: "!", info: "i" };
