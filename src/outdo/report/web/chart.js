// A chart on a canvas: lines with envelopes, points with intervals, bands and marks; hover, zoom and the keyboard are
// shared by the charts of a group. The dashboard loads it with scale.js and draw.js; a report embeds the three.
import { drawBase, drawOver, readOut } from "./draw.js";
import { nearest, placed, short, smoothed } from "./scale.js";

/**
 * `y` has null where nothing was measured; `low` and `high` are drawn as an envelope; `style` (0 to 7) picks colour,
 * dash and marker.
 * @typedef {{name: string, x: number[], y: (number|null)[], low?: (number|null)[]|null, high?: (number|null)[]|null,
 *   style?: number}} Line
 * @typedef {{name: string, x: number, y: number, low?: number|null, high?: number|null, style?: number}} Point
 * @typedef {{from: number|null, to: number|null, kind: "good"|"bad"}} Band   null: without end on that side
 * @typedef {{x: number, label: string, severity?: string, until?: number}} Mark   `until` shades from x on
 * @typedef {{title?: string, lines?: Line[], points?: Point[], bands?: Band[], marks?: Mark[], log?: boolean,
 *   smooth?: number, xKind?: "steps"|"time"|"tokens", cursor?: number|null, group?: Group, read?: HTMLElement,
 *   onPick?: (x: number) => void}} Options   smooth: 0 to 0.99; cursor: an x that stays marked
 * @typedef {{charts: Set<{paint: (whole: boolean) => void}>, x: number|null, range: [number, number]|null,
 *   hover: (x: number|null) => void, zoom: (range: [number, number]|null) => void,
 *   onZoom: ((range: [number, number]|null) => void)|null}} Group
 */

/** Charts of the same group hover and zoom together. @returns {Group} */
export function chartGroup() {
  const group = {
    charts: new Set(), x: null, range: null, onZoom: null,
    hover(x) { if (x !== group.x) { group.x = x; group.charts.forEach((each) => each.paint(false)); } },
    zoom(range) { group.range = range; group.charts.forEach((each) => each.paint(true)); group.onZoom?.(range); },
  };
  return group;
}

/**
 * Draws a chart in an element and keeps it drawn. `set` changes options, `remove` removes it.
 * @param {HTMLElement} element @param {Options} options
 */
export function chart(element, options) {
  const me = {
    given: { lines: [], points: [], bands: [], marks: [], smooth: 0, log: false, xKind: "steps", ...options },
    drawn: [], view: null, drag: null,
    paint(all) {
      whole ||= all;
      if (shown && !due) due = requestAnimationFrame(draw);
    },
  };
  const group = me.given.group ?? chartGroup();
  const read = me.given.read ?? element.appendChild(document.createElement("div"));
  read.classList.add("chart-read");
  const [base, over] = [layer(element), layer(element)];
  let shown = true, due = 0, whole = true;
  const draw = () => {
    due = 0;
    if (whole) renew();
    drawOver(over, element, me.view, me.given, me.drawn, group.x, me.drag);
    readOut(read, me.given, me.drawn, group.x, element);
  };
  const renew = () => {
    whole = false;
    me.drawn = me.given.lines.map((line) => (me.given.smooth > 0 ? smoothed(line.y, me.given.smooth) : line.y));
    me.view = drawBase(base, element, me.given, me.drawn, group.range);
    over.setAttribute("aria-label", summary(me.given));
  };
  const set = (more) => {
    me.given = { ...me.given, ...more };
    me.paint(true);
  };
  over.tabIndex = 0;
  over.setAttribute("role", "img");
  followPointer(over, me, group);
  over.addEventListener("blur", () => group.hover(null));
  over.addEventListener("keydown", (event) => onKey(event, me, group));
  const sizes = new ResizeObserver(() => me.paint(true));
  const sight = new IntersectionObserver((seen) => {  // charts out of view are not drawn
    shown = seen[seen.length - 1].isIntersecting;
    if (shown) me.paint(whole);
  }, { rootMargin: "200px" });
  const redraw = () => me.paint(true);
  sizes.observe(element);
  sight.observe(element);
  document.addEventListener("theme", redraw);  // colours have changed
  group.charts.add(me);
  set({});
  return {
    set,
    redraw,
    remove() {
      sizes.disconnect();
      sight.disconnect();
      document.removeEventListener("theme", redraw);
      cancelAnimationFrame(due);
      group.charts.delete(me);
      base.remove();
      over.remove();
    },
  };
}

/** A canvas over the whole element, which it must be laid out in. */
function layer(element) {
  if (getComputedStyle(element).position === "static") element.style.position = "relative";
  const canvas = element.appendChild(document.createElement("canvas"));
  const whole = { position: "absolute", inset: "0", width: "100%", height: "100%" };
  Object.assign(canvas.style, whole, { touchAction: "pan-y" });
  return canvas;
}

function snapped(given, x) {
  const list = given.lines[0]?.x ?? given.points.map((each) => each.x);
  const i = nearest(list, x);
  return i < 0 ? x : list[i];
}

/** Hover reads values, a drag zooms, a double click resets, a click selects. */
function followPointer(over, me, group) {
  const at = (event) => (me.view ? me.view.unX(event.clientX - over.getBoundingClientRect().left) : 0);
  over.addEventListener("pointerdown", (event) => {
    if (event.button === 0) me.drag = { from: at(event), to: at(event), left: event.clientX, wide: false };
  });
  over.addEventListener("pointermove", (event) => {
    if (me.drag && event.buttons & 1) {
      me.drag.to = at(event);
      if (!me.drag.wide && Math.abs(event.clientX - me.drag.left) > 5) {
        me.drag.wide = true;
        over.setPointerCapture(event.pointerId);
      }
      me.paint(false);
    }
    group.hover(snapped(me.given, at(event)));
  });
  over.addEventListener("pointerup", (event) => {
    const made = me.drag;
    me.drag = null;
    if (made?.wide && made.from !== made.to) group.zoom([Math.min(made.from, made.to), Math.max(made.from, made.to)]);
    else if (made) me.given.onPick?.(snapped(me.given, at(event)));
  });
  over.addEventListener("pointercancel", () => {
    me.drag = null;
    me.paint(false);
  });
  over.addEventListener("pointerleave", () => {
    if (!me.drag) group.hover(null);
  });
  over.addEventListener("dblclick", () => group.zoom(null));
}

function onKey(event, { given, view }, group) {
  const list = given.lines[0]?.x ?? [];
  const i = group.x === null ? list.length - 1 : nearest(list, group.x);
  const by = event.shiftKey ? 10 : 1;
  const to = { ArrowLeft: i - by, ArrowRight: i + by, Home: 0, End: list.length - 1 }[event.key];
  if (to !== undefined && list.length) group.hover(list[Math.max(0, Math.min(list.length - 1, to))]);
  else if (event.key === "Enter" && group.x !== null) given.onPick?.(group.x);
  else if (event.key === "Escape" && group.range) group.zoom(null);
  else if ((event.key === "+" || event.key === "-") && view) {
    const middle = group.x ?? (view.left + view.right) / 2;
    const half = (view.right - view.left) * (event.key === "+" ? 0.25 : 1);
    group.zoom([middle - half, middle + half]);
  } else return;
  event.preventDefault();
  event.stopPropagation();
}

/** The chart as text, for screen readers. */
function summary(given) {
  const lines = given.lines.slice(0, 4).map((line) => {
    const has = line.y.map((_, i) => i).filter((i) => line.y[i] !== null);
    if (!has.length) return `${line.name}: not measured`;
    const [a, b] = [has[0], has[has.length - 1]];
    return `${line.name} ${short(line.y[a])} at ${placed(line.x[a], given.xKind)}, ` +
      `${short(line.y[b])} at ${placed(line.x[b], given.xKind)}`;
  });
  const marks = given.marks.map((mark) => `${mark.label} since ${placed(mark.x, given.xKind)}`);
  return [given.title, ...lines, ...marks, "arrow keys read values"].filter(Boolean).join("; ");
}
