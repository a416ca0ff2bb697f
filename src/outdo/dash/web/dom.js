// Elements without markup: whatever a run says ends up in text nodes, never in HTML.

/**
 * An element: h("div.card", {title: "…", onclick: f}, "text", child). A list among the children is spread; null,
 * undefined and false are left out. `style` is an object and goes through the CSSOM, which the content policy allows.
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

/** Buttons of which one is pressed. @param {string} label @param {[string, string][]} choices value and word */
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

/** A button that puts words on the clipboard and says so. */
export function copyButton(words, label = "Copy") {
  const button = h("button.copy", { type: "button", "aria-live": "polite" }, label);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(words)) ? "Copied" : "Press Ctrl-C";
    setTimeout(() => (button.textContent = label), 1600);
  });
  return button;
}

async function copied(words) {
  try {
    await navigator.clipboard.writeText(words);
    return true;
  } catch {  // an address that is no secure context has no clipboard: what is selected can be copied there
    const field = h("textarea.aside", { value: words, "aria-hidden": "true" });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

/** What stands where there is nothing to show: what is so, and what to do. */
export function state(title, words = "", ...more) {
  return h("div.state", {}, h("h2", {}, title), words && h("p", {}, words), more);
}

/** Calls the last of many calls, after a pause. */
export function later(wait, call) {
  let timer = 0;
  return (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...words), wait);
  };
}
