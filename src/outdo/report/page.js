// Draws the report's numbers as charts. The chart scripts come first in the same module.
const data = JSON.parse(document.getElementById("data").textContent);
const groups = { grpo: chartGroup(), sft: chartGroup() };
const drawnCharts = [];

document.documentElement.classList.add("live");
for (const element of document.querySelectorAll("[data-chart]")) {
  const given = data.charts[Number(element.dataset.chart)];
  const x = data.axes[given.axis].steps;
  const lines = given.lines.map((line) => ({ ...line, x }));
  const read = element.parentElement.querySelector(".read");
  const made = chart(element, { ...given, lines, group: groups[given.axis], read, smooth: smoothness(), xKind: "steps" });
  drawnCharts.push({ given, made });
}

function smoothness() {
  return document.getElementById("smooth")?.checked ? 0.6 : 0;
}

/** Evaluations and findings have steps: on another axis, their position is the end of that step. */
function placedAt(axis, kind, step) {
  if (kind === "steps") return step;
  const at = nearest(axis.steps, step);
  return step < axis.steps[0] ? 0 : axis[kind][at] ?? 0;
}

function redraw() {
  const kind = document.getElementById("axis")?.value ?? "steps";
  for (const { given, made } of drawnCharts) {
    const axis = data.axes[given.axis], xKind = axis[kind] ? kind : "steps";
    const at = (each) => ({ ...each, x: placedAt(axis, xKind, each.x) });
    made.set({ lines: given.lines.map((line) => ({ ...line, x: axis[xKind] })), points: given.points.map(at),
      marks: given.marks.map(at), smooth: smoothness(), xKind });
  }
}

document.getElementById("smooth")?.addEventListener("change", redraw);
document.getElementById("axis")?.addEventListener("change", () => {
  groups.grpo.zoom(null);
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawnCharts.forEach(({ made }) => made.redraw()));
