/** The time line of a run: its attempts, what their time went into, and what happened. */

import type { Attempt, RunEvent, Timeline } from "./api";
import { count, el, moment, percent, scrolling, seconds } from "./dom";

/** What time is spent on, in the order of an attempt: lost work is at its end. */
const KINDS = [
  "startup",
  "useful training",
  "evaluation",
  "waiting for data",
  "waiting for checkpoints",
  "other",
  "repeated work",
  "lost with processes",
];
const WIDTH = 1000;
const HEIGHT = 30;
/** The largest share of the line that a pause between two attempts takes. */
const LONGEST_PAUSE = 0.04;
const MOST_EVENTS = 60;

export function timelineSection(found: Timeline): HTMLElement | false {
  if (!found.attempts.length || found.goodput === null) return false;
  const first = found.attempts[0] as Attempt;
  const last = found.attempts[found.attempts.length - 1] as Attempt;
  const total = Object.values(found.seconds).reduce((sum, one) => sum + one, 0);
  const times = found.attempts.length === 1 ? "1 attempt" : `${found.attempts.length} attempts`;
  const spent = KINDS.filter((kind) => (found.seconds[kind] ?? 0) > 0);
  return el(
    "section",
    { class: "timeline" },
    el("h2", {}, "Time line and goodput"),
    el("p", {}, el("b", {}, percent(found.goodput)), ` of ${seconds(total)} in ${times} was useful training.`),
    bar(found),
    el("div", { class: "ends faint" }, el("span", {}, moment(first.began)),
      el("span", {}, moment(last.began + last.seconds))),
    el("p", { class: "legend" }, ...spent.map((kind) =>
      el("span", {}, el("i", { class: `kind-${KINDS.indexOf(kind)}` }),
        `${kind} ${percent((found.seconds[kind] ?? 0) / (total || 1))}`))),
    events(found.events),
  );
}

function svg(tag: string, attributes: Record<string, string | number>, ...children: Element[]): Element {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** The attempts one after another, with short pauses between them; a line for each event. */
function bar({ attempts, events: happened }: Timeline): Element {
  const ran = attempts.reduce((sum, one) => sum + one.seconds, 0) || 1;
  const longest = (LONGEST_PAUSE * ran) / Math.max(1, attempts.length / 10);
  const places: [Attempt, number][] = [];
  let at = 0;
  attempts.forEach((attempt, number) => {
    const before = attempts[number - 1];
    if (before) at += Math.min(longest, Math.max(0, attempt.began - before.began - before.seconds));
    places.push([attempt, at]);
    at += attempt.seconds;
  });
  const scale = WIDTH / (at || 1);
  const parts = places.flatMap(([attempt, start]) => {
    let x = start * scale;
    return KINDS.map((kind, number) => {
      const width = (attempt.spent[kind] ?? 0) * scale;
      const rect = svg("rect", { x, y: 5, width, height: HEIGHT - 10, class: `kind-${number}` });
      x += width;
      return rect;
    });
  });
  const marks = happened.filter((event) => event.kind !== "start" && event.kind !== "fit").map((event) => {
    const [attempt, start] = places.filter(([one]) => one.began <= event.time + 0.001).at(-1) ?? places[0]!;
    const x = (start + Math.min(attempt.seconds, Math.max(0, event.time - attempt.began))) * scale;
    return svg("line", { x1: x, x2: x, y1: 0, y2: HEIGHT, class: `event ${event.kind}` });
  });
  const about = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "time-bar" };
  return svg("svg", { ...about, role: "img", "aria-label": "time line" }, ...parts, ...marks);
}

function events(all: RunEvent[]): HTMLElement {
  const shown = all.slice(-MOST_EVENTS).reverse();
  const rows = shown.map((event) =>
    el("tr", {}, el("th", { scope: "row" }, el("span", { class: `event ${event.kind}` }, event.kind)),
      el("td", { class: "number" }, count(event.step)), el("td", {}, moment(event.time)),
      el("td", { class: "details" }, event.text)));
  const heads = ["event", "step", "when", "details"];
  const table = el("table", { class: "wide events" },
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col", class: head === "step" ? "result" : "" }, head)))),
    el("tbody", {}, ...rows));
  const left = all.length - shown.length;
  return el("div", {}, scrolling(table), left > 0 && el("p", { class: "faint" }, `${left} earlier events are left out.`));
}
