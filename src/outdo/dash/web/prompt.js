// One prompt through the steps, and the prompts that gained most.
import { get } from "./api.js";
import { chart } from "./chart.js";
import { h, state } from "./dom.js";
import { share, signed } from "./format.js";
import { runHead } from "./head.js";
import { to } from "./route.js";
import { block, pieces, visible } from "./text.js";

export async function open(scope) {
  const { page, query } = scope;
  const run = query.get("run") ?? "", prompt = query.get("prompt") ?? "";
  const [about, found] = await Promise.all([
    get("run", { run }, scope.signal), get("prompt", { run, prompt }, scope.signal),
  ]);
  const head = runHead(scope, "groups", about);
  const plot = h("div.chart"), read = h("div.read");
  const open = (step) => (location.hash = to("groups", { run, step, prompt }));
  page.replaceChildren(head.element,
    h("section.card", {}, h("header", {}, h("h2", {}, "Prompt through the steps"), h("span.grow"), read),
      block(found.prompt, "said.prompt"), plot,
      h("p.dim", {}, "The line is the mean reward of its group, each dot is an answer; click to open a step.")),
    h("section", { "aria-label": "Steps" }, found.seen.map((seen) => stepRow(run, prompt, seen))));
  if (!found.seen.length) return page.append(state("Not recorded", "No step with recorded answers has this prompt."));
  const points = found.seen.flatMap((seen) => seen.rewards.filter((reward) => reward !== null)
    .map((y) => ({ name: "answer", x: seen.step, y, style: 6 })));
  const drawn = chart(plot, { title: "Reward of one prompt", read, points, onPick: open,
    lines: [{ name: "mean reward", x: found.seen.map((seen) => seen.step), y: found.seen.map((seen) => seen.mean) }] });
  scope.onClose(() => drawn.remove());
}

function stepRow(run, prompt, seen) {
  return h("article.card.seen", {},
    h("a.num", { href: to("groups", { run, step: seen.step, prompt }) }, `step ${seen.step}`),
    h("span.num", {}, `mean ${share(seen.mean)}`),
    h("span.strip", { title: `${seen.right} right, ${seen.wrong} wrong, ${seen.broken} broken` },
      h("span.right", {}, "✓".repeat(seen.right)), h("span.wrong", {}, "✗".repeat(seen.wrong)),
      h("span.broken", {}, "⚠".repeat(seen.broken))),
    h("bdi.mono.best", { dir: "auto" }, pieces(seen.best ?? "")));
}

/** The prompts that gained most between their first step and their last. @param {any} seen see groups.js */
export async function improved(seen) {
  const { prompts } = await get("improved", { run: seen.run, limit: 24 }, seen.scope.signal);
  if (!prompts.length) {
    return [state("No prompt was sampled twice",
      "A gain is measured where several steps sample the same prompt: in longer runs, or with less data.")];
  }
  return [h("p.dim.tally", {}, "Prompts that were sampled at least twice, by the gain of their mean reward."),
    h("div.gains", {}, prompts.map((each) => gainRow(seen.run, each)))];
}

function gainRow(run, each) {
  const bar = { left: `${100 * Math.min(each.first_mean, each.last_mean)}%`, width: `${100 * Math.abs(each.gain)}%` };
  const fits = Math.min(each.first_mean, each.last_mean) >= 0 && Math.max(each.first_mean, each.last_mean) <= 1;
  return h("a.card.gain", { href: to("prompt", { run, prompt: each.prompt_id }) },
    h("b.num", {}, signed(each.gain)),
    h("span.num.dim", {},
      `${share(each.first_mean)} at step ${each.first_step} → ${share(each.last_mean)} at step ${each.last_step}`),
    fits && h("span.rail", {}, h(`span.${each.gain < 0 ? "minus" : "plus"}`, { style: bar })),
    h("bdi.mono", { dir: "auto" }, visible(each.prompt).slice(0, 200)));
}
