// Elements without markup: all text of a run goes into text nodes, never into HTML.

/**
 * An element: h("div.card", {title: "…", onclick: f}, "text", child). A list among the children is spread; null,
 * undefined and false are omitted. `style` is an object and goes through the CSSOM, which the content policy allows.
 * @param {string} name tag.class.class @param {Record<string, any>} [props] @param {...any} children
 * @returns {HTMLElement}
 */
export function h(name, props = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") setStyle(element, value);
    else if (key === "value" || key === "checked" || key === "selected" || key === "open") element[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter(isThere));
  return element;
}

const isThere = (child) => child !== null && child !== undefined && child !== false;

function setStyle(element, values) {
  for (const [key, value] of Object.entries(values)) {
    if (key.startsWith("--")) element.style.setProperty(key, String(value));
    else element.style[key] = value;
  }
}

/** An SVG element: the same, with attributes only. @param {string} name @param {Record<string, any>} [props] */
export function svg(name, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(key, String(value));
  }
  element.append(...children.flat().filter(isThere));
  return element;
}

/** Buttons, one of which is pressed. @param {string} label @param {[string, string][]} choices value and word */
export function segmented(label, choices, chosen, onChoose) {
  const buttons = choices.map(([value, word]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, word));
  const choose = (value) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(choices[i][0] === value)));
    onChoose(value);
  };
  return h("div.segmented", { role: "group", "aria-label": label }, buttons);
}

/** @param {string} label @param {[string, string][]} choices value and word */
export function select(label, choices, chosen, onChoose) {
  const options = choices.map(([value, word]) => h("option", { value, selected: value === chosen }, word));
  return h("label.field", {}, h("span", {}, label),
    h("select", { onchange: (event) => onChoose(event.target.value) }, options));
}

/** A button that copies a text to the clipboard. */
export function copyButton(text, label = "Copy") {
  const button = h("button.copy", { type: "button", "aria-live": "polite" }, label);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text)) ? "Copied" : "Press Ctrl-C";
    setTimeout(() => (button.textContent = label), 1600);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {  // without a secure context there is no clipboard API, but a selection can be copied
    const field = h("textarea.aside", { value: text, "aria-hidden": "true" });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

/** An empty state: what is missing, and what to do. */
export function state(title, text = "", ...more) {
  return h("div.state", {}, h("h2", {}, title), text && h("p", {}, text), more);
}

/** Debounce: only the last of many calls is made, after a pause. */
export function later(wait, call) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), wait);
  };
}
