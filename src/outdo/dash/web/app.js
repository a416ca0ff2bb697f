// The frame: which view is shown, the keys that hold everywhere, dark and light.
import { h, state } from "./dom.js";
import { here } from "./route.js";
import { visible } from "./text.js";
import * as compare from "./compare.js";
import * as curves from "./curves.js";
import * as findings from "./findings.js";
import * as groups from "./groups.js";
import * as prompt from "./prompt.js";
import * as recipe from "./recipe.js";
import * as resources from "./resources.js";
import * as runs from "./runs.js";
import * as sweep from "./sweep.js";

const VIEWS = { runs, run: curves, groups, prompt, findings, resources, recipe, compare, sweep };
const KEYS = [
  ["/", "filter the runs"],
  ["g then r", "all runs"],
  ["1 … 5", "curves, groups, findings, resources, recipe of the run"],
  ["← →", "read a chart that has the focus; in Groups, the step before and after (Shift: ten)"],
  ["+ − Esc", "zoom a chart that has the focus in, out, and back to all"],
  ["t", "dark or light"],
  ["?", "this list"],
];
const LIVE = { live: "live", waiting: "waiting for the server …", off: "" };

/**
 * What a view gets: its page, its part of the address, and ways to speak to the frame. What is given to `onClose` is
 * called when the reader goes elsewhere, at once where that has happened already.
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
    live(told) {
      const element = document.getElementById("live");
      element.textContent = LIVE[told];
      element.dataset.state = told;
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
    if (!VIEWS[view]) throw new Error(`There is no view called ${view}`);
    await VIEWS[view].open(mine);
  } catch (error) {
    if (error.name !== "AbortError" && !mine.closed) mine.page.replaceChildren(trouble(error));
  }
}

/** What went wrong, and the way on. */
export function trouble(error) {
  const title = error.status === 404 ? "Not there" : error.status === 401 ? "A token is needed" : "That did not work";
  if (error.status === undefined) console.error(error);
  return state(title, visible(error.message), h("p", {},
    h("button", { type: "button", onclick: show }, "Try again"), " ", h("a.button", { href: "#/runs" }, "All runs")));
}

function turnTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("theme", next);
  } catch {  // without storage the choice holds for this page
  }
  document.dispatchEvent(new Event("theme"));
}

function tellKeys() {
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("keys"));
  dialog.replaceChildren(h("h2", {}, "Keys"),
    h("dl", {}, KEYS.map(([key, words]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, words)])),
    h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  if (!dialog.open) dialog.showModal();
}

let waitsForG = 0;

function onKey(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const writes = event.target.closest?.("input:not([type=range]):not([type=checkbox]), textarea, select, dialog");
  if (writes) return;
  if (current?.onKey?.(event)) event.preventDefault();
  else if (event.key === "?") tellKeys();
  else if (event.key === "t") turnTheme();
  else if (event.key === "g") waitsForG = Date.now();
  else if (event.key === "r" && Date.now() - waitsForG < 1500) location.hash = "#/runs";
  else if (event.key === "/") toFilter(event);
  else if (/^[1-9]$/.test(event.key)) document.querySelectorAll(".tabs a")[Number(event.key) - 1]?.click();
}

function toFilter(event) {
  event.preventDefault();
  const field = document.querySelector("input[type=search]");
  if (field) field.focus();
  else location.hash = "#/runs";
}

document.addEventListener("keydown", onKey);
document.getElementById("theme").addEventListener("click", turnTheme);
document.getElementById("help").addEventListener("click", tellKeys);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the address names the view
  document.getElementById("main").focus();
});
window.addEventListener("hashchange", () => {
  show();
  document.getElementById("main").focus({ preventScroll: true });  // what is read aloud next is the new view
});
if (location.search) history.replaceState(null, "", location.pathname + location.hash);  // the token leaves the address
show();
