/** Create elements from text only: nothing in a run is ever parsed as HTML. */

type Child = Node | string | null | undefined | false;
type Props = Record<string, string | number | boolean | ((event: Event) => void) | undefined>;

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child): child is Node | string => Boolean(child)));
  return made;
}

export function fill(parent: Element, ...children: Child[]): void {
  parent.replaceChildren(...children.filter((child): child is Node | string => Boolean(child)));
}

/** Return the element with an id. */
export function part<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as T;
}

export function number(value: number | string | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value.replace("nan", "NaN").replace("inf", "∞");
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return String(Number(value.toPrecision(4)).toExponential());
  }
  return String(Number(value.toPrecision(5)));
}

export function count(value: number): string {
  return value.toLocaleString("en-US");
}

export function seconds(value: number): string {
  if (value < 1e-3) return `${Number((value * 1e6).toPrecision(3))} µs`;
  if (value < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  if (value < 60) return `${Number(value.toPrecision(2))} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

export function percent(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

/** A moment, in the visitor's time zone. */
export function moment(time: number): string {
  const when = new Date(time * 1000);
  const thisYear = when.getFullYear() === new Date().getFullYear();
  const day: Intl.DateTimeFormatOptions = { day: "numeric", month: "short" };
  if (!thisYear) day.year = "numeric";
  return `${when.toLocaleDateString("en-GB", day)}, ${when.toLocaleTimeString("en-GB")}`;
}

/** A table that scrolls sideways within its box, with a shadow where there is more of it. */
export function scrolling(table: HTMLTableElement): HTMLElement {
  const box = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "table" }, table);
  const mark = () => {
    box.classList.toggle("more-left", box.scrollLeft > 1);
    box.classList.toggle("more-right", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
  new ResizeObserver(mark).observe(table);
  return el("div", { class: "scroll-frame" }, box);
}

/** A duration in one unit. */
export function roughly(value: number): string {
  const [size, unit] =
    value < 60 ? [1, "s"] : value < 3600 ? [60, "min"] : value < 86400 ? [3600, "h"] : [86400, "d"];
  return `${Math.round(value / (size as number))} ${unit}`;
}

export function age(since: number): string {
  const passed = Math.max(0, Date.now() / 1000 - since);
  if (!since) return "";
  if (passed < 60) return "just now";
  return `${roughly(passed)} ago`;
}

export function bytes(size: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 1000 && at < units.length - 1) {
    size /= 1000;
    at += 1;
  }
  return `${at === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[at]}`;
}
