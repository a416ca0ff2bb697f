// An answer of several turns: what the model wrote and called, and what tools and environments answered.
import { h } from "./dom.js";
import { count } from "./format.js";
import { block, pieces, visible } from "./text.js";

const INLINE = 60;  // characters of an argument that is shown in its call's line

export const isPlayed = (answer) => answer.turns.length > 0;

/** What the two kinds of bubbles mean. */
export function turnsLegend() {
  return h("p.turns-legend", {},
    h("span", {}, h("i.own"), "the model's own tokens: trained on"),
    h("span", {}, h("i.context"), "inserted by tools and the environment: no gradient"));
}

/** @param {any} answer as /api/group has it @param {(tokens: [number, number]) => any} [colour] its tokens as nodes */
export function turnsView(answer, colour) {
  const view = h("div.turns");
  if (answer.start.length) view.append(startView(answer.start));
  for (const some of blocks(answer.turns)) {
    if (some[0].role !== "assistant") {
      view.append(contextView(some, colour));
      continue;
    }
    const { num_prompt: own } = some[0];
    if (own !== null) view.append(h("p.dim.note", {}, `from a prompt of its own, ${count(own)} tokens:`));
    view.append(ownTurn(some[0], colour));
  }
  return view;
}

/** Each turn of the model alone, and the messages between two of them together. */
function blocks(turns) {
  const found = [];
  for (const turn of turns) {
    const own = turn.role === "assistant", last = found.at(-1);
    if (own || !last || last[0].role === "assistant") found.push([turn]);
    else last.push(turn);
  }
  return found;
}

/** The text that was judged, where that is not the model's last. */
export function judgedView(answer) {
  return answer.judged && h("div.judged", {}, h("small.who", {}, h("b", {}, "judged")), block(answer.judged));
}

/** The facts of an answer's footer. */
export function turnFacts(answer) {
  const turns = answer.turns.filter((turn) => turn.role === "assistant").length;
  const failed = answer.num_failed_calls ? `, ${answer.num_failed_calls} failed` : "";
  const inserted = answer.num_inserted ? ` + ${count(answer.num_inserted)} inserted` : "";
  const tokens = `${count(answer.length ?? answer.num_tokens)} tokens${inserted}`;
  return [many(turns, "turn"), answer.num_calls > 0 && many(answer.num_calls, "call") + failed, tokens]
    .filter(Boolean).join(" · ");
}

const many = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function ownTurn(turn, colour) {
  const said = turn.pieces.map((piece) => h(`span${piece.trained ? "" : ".inserted"}`, {}, pieces(piece.text)));
  const shown = colour && turn.tokens ? colour(turn.tokens)
    : [said.length > 0 && h("div.said", { dir: "auto" }, said), turn.calls.map(callView)];
  const empty = !said.length && !turn.calls.length && h("span.dim", {}, "(nothing)");
  const tokens = turn.num_tokens === null ? "" : many(turn.num_tokens, "token");
  const inserted = turn.num_inserted > 0 ? ` + ${count(turn.num_inserted)} inserted` : "";
  return h("div.own", { role: "group", "aria-label": "Model" }, head("model", tokens + inserted), shown, empty);
}

/** What the model was shown first, where its environment changed the prompt. */
function startView(turns) {
  return h("details.start", { open: true }, h("summary.dim", {}, "begins with"), contextView(turns));
}

function head(label, fact, tag = null) {
  return h("small.who", {}, h("b", {}, label), tag, h("span.grow"), fact);
}

/** name(key=value, …); a long value, such as a program, is a block of its own. */
function callView(call) {
  if (call.error) return h("div.call.failed", {}, h("span.tag.wrong", {}, "✗ not readable"), block(call.error));
  const isLong = (each) => each.value.length > INLINE || each.value.includes("\n");
  const short = call.arguments.filter((each) => !isLong(each)), long = call.arguments.filter(isLong);
  const listed = short.flatMap((each, i) => [i > 0 && ", ", h("span.key", {}, visible(each.name), "="),
    h("bdi", {}, pieces(each.is_text ? JSON.stringify(each.value) : each.value))]);
  return h("div.call", {}, h("div.said", { dir: "auto" }, h("b", {}, visible(call.name)), "(", listed,
    long.length > 0 && (short.length ? ", …)" : "…)"), !long.length && ")"),
  long.map((each) => [h("small.key", {}, visible(each.name)), block(each.value)]));
}

/** Messages that came together have their tokens together, too: they are counted, and coloured, with the first. */
function contextView(turns, colour) {
  const { tokens, num_inserted: inserted } = turns[0];
  const coloured = colour && tokens;
  const rows = turns.map((turn, i) => {
    const label = turn.role === "tool" ? turn.name || "tool" : turn.role;
    const tag = turn.failed && h("span.tag.wrong", {}, "✗ failed");
    const fact = i === 0 && inserted > 0 && many(inserted, "token") + (turns.length > 1 ? " together" : "");
    const shown = coloured ? i === 0 && colour(tokens) : block(turn.pieces.map((piece) => piece.text).join(""));
    return h(`div.result${turn.failed ? ".failed" : ""}`, {}, head(visible(label), fact, tag), shown);
  });
  return h("div.context", { role: "group", "aria-label": "Inserted" }, rows);
}
