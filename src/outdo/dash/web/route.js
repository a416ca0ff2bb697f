// The address of a view: #/view?key=value, so that every view can be linked and Back works.
import { queryString } from "./api.js";

/** @returns {{view: string, query: URLSearchParams}} */
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "runs", query: new URLSearchParams(query) };
}

/** @param {string} view @param {Record<string, any>} [query] */
export function to(view, query = {}) {
  return `#/${view}${queryString(query)}`;
}

/** Records settings of a view in its address, without a history entry. @param {Record<string, any>} changes */
export function note(changes) {
  const { view, query } = here();
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "" || value === false) query.delete(key);
    else query.set(key, String(value));
  }
  const text = query.toString();
  history.replaceState(null, "", `#/${view}${text && `?${text}`}`);
}
