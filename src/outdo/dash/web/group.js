// One group: a prompt and its answers side by side, each with its reward and the reason.
import { get } from "./api.js";
import { h } from "./dom.js";
import { share, short, signed, typed } from "./format.js";
import { to } from "./route.js";
import { block, cuttable, pieces, showAll, visible } from "./text.js";
import { isPlayed, judgedView, turnFacts, turnsView } from "./turns.js";

const VERDICTS = { right: ["✓", "right"], wrong: ["✗", "wrong"], broken: ["⚠", "broken"] };
const FULL_BAR = 2;  // the advantage of a full bar

/** @param {any} seen see groups.js @param {any} group as /api/group has it */
export function groupCard(seen, group) {
  const link = { run: seen.run, prompt: group.prompt_id };
  const rest = group.messages?.slice(0, -1) ?? [];
  const wanted = group.answer ?? null;
  return h("article.card.group", { "aria-label": `Prompt ${visible(group.prompt_id)}` },
    h("header", {},
      h("div.asked", {}, rest.length > 0 && earlier(rest), block(group.prompt, "said.prompt"),
        wanted !== null && h("p.dim", {}, "expected ", h("bdi.mono", {}, pieces(typed(wanted).slice(0, 300))))),
      h("div.tallies", {}, tallies(group),
        h("a", { href: to("groups", { run: seen.run, step: group.step, prompt: group.prompt_id }) }, "open"),
        h("a", { href: to("prompt", link) }, "through the steps"))),
    h(`div.answers${group.answers.some(isPlayed) ? ".played" : ""}`, {},
      group.answers.map((answer) => answerCard(seen, group, answer))));
}

function earlier(messages) {
  const many = messages.length === 1 ? "1 earlier message" : `${messages.length} earlier messages`;
  return h("details.earlier", {}, h("summary", {}, many),
    messages.map((message) => [h("small.dim", {}, visible(message.role)), block(typed(message.content))]));
}

function tallies(group) {
  const counts = [["right", group.right], ["wrong", group.wrong], ["broken", group.broken]].filter(([, n]) => n > 0);
  return [
    ...counts.map(([kind, n]) => h(`span.tag.${kind}`, {}, `${VERDICTS[kind][0]} ${n} ${kind}`)),
    h("span.dim.num", {}, `mean ${share(group.mean)} · spread ${share(group.spread)}`),
  ];
}

/** Runs of other trainers do not record the length of an answer. */
function sizeOf(answer) {
  if (isPlayed(answer)) return turnFacts(answer);
  return answer.length === null ? "" : `${answer.length} tokens`;
}

function answerCard(seen, group, answer) {
  const [sign, word] = VERDICTS[answer.verdict] ?? ["·", answer.verdict || "no verdict"];
  const way = answer.advantage > 1e-6 ? "up" : answer.advantage < -1e-6 ? "down" : "flat";
  const text = h("div.text", {}, isPlayed(answer) ? played(seen, group, answer)
    : cuttable(answer.text, answer.cut, async () => textOf(await load(seen, group, answer))));
  const card = h(`section.answer.${way}`, { "aria-label": `Answer ${answer.index + 1}` },
    h("header", {}, h(`span.tag.${answer.verdict}`, {}, `${sign} ${visible(word)}`), h("span.grow"),
      h("span.num", {}, h("small.dim", {}, "reward "), short(answer.reward))),
    advantageBar(answer.advantage),
    text,
    answer.reason && h("p.reason", { dir: "auto" }, pieces(answer.reason.slice(0, 600))),
    h("footer", {},
      Object.entries(answer.parts).map(([name, value]) => h("span.part", {}, visible(name), h("b", {}, short(value)))),
      h("span.grow"), h("span.dim", {},
        [sizeOf(answer), visible(answer.finish)].filter(Boolean).join(" · "))));
  if (seen.tokens !== "no") colour(seen, group, answer, text);
  return card;
}

/** Its turns, with a button that loads what is cut, and the text that was judged where that is another. */
function played(seen, group, answer) {
  const parts = [turnsView(answer), judgedView(answer)];
  if (!answer.cut) return parts;
  return [...parts, showAll(async (button) => {
    const found = await load(seen, group, answer);
    button.parentElement.replaceChildren(...[turnsView(found), judgedView(found)].filter(Boolean));
  })];
}

async function load(seen, group, answer) {
  const full = await get("group", { run: seen.run, step: group.step, prompt: group.prompt_id }, seen.scope.signal);
  const found = full.answers.find((each) => each.index === answer.index);
  if (!found) throw new Error("the answer no longer exists");
  return found;
}

const textOf = (answer) => answer.text + (answer.cut ? "\n… the rest is in the run's groups folder" : "");

/** A bar to the right for a positive advantage, to the left for a negative one. */
function advantageBar(advantage) {
  if (typeof advantage !== "number") return h("div.advantage.none", {}, h("span", {}, "no advantage"));
  const part = Math.min(1, Math.abs(advantage) / FULL_BAR) * 50;
  return h("div.advantage", { title: "advantage: how much better than the group's mean" },
    h("div.rail", {}, h(`div.${advantage < 0 ? "minus" : "plus"}`,
      { style: { width: `${part}%`, [advantage < 0 ? "right" : "left"]: "50%" } })),
    h("span.num", {}, signed(advantage)));
}

/** Colours an answer's tokens, where the run recorded them. */
async function colour(seen, group, answer, text) {
  if (!answer.has_tokens) {
    text.append(h("p.dim.note", {}, "Tokens were not recorded: log_tokens sets how many groups per step have them."));
    return;
  }
  try {
    const { tokens } = await get("tokens",
      { run: seen.run, step: group.step, prompt: group.prompt_id, answer: answer.index }, seen.scope.signal);
    const spans = (some) => h("div.said.tokens", { dir: "auto" }, some.map((token) => tokenSpan(token, seen.tokens)));
    text.replaceChildren(isPlayed(answer) ? turnsView(answer, ([from, to]) => spans(tokens.slice(from, to)))
      : spans(tokens));
  } catch (error) {
    if (error.name !== "AbortError") text.append(h("p.dim.note", {}, error.message));
  }
}

function tokenSpan(token, by) {
  const value = by === "ratio" ? token.ratio : token.logprob;
  const title = `log p ${short(token.logprob)}${token.ratio === null ? "" : `, ratio ${short(token.ratio)}`}`;
  if (value === null || value === undefined) return h("span", { title }, pieces(token.text));
  // A ratio goes either way from 1, a log-probability down from 0.
  const far = by === "ratio" ? Math.abs(Math.log(Math.max(value, 1e-9))) / 0.3 : -value / 4;
  const strength = Math.min(1, far);
  if (strength < 0.03) return h("span.token", { title }, pieces(token.text));
  const way = by === "ratio" && value > 1 ? "more" : "less";
  return h(`span.token.${way}`, { title, style: { "--strength": strength.toFixed(3) } }, pieces(token.text));
}
