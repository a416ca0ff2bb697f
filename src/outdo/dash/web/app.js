// The frame: which view is shown, keyboard shortcuts, dark and light theme.
import { h, state } from "./dom.js";
import { here } from "./route.js";
import { visible } from "./text.js";
import * as answers from "./answers.js";
import * as compare from "./compare.js";
import * as curves from "./curves.js";
import * as findings from "./findings.js";
import * as groups from "./groups.js";
import * as prompt from "./prompt.js";
import * as recipe from "./recipe.js";
import * as resources from "./resources.js";
import * as runs from "./runs.js";
import * as sweep from "./sweep.js";

const VIEWS = { runs, run: curves, groups, prompt, answers, findings, resources, recipe, compare, sweep };
const KEYS = [
  ["/", "filter the runs"],
  ["g then r", "all runs"],
  ["1 … 6", "the run's curves, groups, held-out answers, findings, resources, recipe"],
  ["← →", "read values of the focused chart; in Groups, the step (Shift: ten); in Held out, the evaluation"],
  ["+ − Esc", "zoom the focused chart in, out, and reset"],
  ["t", "dark or light theme"],
  ["?", "this list"],
];
const LIVE = { live: "live", waiting: "waiting for the server …", off: "" };

/**
 * What a view gets: its page, its query, and access to the frame. `onClose` registers a callback for when the view is
 * left, which is called at once where that has already happened.
 */
function scope(query) {
  const closing = [], stop = new AbortController();
  const made = {
    page: h("div.page"), query, signal: stop.signal, closed: false,
    onKey: /** @type {((event: KeyboardEvent) => boolean)|null} */ (null),
    onClose(call) {
      if (made.closed) call();
      else closing.push(call);
    },
    crumbs(...parts) {
      const last = parts.length - 1;
      document.getElementById("path").replaceChildren(...parts.map(({ text, href }, i) =>
        href && i < last ? h("a", { href }, visible(text)) : h("span", {}, visible(text))));
      document.title = ["outdo", ...parts.map((part) => visible(part.text))].join(" · ");
    },
    live(state) {
      const element = document.getElementById("live");
      element.textContent = LIVE[state];
      element.dataset.state = state;
    },
    close() {
      made.closed = true;
      stop.abort();
      closing.forEach((call) => call());
    },
  };
  return made;
}

let current = null;

async function show() {
  const { view, query } = here();
  current?.close();
  const mine = (current = scope(query));
  mine.crumbs();
  mine.live("off");
  document.getElementById("main").replaceChildren(mine.page);
  mine.page.append(h("p.state.waiting", {}, "Loading …"));
  window.scrollTo(0, 0);
  try {
    if (!VIEWS[view]) throw new Error(`There is no view named ${view}`);
    await VIEWS[view].open(mine);
  } catch (error) {
    if (error.name !== "AbortError" && !mine.closed) mine.page.replaceChildren(errorPage(error));
  }
}

/** The error, and links to continue. */
export function errorPage(error) {
  const title = error.status === 404 ? "Not found" : error.status === 401 ? "Token required" : "Something went wrong";
  if (error.status === undefined) console.error(error);
  return state(title, visible(error.message), h("p", {},
    h("button", { type: "button", onclick: show }, "Try again"), " ", h("a.button", { href: "#/runs" }, "All runs")));
}

function toggleTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("theme", next);
  } catch {  // without storage the choice is for this page only
  }
  document.dispatchEvent(new Event("theme"));
}

function showKeys() {
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("keys"));
  dialog.replaceChildren(h("h2", {}, "Keyboard shortcuts"),
    h("dl", {}, KEYS.map(([key, action]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, action)])),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  if (!dialog.open) dialog.showModal();
}

let pressedG = 0;

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const isTyping = event.target.closest?.("input:not([type=range]):not([type=checkbox]), textarea, select, dialog");
  if (isTyping) return;
  if (current?.onKey?.(event)) event.preventDefault();
  else if (event.key === "?") showKeys();
  else if (event.key === "t") toggleTheme();
  else if (event.key === "g") pressedG = Date.now();
  else if (event.key === "r" && Date.now() - pressedG < 1500) location.hash = "#/runs";
  else if (event.key === "/") focusFilter(event);
  else if (/^[1-9]$/.test(event.key)) document.querySelectorAll(".tabs a")[Number(event.key) - 1]?.click();
}

function focusFilter(event) {
  event.preventDefault();
  const field = document.querySelector("input[type=search]");
  if (field) field.focus();
  else location.hash = "#/runs";
}

document.addEventListener("keydown", onKey);
document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("help").addEventListener("click", showKeys);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the address names the view
  document.getElementById("main").focus();
});
window.addEventListener("hashchange", () => {
  show();
  document.getElementById("main").focus({ preventScroll: true });  // a screen reader continues with the new view
});
if (location.search) history.replaceState(null, "", location.pathname + location.hash);  // without the token
show();
