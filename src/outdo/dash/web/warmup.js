// Supervised training (SFT), as a warm-up or as the whole run: its loss, gradient norm and learning rate.
import { get } from "./api.js";
import { chart, chartGroup } from "./chart.js";
import { h } from "./dom.js";

const CURVES = [["loss", "Loss", true], ["grad_norm", "Gradient norm", true], ["lr", "Learning rate", false]];
const POLL = 2000;  // milliseconds between two requests

/**
 * The charts of supervised training at the end of a page; they are open while there is nothing else to see.
 * @param {any} scope @param {{id: string, summary: any, metrics: any}} run
 */
export function warmup(scope, run) {
  const element = h("details.warmup", { hidden: true, open: !run.metrics.steps.length },
    h("summary", {}, "Supervised training",
    h("small.dim", {}, run.summary.kind === "sft" ? "" : " the warm-up, before GRPO")));
  const plots = h("div.cards", {}), group = chartGroup(), drawn = new Map();
  element.append(plots);
  const draw = (curves) => {
    element.hidden = curves.total === 0;
    for (const [name, title, log] of CURVES) {
      if (!curves.series[name]) continue;
      if (!drawn.has(name)) drawn.set(name, card(plots, group, title, log));
      const { mean, low, high } = curves.series[name];
      drawn.get(name).set({ lines: [{ name, x: curves.steps, y: mean, low, high }] });
    }
  };
  const load = async () => {
    const curves = await get("sft", { run: run.id, points: 600 }, scope.signal).catch(() => null);
    if (curves && !scope.closed) draw(curves);
  };
  load();
  const timer = setInterval(() => {
    const grows = run.summary.status === "running" && !run.metrics.steps.length;
    if (grows && !document.hidden) load();
  }, POLL);
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
