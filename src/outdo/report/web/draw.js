// What a chart puts on its canvases. Colours are CSS custom properties of the chart's element, with defaults.
import { clock, logTicks, nearest, placed, short, ticks } from "./scale.js";

const COLOURS = ["#0868ac", "#c25400", "#00795c", "#8a3d99", "#b3224b", "#7a5a00", "#2488b8", "#59606b"];
export const DASHES = [[], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [1, 3], [12, 4], [6, 2, 2, 2, 2, 2]];
export const GLYPHS = ["●", "■", "▲", "◆", "▼", "✚", "○", "□"];
const CORNERS = {  // of the markers that are not round
  1: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
  2: [[0, -1.2], [1.2, 1], [-1.2, 1]],
  3: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
  4: [[-1.2, -1], [1.2, -1], [0, 1.2]],
  5: [[-0.4, -1.2], [0.4, -1.2], [0.4, -0.4], [1.2, -0.4], [1.2, 0.4], [0.4, 0.4], [0.4, 1.2], [-0.4, 1.2],
    [-0.4, 0.4], [-1.2, 0.4], [-1.2, -0.4], [-0.4, -0.4]],
};
const EDGE = { left: 46, right: 12, top: 12, bottom: 20 };

function colours(element) {
  const css = getComputedStyle(element);
  const of = (name, otherwise) => css.getPropertyValue(name).trim() || otherwise;
  return {
    lines: COLOURS.map((otherwise, i) => of(`--line-${i}`, otherwise)),
    ink: of("--ink", "#1d2129"), muted: of("--muted", "#5d6673"), grid: of("--grid", "#e4e3df"),
    good: of("--good", "#00795c"), bad: of("--bad", "#b3224b"), surface: of("--surface", "#ffffff"),
    font: `11px ${css.fontFamily || "sans-serif"}`,
  };
}

function extents(given, drawn, range) {
  let left = Infinity, right = -Infinity, low = Infinity, high = -Infinity;
  const wide = (x) => { left = Math.min(left, x); right = Math.max(right, x); };
  given.lines.forEach((line) => { if (line.x.length) { wide(line.x[0]); wide(line.x[line.x.length - 1]); } });
  given.points.forEach((point) => wide(point.x));
  if (range) [left, right] = range;
  const tall = (x, y) => {
    if (y === null || y === undefined || x < left || x > right || (given.log && y <= 0)) return;
    low = Math.min(low, y); high = Math.max(high, y);
  };
  given.lines.forEach((line, k) => line.x.forEach((x, i) => {
    tall(x, drawn[k][i]); tall(x, line.y[i]); tall(x, line.low?.[i]); tall(x, line.high?.[i]);
  }));
  given.points.forEach((point) => { tall(point.x, point.y); tall(point.x, point.low); tall(point.x, point.high); });
  return { left, right, low, high };
}

/** The window in the data's units; the edge of a band is shown where it is near. */
function windowOf(given, drawn, range) {
  let { left, right, low, high } = extents(given, drawn, range);
  if (!(right >= left) || !(high >= low)) return null;
  const log = given.log && low > 0;
  if (high - low < 1e-9 * Math.abs(high)) low = high = (low + high) / 2;  // a difference from rounding
  if (right === left) { left -= 0.5; right += 0.5; }
  if (high === low && high !== 0 && !log) [low, high] = [high - Math.abs(high) / 2, high + Math.abs(high) / 2];
  const span = high - low || Math.abs(high) * 0.1 || 1;
  for (const edge of given.bands.flatMap((band) => [band.from, band.to])) {
    if (edge === null || log) continue;
    if (edge > high && edge - high < span * 0.6) high = edge + (edge - low) * 0.25;
    if (edge < low && low - edge < span * 0.6) low = edge - (high - edge) * 0.25;
  }
  if (log) return { left, right, low: low / 1.15, high: high * 1.15 === low / 1.15 ? high * 2 : high * 1.15, log };
  if (high === 0 && low === 0) high = 1;
  const pad = (high - low || span) * 0.06;
  return { left, right, low: low >= 0 && low - pad < 0 ? Math.min(0, low) : low - pad, high: high + pad, log };
}

function fitted(canvas, element) {
  const width = element.clientWidth, height = element.clientHeight, dpr = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * dpr), Math.round(height * dpr)];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const pen = canvas.getContext("2d");
  pen.setTransform(dpr, 0, 0, dpr, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

/** Everything that does not follow the pointer. Returns the window, or null where there is nothing to draw. */
export function drawBase(canvas, element, given, drawn, range) {
  const { pen, width, height } = fitted(canvas, element);
  const paint = colours(element);
  pen.font = paint.font;
  const found = windowOf(given, drawn, range);
  if (!found || width < 60) {
    pen.fillStyle = paint.muted;
    pen.textAlign = "center";
    pen.fillText(range ? "no data here: double-click to reset the zoom" : "not measured yet", width / 2, height / 2);
    return null;
  }
  const bottom = height - EDGE.bottom, inner = width - EDGE.left - EDGE.right;
  const scale = found.log ? Math.log : (v) => v;
  const [low, high] = [scale(found.low), scale(found.high)];
  const view = {
    ...found, width, height, bottom, colours: paint,
    x: (v) => EDGE.left + ((v - found.left) / (found.right - found.left)) * inner,
    unX: (px) => found.left + ((px - EDGE.left) / inner) * (found.right - found.left),
    y: (v) => bottom - ((scale(v) - low) / (high - low)) * (bottom - EDGE.top),
  };
  drawBands(pen, view, given.bands);
  drawAxes(pen, view, given.xKind, inner);
  pen.save();
  pen.beginPath();
  pen.rect(EDGE.left - 1, 0, inner + 2, bottom + 1);
  pen.clip();
  drawMarks(pen, view, given.marks);
  given.lines.forEach((line, k) => drawLine(pen, view, line, drawn[k], given.smooth > 0));
  pen.restore();
  const inside = given.points.filter((point) => point.x >= found.left && point.x <= found.right);
  inside.forEach((point) => drawPoint(pen, view, point));
  return view;
}

function drawBands(pen, view, bands) {
  for (const band of bands) {
    const top = band.to === null ? EDGE.top : Math.max(EDGE.top, Math.min(view.bottom, view.y(band.to)));
    const open = band.from === null || (view.log && band.from <= 0);
    const foot = open ? view.bottom : Math.min(view.bottom, Math.max(EDGE.top, view.y(band.from)));
    if (!(foot - top > 0.5)) continue;
    pen.save();
    pen.beginPath();
    pen.rect(EDGE.left, top, view.width - EDGE.left - EDGE.right, foot - top);
    pen.clip();
    pen.globalAlpha = 0.06;
    pen.fillStyle = view.colours[band.kind];
    pen.fillRect(EDGE.left, top, view.width, foot - top);
    if (band.kind === "bad") {  // hatched, so that colour is not the only cue
      pen.globalAlpha = 0.16;
      pen.strokeStyle = view.colours.bad;
      pen.lineWidth = 1;
      pen.beginPath();
      for (let x = EDGE.left - view.height; x < view.width; x += 10) {
        pen.moveTo(x, view.bottom);
        pen.lineTo(x + view.height, view.bottom - view.height);
      }
      pen.stroke();
    }
    pen.restore();
  }
}

function drawAxes(pen, view, kind, inner) {
  const { grid, muted } = view.colours;
  pen.lineWidth = 1;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const room = Math.max(2, (view.bottom - EDGE.top) / 32);
  const rows = view.log ? logTicks(view.low, view.high) : ticks(view.low, view.high, room, "");
  for (const value of rows) {
    const y = Math.round(view.y(value)) + 0.5;
    if (y < EDGE.top - 1 || y > view.bottom + 1) continue;
    pen.strokeStyle = grid;
    pen.beginPath(); pen.moveTo(EDGE.left, y); pen.lineTo(view.width - EDGE.right, y); pen.stroke();
    pen.fillStyle = muted;
    pen.fillText(short(value), EDGE.left - 6, y);
  }
  pen.textBaseline = "alphabetic";
  for (const value of ticks(view.left, view.right, Math.max(2, inner / 70), kind)) {
    const label = kind === "time" ? clock(value) : short(value);
    const x = view.x(value), half = pen.measureText(label).width / 2;
    pen.textAlign = x + half > view.width ? "right" : "center";
    pen.fillText(label, x + half > view.width ? view.width - 1 : x, view.height - 5);
  }
}

function drawMarks(pen, view, marks) {
  for (const mark of marks) {
    const x = Math.round(view.x(mark.x)) + 0.5;
    pen.save();
    pen.strokeStyle = pen.fillStyle = mark.severity === "info" ? view.colours.muted : view.colours.bad;
    if (mark.until !== undefined) {
      pen.globalAlpha = 0.06;
      pen.fillRect(x, EDGE.top, view.x(mark.until) - x, view.bottom - EDGE.top);
      pen.globalAlpha = 1;
    }
    pen.setLineDash([3, 3]);
    pen.beginPath(); pen.moveTo(x, EDGE.top); pen.lineTo(x, view.bottom); pen.stroke();
    pen.beginPath(); pen.moveTo(x - 5, 1); pen.lineTo(x + 5, 1); pen.lineTo(x, 10); pen.closePath(); pen.fill();
    pen.restore();
  }
}

function drawLine(pen, view, line, values, isSmooth) {
  const style = (line.style ?? 0) % COLOURS.length;
  pen.save();
  pen.strokeStyle = pen.fillStyle = view.colours.lines[style];
  pen.lineJoin = "round";
  if (line.low && line.high) {
    pen.globalAlpha = 0.16;
    runsOf(line, line.low, view).forEach((run) => {
      pen.beginPath();
      run.forEach((i, n) => pen[n ? "lineTo" : "moveTo"](view.x(line.x[i]), view.y(line.high[i])));
      run.toReversed().forEach((i) => pen.lineTo(view.x(line.x[i]), view.y(line.low[i])));
      pen.fill();
    });
  }
  if (isSmooth) { pen.globalAlpha = 0.25; pen.lineWidth = 1; stroke(pen, view, line, line.y); }
  pen.globalAlpha = 1;
  pen.lineWidth = 1.75;
  pen.setLineDash(DASHES[style]);
  stroke(pen, view, line, values);
  pen.setLineDash([]);
  let last = -Infinity;
  if (style > 0) line.x.forEach((x, i) => {  // a few markers: another way to distinguish lines
    if (values[i] !== null && view.x(x) - last > 70 && !(view.log && values[i] <= 0)) {
      last = view.x(x);
      marker(pen, style, last, view.y(values[i]), 3);
    }
  });
  pen.restore();
}

/** Unbroken parts of a line, with one value beyond the window on each side. */
function runsOf(line, values, view) {
  const runs = [[]];
  line.x.forEach((x, i) => {
    const next = line.x[i + 1], before = line.x[i - 1];
    if ((x < view.left && next < view.left) || (x > view.right && before > view.right)) return;
    if (values[i] === null || values[i] === undefined || (view.log && values[i] <= 0)) runs.push([]);
    else runs[runs.length - 1].push(i);
  });
  return runs.filter((run) => run.length);
}

function stroke(pen, view, line, values) {
  for (const run of runsOf(line, values, view)) {
    if (run.length === 1) { marker(pen, 0, view.x(line.x[run[0]]), view.y(values[run[0]]), 2); continue; }
    pen.beginPath();
    run.forEach((i, n) => pen[n ? "lineTo" : "moveTo"](view.x(line.x[i]), view.y(values[i])));
    pen.stroke();
  }
}

function drawPoint(pen, view, point) {
  if (point.y === null || (view.log && point.y <= 0)) return;
  const [x, y] = [view.x(point.x), view.y(point.y)];
  pen.strokeStyle = pen.fillStyle = view.colours.lines[(point.style ?? 0) % COLOURS.length];
  pen.lineWidth = 1.5;
  if (typeof point.low === "number" && typeof point.high === "number") {
    const [low, high] = [view.y(view.log ? Math.max(point.low, view.low) : point.low), view.y(point.high)];
    pen.beginPath();
    pen.moveTo(x, low); pen.lineTo(x, high);
    pen.moveTo(x - 3, low); pen.lineTo(x + 3, low);
    pen.moveTo(x - 3, high); pen.lineTo(x + 3, high);
    pen.stroke();
  }
  marker(pen, point.style ?? 0, x, y, 4, view.colours.surface);
}

function marker(pen, style, x, y, r, ring) {
  pen.beginPath();
  const corners = CORNERS[style % COLOURS.length];
  if (corners) corners.forEach(([dx, dy], i) => pen[i ? "lineTo" : "moveTo"](x + dx * r, y + dy * r));
  else pen.arc(x, y, r, 0, 2 * Math.PI);
  pen.closePath();
  pen.fill();
  if (ring) { pen.save(); pen.strokeStyle = ring; pen.lineWidth = 1; pen.stroke(); pen.restore(); }
}

/** What follows the pointer. */
export function drawOver(canvas, element, view, given, drawn, hovered, drag) {
  const { pen } = fitted(canvas, element);
  if (!view) return;
  const upright = (value, colour) => {
    const x = Math.round(view.x(value)) + 0.5;
    pen.strokeStyle = colour;
    pen.beginPath(); pen.moveTo(x, EDGE.top); pen.lineTo(x, view.bottom); pen.stroke();
  };
  if (typeof given.cursor === "number") {
    pen.lineWidth = 2;
    upright(given.cursor, view.colours.ink);
    pen.lineWidth = 1;
  }
  if (drag?.wide) {
    pen.globalAlpha = 0.12;
    pen.fillStyle = view.colours.ink;
    pen.fillRect(view.x(drag.from), EDGE.top, view.x(drag.to) - view.x(drag.from), view.bottom - EDGE.top);
    pen.globalAlpha = 1;
  }
  if (hovered === null || hovered < view.left || hovered > view.right) return;
  upright(hovered, view.colours.muted);
  given.lines.forEach((line, k) => {
    const i = nearest(line.x, hovered), value = i < 0 ? null : drawn[k][i];
    if (value === null || value === undefined || (view.log && value <= 0)) return;
    pen.fillStyle = view.colours.lines[(line.style ?? 0) % COLOURS.length];
    marker(pen, line.style ?? 0, view.x(line.x[i]), view.y(value), 4, view.colours.surface);
  });
}

/** Values at the pointer, or the newest ones. Names only where there is more than one line. */
export function readOut(read, given, drawn, hovered, element) {
  const parts = [], paint = colours(element);
  given.lines.slice(0, 8).forEach((line, k) => {
    let i = hovered === null ? line.x.length - 1 : nearest(line.x, hovered);
    while (hovered === null && i > 0 && drawn[k][i] === null) i--;
    const part = document.createElement("span");
    if (given.lines.length > 1) {
      const glyph = part.appendChild(document.createElement("i"));
      glyph.textContent = GLYPHS[(line.style ?? 0) % GLYPHS.length];
      glyph.style.color = paint.lines[(line.style ?? 0) % COLOURS.length];
      part.title = line.name;
    }
    part.append(short(i < 0 ? null : drawn[k][i]));
    parts.push(part);
  });
  if (hovered !== null && given.lines.length) {
    const where = document.createElement("small");
    where.textContent = placed(hovered, given.xKind);
    parts.unshift(where);
  }
  read.replaceChildren(...parts);
}
