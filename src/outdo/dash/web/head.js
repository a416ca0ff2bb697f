// The head of every page of one run: what it is, its status, and links to its other pages.
import { get } from "./api.js";
import { h } from "./dom.js";
import { isFailure } from "./data.js";
import { beside, clock, count, interval, otherSplits, parsed, share, short, when } from "./format.js";
import { to } from "./route.js";
import { statusMark, trainerTag } from "./runs.js";
import { visible } from "./text.js";

const TABS = [["run", "Curves"], ["groups", "Groups"], ["answers", "Held out"], ["findings", "Findings"],
  ["resources", "Resources"], ["recipe", "Recipe"]];

/**
 * @param {any} scope @param {string} view the tab @param {any} about the answer of /api/run
 * @param {any[]|null} known the doctor's findings, where they are loaded
 * @returns {{element: HTMLElement, update: (summary: any) => void}} `update` shows the current status
 */
export function runHead(scope, view, about, known = null) {
  const { id, name } = about.summary;
  scope.crumbs({ text: "Runs", href: "#/runs" }, { text: name, href: to("run", { run: id }) });
  const standing = h("div.standing"), badge = h("span.badge", { hidden: true });
  const tabs = TABS.map(([key, word]) => h("a", {
    href: to(key, { run: id }), "aria-current": key === view ? "page" : null,
  }, word, key === "findings" && badge));
  const update = (summary, findings = known) => {
    standing.replaceChildren(statusMark(summary), ...facts(summary, about));
    known = findings;
    const failures = (findings ?? []).filter((each) => !each.past && isFailure(each)).length;
    badge.hidden = failures === 0;
    badge.textContent = String(failures);
  };
  update(about.summary);
  if (!known) get("findings", { run: id }, scope.signal).then((more) => update(about.summary, more.findings), () => {});
  const { task, model } = about.summary;
  const subtitle = [task, model, parameters(about), about.facts?.device, kindOf(about.summary)];
  const element = h("div.run-head", {},
    h("div.headline", {},
      h("h1", {}, visible(name), trainerTag(about.summary)),
      h("span.dim", {}, visible(subtitle.filter(Boolean).join(" · ")))),
    standing,
    about.summary.trouble.length > 0 && h("p.notice", { role: "alert" }, "Parts of this run could not be read: ",
      visible(about.summary.trouble.slice(0, 3).join("; "))),
    h("nav.tabs", { "aria-label": "Views of this run" }, tabs));
  return { element, update };
}

const kindOf = (summary) => (summary.kind === "grpo" ? "" : summary.kind);

function parameters(about) {
  const number = about.facts?.num_parameters;
  return typeof number === "number" ? `${short(number)} parameters` : "";
}

/** A figure with its title above and a remark below. */
export function fact(title, value, more = "") {
  return h("div.fact", {}, h("small", {}, title), h("b", {}, value), more && h("small", {}, more));
}

function facts(summary, about) {
  const part = summary.max_steps ? Math.min(1, summary.steps / summary.max_steps) : 0;
  const steps = h("div.fact", {}, h("small", {}, "Steps"),
    h("b", {}, summary.max_steps ? `${count(summary.steps)} / ${count(summary.max_steps)}` : count(summary.steps)),
    summary.max_steps > 0 && h("div.meter", {}, h("div", { style: { width: `${100 * part}%` } })));
  const { before, after } = summary;
  const last = summary.spark.findLast((value) => value !== null);
  return [
    steps,
    (before || after) && fact(`Held-out success${after ? ` (${visible(after.split)})` : ""}`,
      `${share(before?.success)} → ${share(after?.success)}`,
      after && [typeof after.low === "number" && `95% ${interval(after.low, after.high)}`, beside(after)]
        .filter(Boolean).join(", ")),
    otherSplits(summary).length > 0 && fact("Other splits", visible(otherSplits(summary).join(", "))),
    last !== undefined && fact(summary.kind === "sft" ? "Latest loss" : "Latest reward", share(last)),
    about.tokens > 0 && fact("Tokens", count(about.tokens)),
    fact("Time", clock(elapsed(summary, about)), `since ${when(summary.started)}`),
    summary.why && h("p.why", { dir: "auto" }, visible(summary.why)),
  ].filter(Boolean);
}

/**
 * Seconds that it was running, without the time between a stop and a resume. Of a run in progress the manifest counts
 * until its last write; runs of older versions have only their start and end.
 */
export function elapsed(summary, about) {
  const segments = about.facts?.segments;
  if (Array.isArray(segments) && segments.length) {
    const last = parsed(segments.at(-1)?.started), running = summary.status === "running" && last;
    const done = (running ? segments.slice(0, -1) : segments).reduce((sum, each) => sum + (each?.seconds || 0), 0);
    return done + (running ? (Date.now() - last) / 1000 : 0);
  }
  const from = parsed(summary.started);
  const until = parsed(summary.ended) ?? (summary.status === "running" ? new Date() : null);
  return from && until ? (until - from) / 1000 : (about.seconds ?? 0);
}
