// Held-out answers of two evaluations side by side: which were gained, which were lost.
import { get, listen } from "./api.js";
import { h, later, segmented, select, state } from "./dom.js";
import { count, short, typed } from "./format.js";
import { runHead } from "./head.js";
import { note } from "./route.js";
import { block, pieces, visible } from "./text.js";
import { isPlayed, judgedView, turnFacts, turnsLegend, turnsView } from "./turns.js";

const KINDS = {  // sign, word, its tag
  gained: ["▲", "gained", "right"], lost: ["▼", "lost", "wrong"], both: ["✓", "right in both", ""],
  neither: ["✗", "right in neither", ""], unjudged: ["⚠", "not judged", "broken"],
};
const VERDICTS = { right: "✓", wrong: "✗", broken: "⚠" };
const PAGE = 12;  // problems per request
const READING = 300;  // pixels scrolled

export async function open(scope) {
  const { page, query } = scope;
  const run = query.get("run") ?? "";
  const [about, { runs }] = await Promise.all([get("run", { run }, scope.signal), get("runs", {}, scope.signal)]);
  const head = runHead(scope, "answers", about);
  const seen = { run, scope, runs, list: h("div.group-list"), controls: h("div.bar.tools"), counts: h("div.bar"),
    facts: h("div"), found: null };
  for (const key of ["other", "split", "before", "after", "show", "q"]) seen[key] = query.get(key) ?? "";
  const ask = later(250, (q) => change(seen, { q }));
  const search = h("input", { type: "search", placeholder: "Search prompts and answers  /", value: seen.q,
    "aria-label": "Search prompts and answers", oninput: (event) => ask(event.target.value) });
  page.replaceChildren(head.element, seen.controls, seen.facts, h("div.bar", {}, seen.counts, search), seen.list);
  scope.onKey = (event) => onKey(event, seen);
  scope.onClose(listen(seen.other ? [run, seen.other] : [run], {
    onState: (state) => scope.live(about.summary.status === "running" ? state : "off"),
    onEvent: (kind, data) => {
      if (kind === "status" && data.run === run) head.update((about.summary = data.summary));
      if (kind === "evals" || kind === "reset") follow(seen);
    },
  }));
  await refill(seen);
}

function change(seen, changes) {
  Object.assign(seen, changes);
  note(changes);
  return refill(seen);
}

/** A new evaluation is shown, unless somebody is reading further down: then it can be selected. */
async function follow(seen) {
  if (window.scrollY < READING) return refill(seen);
  const { run, other, split, before, after } = seen;
  const found = await get("answers", { run, other, split, before, after, limit: 1 }, seen.scope.signal)
    .catch(() => null);
  if (found?.changes) seen.controls.replaceChildren(...controls(seen, { ...found, changes: seen.found.changes }));
}

/** ← and → select the evaluation on the right. */
function onKey(event, seen) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const steps = by && seen.found?.changes && stepsOf(seen.found.others, seen.found.changes.split);
  if (!steps) return false;
  const next = steps[steps.indexOf(seen.found.changes.after.step) + by];
  if (next !== undefined) change(seen, { after: String(next) });
  return true;
}

const stepsOf = (choices, split) => choices.find((each) => each.split === split)?.steps ?? [];

/** Loads the problems from `offset` on; from the start, with the counts and the choices, where it is 0. */
async function refill(seen, offset = 0) {
  const { run, other, split, before, after, show, q, scope } = seen;
  const mine = (seen.asked = (seen.asked ?? 0) + 1);
  seen.list.setAttribute("aria-busy", "true");
  let found;
  try {
    found = await get("answers", { run, other, split, before, after, show: show || "all", q, limit: PAGE, offset },
      scope.signal);
  } catch (error) {
    if (error.name !== "AbortError" && mine === seen.asked) {
      seen.list.removeAttribute("aria-busy");
      seen.list.replaceChildren(state("Not loaded", visible(error.message)));
    }
    return;
  }
  if (mine !== seen.asked) return;
  seen.list.removeAttribute("aria-busy");
  seen.found = found;
  if (!offset) fill(seen, found);
  else seen.list.querySelector(".rest")?.remove();
  if (!found.changes) return;
  seen.list.append(...found.changes.changes.map((each) => card(each, found.changes)));
  const remaining = found.total - offset - found.changes.changes.length;
  if (remaining > 0) {
    seen.list.append(h("button.rest", { type: "button", onclick: () => refill(seen, offset + PAGE) },
      `Show ${Math.min(remaining, PAGE)} more of ${remaining}`));
  }
}

function fill(seen, found) {
  const { changes } = found;
  seen.controls.replaceChildren(...controls(seen, found));
  seen.list.replaceChildren();
  if (!changes) {
    seen.facts.replaceChildren();
    seen.counts.replaceChildren();
    const why = seen.other ? "The two runs have no evaluated split in common whose answers were kept."
      : "They are kept at each evaluation; runs of older versions and of other trainers have none.";
    return seen.list.replaceChildren(state("No held-out answers", why));
  }
  const all = Object.values(changes.counts).reduce((sum, n) => sum + n, 0);
  const kinds = Object.entries(KINDS).filter(([kind]) => changes.counts[kind] || kind !== "unjudged");
  const choices = [["", `all ${count(all)}`],
    ...kinds.map(([kind, [sign, word]]) => [kind, `${sign} ${word} ${count(changes.counts[kind])}`])];
  seen.counts.replaceChildren(segmented("Show", choices, seen.show, (show) => change(seen, { show })));
  const played = changes.changes.some((each) => isPlayed(each.before) || isPlayed(each.after));
  const line = h("p", { role: "status" }, significance(changes), " ", h("span.dim", {}, missing(changes)));
  seen.facts.replaceChildren(line, ...(played ? [turnsLegend()] : []),
    ...[...changes.notes, ...changes.trouble].map((line) => h("p.notice", {}, visible(line))));
  if (!found.total) seen.list.append(state("No such problem", seen.q ? "No prompt or answer has these words." : ""));
}

/** Whether gained and lost differ by more than chance. */
export function significance({ counts, p_value: p }) {
  if (p === null) return "Gained and lost are not comparable here.";
  if (!counts.gained && !counts.lost) return h("b", {}, "Nothing gained, nothing lost.");
  const value = p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(3)}`;
  const verdict = p < 0.05 ? "more than chance" : "may be chance";
  const changed = `${count(counts.gained)} gained, ${count(counts.lost)} lost`;
  return [h("b", {}, changed), `: ${verdict} (McNemar, ${value}).`];
}

const missing = (changes) => (changes.only_one
  ? `${count(changes.only_one)} problems are in one of the two only, and are not counted.` : "");

function controls(seen, found) {
  const split = found.changes?.split ?? seen.split;
  const step = (value) => (value === 0 ? "before training" : `after step ${value}`);
  const options = (choices) => stepsOf(choices, split).map((each) => [String(each), step(each)]);
  const others = [["", "this run"], ...seen.runs.filter((each) => each.id !== seen.run)
    .map((each) => [each.id, visible(each.id)])];
  return [
    found.splits.length > 1 && select("Problems", found.splits.map((each) => [each, visible(each)]), split,
      (split) => change(seen, { split })),
    found.changes && select("From", options(found.evaluations), String(found.changes.before.step),
      (before) => change(seen, { before })),
    found.changes && select("to", options(found.others), String(found.changes.after.step),
      (after) => change(seen, { after })),
    others.length > 1 && select("of", others, seen.other, (other) => change(seen, { other, before: "", after: "" })),
  ].filter(Boolean);
}

function card(each, changes) {
  const [sign, word, tag] = KINDS[each.kind];
  const wanted = each.answer ?? null, rest = each.messages.slice(0, -1);
  const sameRun = changes.before.run === changes.after.run;
  const name = ({ run, step }) =>
    `${sameRun ? "" : `${visible(run)}, `}${step === 0 ? "before training" : `after step ${step}`}`;
  return h("article.card.group.changed", { "aria-label": `${word}: ${visible(each.id)}` },
    h("header", {},
      h("div.asked", {}, rest.length > 0 && h("details.earlier", {}, h("summary", {}, "earlier messages"),
        rest.map((message) => [h("small.dim", {}, visible(message.role)), block(typed(message.content))])),
      block(each.prompt, "said.prompt"),
      wanted !== null && h("p.dim", {}, "expected ", h("bdi.mono", {}, pieces(typed(wanted).slice(0, 300))))),
      h(`span.tag${tag && `.${tag}`}`, {}, `${sign} ${word}`)),
    h(`div.pair${isPlayed(each.before) || isPlayed(each.after) ? ".played" : ""}`, {},
      side(each.before, name(changes.before)), side(each.after, name(changes.after))));
}

function side(answer, title) {
  const parts = answer.cut > 0
    ? [block(answer.text.slice(0, answer.cut_at)),
      h("p.dim.note", {}, `… ${count(answer.cut)} characters were not kept …`), block(answer.text.slice(answer.cut_at))]
    : [block(answer.text)];
  const facts = [isPlayed(answer) ? turnFacts(answer) : `${count(answer.num_tokens)} tokens`,
    answer.finish === "length" ? "cut at the length limit" : "",
    answer.sampled > 0 && `${answer.right} of ${answer.sampled} sampled right`];
  return h("section.answer", { "aria-label": title },
    h("header", {}, h("small.dim", {}, title), h("span.grow"),
      h(`span.tag.${answer.verdict in VERDICTS ? answer.verdict : "broken"}`, {},
        `${VERDICTS[answer.verdict] ?? "⚠"} ${visible(answer.verdict)}`),
      h("span.num", {}, h("small.dim", {}, "reward "), short(answer.reward))),
    h("div.text", {}, isPlayed(answer) ? [turnsView(answer), judgedView(answer)] : parts),
    answer.reason && h("p.reason", { dir: "auto" }, pieces(answer.reason)),
    h("footer", {}, h("span.dim", {}, facts.filter(Boolean).join(" · "))));
}
