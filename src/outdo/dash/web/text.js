// Text that a model wrote: shown unchanged, with control characters made visible.
import { h } from "./dom.js";

// Control characters but for tab and line feed; marks that turn the direction of text; spaces without width; line and
// paragraph separators; the invisible tag characters; halves of surrogate pairs.
const ODD = new RegExp("[" + [
  "\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e",
  "\\u2060-\\u2069\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff\\u{e0000}-\\u{e007f}",
].join("") + "]", "gu");
const MANY = 2000;  // odd characters; more are not marked up, so that the page stays fast

/** How an odd character is shown. @param {string} character */
export function name(character) {
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** As one string. @param {unknown} text */
export function visible(text) {
  return String(text ?? "").replace(ODD, name);
}

/** As nodes, in which the odd characters stand out. @param {string} text @returns {(string|HTMLElement)[]} */
export function pieces(text) {
  const odd = text.match(ODD);
  if (!odd) return [text];
  if (odd.length > MANY) return [visible(text)];
  const plain = text.split(ODD);
  return plain.flatMap((part, i) => (i < odd.length ? [part, h("span.odd", {}, name(odd[i]))] : [part]));
}

/** A block of it, isolated from the text direction around it. */
export function block(text, classes = "said") {
  return h(`div.${classes}`, { dir: "auto" }, pieces(String(text ?? "")));
}

/** A block that may be cut, with a button that loads the rest. @param {() => Promise<string>} loadAll */
export function cuttable(text, isCut, loadAll) {
  const shown = block(text);
  if (!isCut) return shown;
  return h("div", {}, shown, showAll(async (button) => {
    shown.replaceChildren(...pieces(await loadAll()));
    button.remove();
  }));
}

/** A button that loads what is cut. @param {(button: HTMLElement) => Promise<void>} load */
export function showAll(load) {
  const button = h("button.show-all", { type: "button" }, "… show all");
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "loading …";
    try {
      await load(button);
    } catch (error) {
      button.disabled = false;
      button.textContent = `could not be loaded (${error.message}): retry`;
    }
  });
  return button;
}

/** Our own text, with `names` between backticks as code. @param {string} text */
export function withCode(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}
