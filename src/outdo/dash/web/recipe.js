// The recipe of a run, and the facts of its manifest.
import { get, queryString } from "./api.js";
import { copyButton, h } from "./dom.js";
import { typed } from "./format.js";
import { runHead } from "./head.js";
import { visible } from "./text.js";

export async function open(scope) {
  const run = scope.query.get("run") ?? "";
  const about = await get("run", { run }, scope.signal);
  const head = runHead(scope, "recipe", about);
  const pairs = Object.entries(about.recipe ?? {});
  const body = h("tbody", {});
  const fill = (q) => body.replaceChildren(...pairs.map(([key, value]) => [key, typed(value)])
    .filter((pair) => pair.join(" ").toLowerCase().includes(q)).map(row));
  fill("");
  const yaml = pairs.map(([key, value]) => `${key}: ${JSON.stringify(value)}`).join("\n");
  scope.page.replaceChildren(head.element,
    h("div.halves", {},
      h("section", {}, h("div.bar", {}, h("h2", {}, "Recipe"), h("span.grow"),
        h("input", { type: "search", placeholder: "Filter keys  /", "aria-label": "Filter keys",
          oninput: (event) => fill(event.target.value.toLowerCase()) }), copyButton(yaml, "Copy as YAML")),
      h("table.pairs", {}, body)),
      h("section", {}, h("div.bar", {}, h("h2", {}, "Environment"), h("span.grow"),
        h("a.button", { href: `/report${queryString({ run })}`, target: "_blank", rel: "noopener" }, "Report")),
        h("table.pairs", {}, h("tbody", {}, flat(about.facts ?? {}).map(row))))));
}

const row = ([key, value]) =>
  h("tr", {}, h("th.mono", { scope: "row" }, visible(key)), h("td.mono", {}, visible(value)));

/** {a: {b: 1}} as a.b = 1. */
function flat(value, before = "") {
  const isMap = (each) => each && typeof each === "object" && !Array.isArray(each);
  return Object.entries(value).flatMap(([key, each]) =>
    isMap(each) ? flat(each, `${before}${key}.`) : [[before + key, typed(each)]]);
}
