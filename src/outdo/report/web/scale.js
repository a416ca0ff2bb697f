// Numbers for people, and the pure parts of a chart: where ticks go, what smoothing does.

/** Four digits at most, short where large or tiny. @param {number|null|undefined} value */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 999.5) {
    const [unit, name] = size >= 999.5e6 ? [1e9, "G"] : size >= 999.5e3 ? [1e6, "M"] : [1e3, "k"];
    return String(Number((value / unit).toPrecision(3))) + name;
  }
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace("e-", "e−");
  return String(Number(value.toPrecision(3)));
}

/** @param {number} x @param {string} kind */
export function placed(x, kind) {
  if (kind === "tokens") return `${short(x)} tokens`;
  return kind === "time" ? clock(x) : `step ${Math.round(x)}`;
}

export function clock(seconds) {
  const whole = Math.round(seconds);
  if (seconds < 10 && seconds !== whole) return `${Number(seconds.toFixed(1))} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min` + (whole % 60 ? ` ${whole % 60} s` : "");
  return `${Math.floor(whole / 3600)} h` + (whole % 3600 >= 60 ? ` ${Math.floor((whole % 3600) / 60)} min` : "");
}

/** Exponential moving average without bias at the start; values near 0 become 0. */
export function smoothed(values, weight) {
  let sum = 0, share = 0, most = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    most = Math.max(most, Math.abs(value));
    sum = sum * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return Math.abs(sum) < 1e-4 * most ? 0 : sum / share;
  });
}

export function ticks(low, high, room, kind) {
  const raw = (high - low) / Math.max(1, room);
  if (!(raw > 0)) return [low];
  const base = 10 ** Math.floor(Math.log10(raw));
  const steps = kind === "time" && raw > 5 ? [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400]
    : [1, 2, 5, 10].map((each) => (kind === "steps" ? Math.max(1, each * base) : each * base));
  const step = steps.find((each) => each >= raw * 0.999) ?? steps[steps.length - 1];
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && found.length < 50; i++) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

export function logTicks(low, high) {
  const found = [];
  const spread = Math.log10(high / low);
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const digit of spread < 1.5 ? [1, 2, 5] : [1]) found.push(digit * 10 ** power);
  }
  const inside = found.filter((each) => each >= low * 0.999 && each <= high * 1.001);
  return inside.length > 6 ? inside.filter((_, i) => i % Math.ceil(inside.length / 6) === 0) : inside;
}

/** Index of the value nearest to x in a rising list, or −1. */
export function nearest(list, x) {
  let low = 0, high = list.length - 1;
  if (high < 0) return -1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(list[low] - x) <= Math.abs(list[high] - x) ? low : high;
}
