// The groups of a step: its prompts, each with its answers side by side.
import { get, listen } from "./api.js";
import { chart } from "./chart.js";
import { h, later, select, segmented, state } from "./dom.js";
import { groupCard } from "./group.js";
import { runHead } from "./head.js";
import { improved } from "./prompt.js";
import { note } from "./route.js";
import { isPlayed, turnsLegend } from "./turns.js";

const SORTS = [["spread", "spread of rewards"], ["reward", "mean reward"], ["length", "length"], ["prompt", "prompt"],
  ["id", "order in the step"]];
const SHOWS = [["all", "all"], ["informative", "informative"], ["all_right", "all right"], ["all_wrong", "all wrong"],
  ["broken", "broken"], ["improved", "most improved"]];
const TOKENS = [  // key, word, what the colours say
  ["no", "no colour", ""],
  ["logprob", "log-probability", "stronger: less likely"],
  ["ratio", "ratio", "plain: less likely after the update; underlined: more likely"],
];
const PAGE = 8;  // groups per request

export async function open(scope) {
  const { page, query } = scope;
  const run = query.get("run") ?? "";
  const [about, metrics, known] = await Promise.all([
    get("run", { run }, scope.signal), get("metrics", { run, points: 600, names: "reward_mean" }, scope.signal),
    get("steps", { run }, scope.signal),
  ]);
  const head = runHead(scope, "groups", about);
  const seen = {
    run, scope, steps: known.steps, metrics, step: Number(query.get("step") ?? known.steps.at(-1) ?? 0),
    sort: query.get("sort") ?? "spread", order: query.get("order") ?? "desc", show: query.get("show") ?? "all",
    tokens: query.get("tokens") ?? "no", prompt: query.get("prompt") ?? "",
  };
  if (!known.steps.length) {
    const runs = about.summary.status === "running";
    const why = runs ? "They appear after the first step." : "It has no steps, or they were deleted.";
    return page.replaceChildren(head.element, state("This run has no recorded answers", why));
  }
  seen.step = nearestStep(seen.steps, seen.step);
  seen.list = h("div.group-list");
  seen.picker = picker(seen);
  page.replaceChildren(head.element, seen.picker.element, options(seen), seen.list);
  scope.onKey = (event) => onKey(event, seen);
  scope.onClose(() => seen.picker.chart.remove());
  follow(scope, seen, head);
  await refill(seen);
}

function nearestStep(steps, wanted) {
  return steps.reduce((best, step) => (Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best), steps[0]);
}

/** New steps extend the slider; the selected step stays. */
function follow(scope, seen, head) {
  scope.onClose(listen([seen.run], {
    after: () => [seen.metrics.steps.at(-1) ?? -1],
    onEvent: (kind, data) => {
      if (kind === "status") head.update(data.summary);
      if (kind !== "metrics") return;
      const last = seen.steps[seen.steps.length - 1];
      seen.steps.push(...data.steps.filter((step) => step > last));
      seen.metrics.steps.push(...data.steps.filter((step) => step > (seen.metrics.steps.at(-1) ?? -1)));
      const values = seen.metrics.series.reward_mean?.mean;
      values?.push(...(data.series.reward_mean?.mean ?? []).slice(-(seen.metrics.steps.length - values.length)));
      seen.picker.update();
    },
  }));
}

/** Step selection: a curve to click on, a slider, buttons and keys. */
function picker(seen) {
  const plot = h("div.chart.low"), out = h("output.step", {}), read = h("div.read");
  const slider = h("input.grow", { type: "range", min: "0", step: "1", "aria-label": "Step",
    oninput: () => choose(seen.steps[Number(slider.value)]) });
  const ask = later(60, () => refill(seen));
  const choose = (step) => {
    if (step === undefined || step === seen.step) return;
    seen.step = step;
    note({ step, prompt: "" });
    seen.prompt = "";
    update();
    ask();
  };
  const move = (by) => {
    const to = seen.steps.indexOf(seen.step) + by;
    choose(seen.steps[Math.max(0, Math.min(seen.steps.length - 1, to))]);
  };
  const drawn = chart(plot, { title: "Mean reward; click to select a step", read,
    onPick: (x) => choose(nearestStep(seen.steps, x)) });
  const update = () => {
    slider.max = String(seen.steps.length - 1);
    slider.value = String(seen.steps.indexOf(seen.step));
    slider.setAttribute("aria-valuetext", `step ${seen.step}`);
    out.textContent = `step ${seen.step}`;
    const y = seen.metrics.series.reward_mean?.mean ?? [];
    drawn.set({ cursor: seen.step, lines: [{ name: "reward_mean", x: seen.metrics.steps.slice(0, y.length), y }] });
  };
  update();
  const arrow = (label, sign, by) =>
    h("button", { type: "button", "aria-label": label, onclick: () => move(by) }, sign);
  const element = h("section.card.picker", { "aria-label": "Step selection" },
    h("header", {}, h("h3", {}, "Mean reward"), h("span.dim", {}, "click to select a step"), h("span.grow"), read),
    plot, h("div.bar", {}, arrow("Previous step", "←", -1), slider, arrow("Next step", "→", 1), out));
  return { element, chart: drawn, update, move };
}

function onKey(event, seen) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || event.target.matches?.("input, canvas")) return false;
  seen.picker.move(by * (event.shiftKey ? 10 : 1));
  return true;
}

function options(seen) {
  const set = (changes) => {
    Object.assign(seen, changes, { prompt: "" });
    note({ prompt: "", ...changes });
    order.hidden = seen.show === "improved";
    refill(seen);
  };
  const turn = h("button", { type: "button", "aria-label": "Reverse order", title: "Reverse order", onclick: () => {
    set({ order: seen.order === "desc" ? "asc" : "desc" });
    turn.textContent = seen.order === "desc" ? "↓" : "↑";
  } }, seen.order === "desc" ? "↓" : "↑");
  const means = h("span.dim", {}, meaningOf(seen.tokens));
  const order = h("span.joined", { hidden: seen.show === "improved" },
    select("Sort by", SORTS, seen.sort, (sort) => set({ sort })), turn);
  return h("div.bar.tools", {}, segmented("Filter groups", SHOWS, seen.show, (show) => set({ show })), order,
    select("Colour tokens by", TOKENS.map(([key, word]) => [key, word]), seen.tokens, (tokens) => {
      means.textContent = meaningOf(tokens);
      set({ tokens });
    }), means);
}

const meaningOf = (tokens) => TOKENS.find(([key]) => key === tokens)?.[2] ?? "";

/** Loads the groups and shows them; the answer to an outdated request is dropped. */
async function refill(seen, offset = 0) {
  const mine = (seen.request = Symbol("request"));
  seen.list.setAttribute("aria-busy", "true");
  try {
    const parts = await (seen.show === "improved" ? improved(seen) : seen.prompt ? alone(seen) : several(seen, offset));
    if (seen.request !== mine || seen.scope.closed) return;
    if (offset) seen.list.querySelector(".rest")?.replaceWith(...parts);
    else seen.list.replaceChildren(...parts);
  } catch (error) {
    if (error.name === "AbortError" || seen.request !== mine) return;
    seen.list.replaceChildren(state("These answers could not be loaded", error.message));
  } finally {
    seen.list.removeAttribute("aria-busy");
  }
}

async function alone(seen) {
  const group = await get("group", { run: seen.run, step: seen.step, prompt: seen.prompt }, seen.scope.signal);
  const all = h("button", { type: "button", onclick: () => {
    seen.prompt = "";
    note({ prompt: "" });
    refill(seen);
  } }, "All prompts of this step");
  const head = h("div.bar", {}, h("span.dim", {}, "One prompt with its full answers."), all, legend([group]));
  return [head, groupCard(seen, group)];
}

async function several(seen, offset) {
  const { run, step, sort, order, show } = seen;
  const found = await get("groups", { run, step, sort, order, show, limit: PAGE, offset }, seen.scope.signal);
  if (!found.groups.length && !offset) return [nothing(seen)];
  const remaining = found.total - offset - found.groups.length;
  const more = remaining > 0 && h("button.rest", { type: "button", onclick: () => refill(seen, offset + PAGE) },
    `Show ${Math.min(remaining, PAGE)} more of ${remaining}`);
  const many = found.total === 1 ? "1 prompt" : `${found.total} prompts`;
  const tally = !offset && h("div.bar", {}, h("p.dim.tally", { role: "status" }, many), legend(found.groups));
  return [tally, ...found.groups.map((group) => groupCard(seen, group)), more].filter(Boolean);
}

const legend = (groups) => groups.some((group) => group.answers.some(isPlayed)) && turnsLegend();

function nothing(seen) {
  const reasons = {
    informative: "In every group of this step all answers have the same reward: there is nothing to learn from.",
    all_right: "No group of this step was all right.", all_wrong: "No group of this step was all wrong.",
    broken: "No answer of this step is broken.",
  };
  return state("No groups", reasons[seen.show] ?? `Step ${seen.step} has no recorded answers.`);
}
