// Asking the server: one way to fetch, one way to listen.

/** What the server refused, with its words and number. */
export class Refused extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

/** "?run=a&run=b", without what is empty. @param {Record<string, any>} query */
export function words(query) {
  const pairs = Object.entries(query).flatMap(([key, value]) =>
    (Array.isArray(value) ? value : [value]).filter((one) => one !== null && one !== undefined && one !== "")
      .map((one) => [key, String(one)]));
  const told = new URLSearchParams(pairs).toString();
  return told && `?${told}`;
}

/**
 * JSON from /api. Raises Refused with words for the reader.
 * @param {string} name @param {Record<string, any>} [query] @param {AbortSignal} [signal]
 */
export async function get(name, query = {}, signal = undefined) {
  let answer;
  try {
    answer = await fetch(`/api/${name}${words(query)}`, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer. Is outdo dash still running?");
  }
  if (answer.ok) return answer.json();
  const said = await answer.json().catch(() => ({}));
  const detail = typeof said.detail === "string" ? said.detail : `the server said ${answer.status}`;
  if (answer.status === 401 || answer.status === 403) {
    throw new Refused(answer.status, "This dashboard needs its token: open the address that outdo dash printed.");
  }
  throw new Refused(answer.status, detail);
}

const RETRY = 5000;  // milliseconds after which a refused connection is tried again
const EVENTS = ["metrics", "evals", "findings", "status", "reset", "gone"];

/**
 * Listens to runs while the page is seen. `after` tells the last known step of each run, so that nothing is missed;
 * `onBack` is called when the page is seen again, for what else may have changed; `onState` is told "live",
 * "waiting" or "off".
 * @param {string[]} runs
 * @param {{onEvent: (kind: string, data: any) => void, after?: () => number[], onBack?: () => void,
 *   onState?: (state: string) => void}} on
 */
export function listen(runs, on) {
  let source = null, again = 0;
  const tell = (told) => on.onState?.(told);
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(`/api/live${words({ run: runs, after: on.after?.() })}`);
    source.addEventListener("open", () => tell("live"));
    source.addEventListener("error", onError);
    for (const kind of EVENTS) {
      source.addEventListener(kind, (event) => on.onEvent(kind, JSON.parse(event.data)));
    }
  };
  const onError = () => {
    tell("waiting");
    if (source?.readyState !== EventSource.CLOSED) return;  // the browser tries again by itself
    shut();
    again = setTimeout(open, RETRY);
  };
  const shut = () => {
    clearTimeout(again);
    source?.close();
    source = null;
  };
  const turn = () => {
    if (document.hidden) return shut();
    on.onBack?.();
    open();
  };
  document.addEventListener("visibilitychange", turn);
  open();
  return () => {
    document.removeEventListener("visibilitychange", turn);
    shut();
    tell("off");
  };
}
