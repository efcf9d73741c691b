/** The runs, and what the visitor has selected; the selection is part of the address. */

import type { Axis, News, Summary } from "./api";

export const TABS = ["charts", "table", "compare", "run", "log", "media"] as const;
export type Tab = (typeof TABS)[number];
export const AXES: Axis[] = ["step", "samples", "epoch", "time"];

/** Milliseconds after loading in which the newest runs are selected as they arrive. */
const SETTLED = 8000;

/** What has changed: the runs, the selection, or how they are displayed. */
export interface Change {
  runs?: Set<string>;
  choice?: boolean;
  display?: boolean;
  tab?: boolean;
}

export class State {
  runs = new Map<string, Summary>();
  chosen: string[] = [];
  focus: string | null = null;
  tab: Tab = "charts";
  axis: Axis = "step";
  smooth = 0;
  logScale = false;
  filter = "";
  range: [number, number] | null = null;
  #colours = new Map<string, number>();
  #listeners: ((change: Change) => void)[] = [];
  #mayChoose = true;

  constructor() {
    this.#read();
  }

  on(listener: (change: Change) => void): void {
    this.#listeners.push(listener);
  }

  notify(change: Change): void {
    for (const id of this.chosen) this.colour(id);
    this.#write();
    for (const listener of this.#listeners) listener(change);
  }

  take(news: News): void {
    const isFirst = this.runs.size === 0;
    const { known } = news;
    const gone = known ? [...this.runs.keys()].filter((id) => !known.includes(id)) : news.gone;
    for (const run of news.runs) this.runs.set(run.id, run);
    for (const id of gone) this.runs.delete(id);
    const before = this.chosen.join();
    const settles = performance.now() < SETTLED || !this.chosen.length;
    if (this.#mayChoose && settles) this.#chooseNewest();
    else this.chosen = this.chosen.filter((id) => !gone.includes(id));
    if (!this.focus || gone.includes(this.focus) || this.#mayChoose) {
      this.focus = this.chosen[0] ?? this.runs.keys().next().value ?? null;
    }
    const choice = isFirst || before !== this.chosen.join();
    this.notify({ runs: new Set([...news.runs.map((run) => run.id), ...gone]), choice });
  }

  toggle(id: string): void {
    this.#mayChoose = false;
    if (this.chosen.includes(id)) this.chosen = this.chosen.filter((one) => one !== id);
    else this.chosen = [...this.chosen, id];
    this.notify({ choice: true });
  }

  choose(ids: string[]): void {
    this.#mayChoose = false;
    this.chosen = ids;
    this.notify({ choice: true });
  }

  focusOn(id: string): void {
    this.#mayChoose = false;
    this.focus = id;
    this.notify({ choice: true });
  }

  set(change: Partial<Pick<State, "axis" | "smooth" | "logScale" | "range" | "filter">>): void {
    if (change.axis && change.axis !== this.axis) this.range = null;
    Object.assign(this, change);
    this.notify({ display: true, choice: change.filter !== undefined });
  }

  go(tab: Tab): void {
    this.tab = tab;
    this.notify({ tab: true });
  }

  /** The number of a run's colour, different from those of other selected runs if possible. */
  colour(id: string): number {
    for (const known of this.#colours.keys()) {
      if (!this.chosen.includes(known)) this.#colours.delete(known);
    }
    let found = this.#colours.get(id);
    if (found === undefined) {
      const taken = new Set(this.#colours.values());
      found = [...Array(10).keys()].find((one) => !taken.has(one)) ?? this.#colours.size % 10;
      if (this.chosen.includes(id)) this.#colours.set(id, found);
    }
    return found;
  }

  #chooseNewest(): void {
    const newest = [...this.runs.values()].sort((a, b) => b.status.seen - a.status.seen);
    this.chosen = newest.slice(0, 3).map((run) => run.id);
  }

  #read(): void {
    const params = new URLSearchParams(location.hash.slice(1));
    this.#mayChoose = !params.has("run");
    this.chosen = params.getAll("run");
    this.focus = params.get("focus");
    this.tab = TABS.find((tab) => tab === params.get("tab")) ?? "charts";
    this.axis = AXES.find((axis) => axis === params.get("x")) ?? "step";
    this.smooth = Math.min(0.99, Math.max(0, Number(params.get("smooth")) || 0));
    this.logScale = params.has("log");
    this.filter = params.get("charts") ?? "";
  }

  #write(): void {
    const params = new URLSearchParams();
    for (const id of this.chosen) params.append("run", id);
    if (this.focus) params.set("focus", this.focus);
    if (this.tab !== "charts") params.set("tab", this.tab);
    if (this.axis !== "step") params.set("x", this.axis);
    if (this.smooth) params.set("smooth", String(this.smooth));
    if (this.logScale) params.set("log", "");
    if (this.filter) params.set("charts", this.filter);
    history.replaceState(null, "", `#${params}`);
  }
}
