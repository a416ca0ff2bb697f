// Requests to the server: `get` fetches, `listen` follows live events.

/** A failed request, with its status and a message for the reader. */
export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** "?run=a&run=b", without empty values. @param {Record<string, any>} query */
export function queryString(query) {
  const pairs = Object.entries(query).flatMap(([key, value]) =>
    (Array.isArray(value) ? value : [value]).filter((one) => one !== null && one !== undefined && one !== "")
      .map((one) => [key, String(one)]));
  const text = new URLSearchParams(pairs).toString();
  return text && `?${text}`;
}

/**
 * JSON from /api. Throws RequestError.
 * @param {string} name @param {Record<string, any>} [query] @param {AbortSignal} [signal]
 */
export async function get(name, query = {}, signal = undefined) {
  let answer;
  try {
    answer = await fetch(`/api/${name}${queryString(query)}`, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The server does not answer. Is outdo dash still running?");
  }
  if (answer.ok) return answer.json();
  const body = await answer.json().catch(() => ({}));
  const detail = typeof body.detail === "string" ? body.detail : `the server answered with status ${answer.status}`;
  if (answer.status === 401 || answer.status === 403) {
    throw new RequestError(answer.status,
      "The dashboard requires its token: open the address that outdo dash printed.");
  }
  throw new RequestError(answer.status, detail);
}

const RETRY = 5000;  // milliseconds before a failed connection is opened again
const EVENTS = ["metrics", "evals", "findings", "status", "reset", "gone"];

/**
 * Follows runs while the page is visible. `after` returns the last known step of each run, so that nothing is missed;
 * `onBack` is called when the page becomes visible again; `onState` gets "live", "waiting" or "off".
 * @param {string[]} runs
 * @param {{onEvent: (kind: string, data: any) => void, after?: () => number[], onBack?: () => void,
 *   onState?: (state: string) => void}} on
 */
export function listen(runs, on) {
  let source = null, retry = 0;
  const setState = (state) => on.onState?.(state);
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(`/api/live${queryString({ run: runs, after: on.after?.() })}`);
    source.addEventListener("open", () => setState("live"));
    source.addEventListener("error", onError);
    for (const kind of EVENTS) {
      source.addEventListener(kind, (event) => on.onEvent(kind, JSON.parse(event.data)));
    }
  };
  const onError = () => {
    setState("waiting");
    if (source?.readyState !== EventSource.CLOSED) return;  // the browser reconnects by itself
    close();
    retry = setTimeout(open, RETRY);
  };
  const close = () => {
    clearTimeout(retry);
    source?.close();
    source = null;
  };
  const onVisibility = () => {
    if (document.hidden) return close();
    on.onBack?.();
    open();
  };
  document.addEventListener("visibilitychange", onVisibility);
  open();
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    close();
    setState("off");
  };
}
