// How the model was warmed up, or what a run that only imitates has done: its loss, in charts of their own.
import { get } from "./api.js";
import { chart, chartGroup } from "./chart.js";
import { h } from "./dom.js";

const CURVES = [["loss", "Loss", true], ["grad_norm", "Gradient norm", true], ["lr", "Learning rate", false]];
const EVERY = 2000;

/**
 * The charts of imitation, at the end of a page; they stay open while there is nothing else to see.
 * @param {any} scope @param {{id: string, summary: any, metrics: any}} run
 */
export function warmup(scope, run) {
  const element = h("details.warmup", { hidden: true, open: !run.metrics.steps.length }, h("summary", {}, "Imitation",
    h("small.dim", {}, run.summary.kind === "sft" ? "" : " the warm-up, before GRPO")));
  const plots = h("div.cards", {}), group = chartGroup(), drawn = new Map();
  element.append(plots);
  const draw = (told) => {
    element.hidden = told.total === 0;
    for (const [name, title, log] of CURVES) {
      if (!told.series[name]) continue;
      if (!drawn.has(name)) drawn.set(name, card(plots, group, title, log));
      const { mean, low, high } = told.series[name];
      drawn.get(name).set({ lines: [{ name, x: told.steps, y: mean, low, high }] });
    }
  };
  const ask = async () => {
    const told = await get("sft", { run: run.id, points: 600 }, scope.signal).catch(() => null);
    if (told && !scope.closed) draw(told);
  };
  ask();
  const timer = setInterval(() => {
    const grows = run.summary.status === "running" && !run.metrics.steps.length;
    if (grows && !document.hidden) ask();
  }, EVERY);
  scope.onClose(() => {
    clearInterval(timer);
    drawn.forEach((each) => each.remove());
  });
  return element;
}

function card(plots, group, title, log) {
  const plot = h("div.chart"), read = h("div.read");
  plots.append(h("article.card.signal", {}, h("header", {}, h("h3", {}, title), h("span.grow"), read), plot));
  return chart(plot, { title, read, group, log });
}
