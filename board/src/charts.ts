/** The charts: one per metric of the selected runs, fetched when it becomes visible. */

import { series, timeline, type Curve, type RunEvent } from "./api";
import { el, fill } from "./dom";
import { grouped } from "./names";
import { Plot, type Line } from "./plot";
import type { Change, State } from "./state";
import type { View } from "./view";

const MOST_NAMES = 60;
/** A page with more charts than this shows its later groups closed. */
const MANY_CHARTS = 24;

export class Charts implements View {
  readonly root = el("div", { class: "charts" });
  readonly #plots = new Map<string, Plot>();
  readonly #sections = new Map<string, HTMLDetailsElement>();
  readonly #events = new Map<string, RunEvent[]>();
  readonly #inSight = new Set<string>();
  readonly #curves = new Map<string, Map<string, Curve>>();
  readonly #stale = new Set<string>();
  readonly #sight: IntersectionObserver;
  readonly #size: ResizeObserver;
  #request = new AbortController();
  #busy = false;
  #again = false;

  constructor(private readonly state: State) {
    this.#sight = new IntersectionObserver((entries) => this.#onSight(entries), {
      rootMargin: "200px",
    });
    this.#size = new ResizeObserver(() => this.#plots.forEach((plot) => plot.resize()));
    this.#size.observe(this.root);
    this.#layOut();
    this.#refresh(true);
  }

  update(change: Change): void {
    const { chosen } = this.state;
    const changed = chosen.filter((id) => change.runs?.has(id));
    if (change.choice || changed.length) this.#layOut();
    for (const id of changed) this.#stale.add(id);
    if (change.display) this.#refresh(true);
    else if (change.choice || changed.length) this.#refresh(false);
  }

  repaint(): void {
    this.#plots.forEach((plot) => plot.repaint());
  }

  destroy(): void {
    this.#request.abort();
    this.#sight.disconnect();
    this.#size.disconnect();
    this.#plots.forEach((plot) => plot.destroy());
  }

  #names(): string[] {
    const found = new Set<string>();
    for (const id of this.state.chosen) {
      for (const name of this.state.runs.get(id)?.names ?? []) found.add(name);
    }
    const wanted = this.state.filter.toLowerCase();
    return [...found].filter((name) => name.toLowerCase().includes(wanted));
  }

  /** Create the charts that are needed, and keep those that exist. */
  #layOut(): void {
    const names = this.#names();
    if (!names.length) {
      fill(this.root, el("p", { class: "empty" }, this.#whyEmpty()));
      this.#remove(names);
      return;
    }
    this.#remove(names);
    let charts = 0;
    const sections = [...grouped(names)].map(([title, own]) => {
      const cards = own.map((name) => this.#plot(name).root);
      const section = this.#section(title, charts < MANY_CHARTS);
      charts += own.length;
      section.querySelector("small")!.textContent = String(own.length);
      const grid = section.lastElementChild as HTMLElement;
      if (!same([...grid.children], cards)) grid.replaceChildren(...cards);
      return section;
    });
    if (!same([...this.root.children], sections)) this.root.replaceChildren(...sections);
  }

  #whyEmpty(): string {
    if (!this.state.runs.size) return "No runs yet.";
    if (!this.state.chosen.length) return "Select a run.";
    return this.state.filter ? "No chart has this in its name." : "No metrics yet.";
  }

  /** A group of charts that the visitor can close; it stays as it is while the page is open. */
  #section(title: string, isOpen: boolean): HTMLDetailsElement {
    const known = this.#sections.get(title);
    const section = known ?? el("details", { class: "group", open: isOpen },
      el("summary", {}, el("h2", {}, title), el("small", {})), el("div", { class: "grid" }));
    this.#sections.set(title, section);
    return section;
  }

  #remove(names: string[]): void {
    const needed = new Set(names);
    for (const [name, plot] of this.#plots) {
      if (needed.has(name)) continue;
      plot.destroy();
      this.#sight.unobserve(plot.root);
      this.#plots.delete(name);
      this.#inSight.delete(name);
    }
  }

  #plot(name: string): Plot {
    let plot = this.#plots.get(name);
    if (!plot) {
      plot = new Plot(name, (range) => this.state.set({ range }));
      this.#plots.set(name, plot);
      this.#sight.observe(plot.root);
    }
    return plot;
  }

  #onSight(entries: IntersectionObserverEntry[]): void {
    for (const entry of entries) {
      const name = (entry.target as HTMLElement).dataset["name"] ?? "";
      if (entry.isIntersecting) this.#inSight.add(name);
      else this.#inSight.delete(name);
    }
    this.#refresh(false);
  }

  /** Fetch visible curves that are missing or stale, and draw; one round at a time. */
  #refresh(all: boolean): void {
    if (all) {
      this.#request.abort();
      this.#request = new AbortController();
      this.#curves.clear();
      this.#busy = false;
    }
    if (this.#busy) {
      this.#again = true;
      return;
    }
    this.#busy = true;
    const { signal } = this.#request;
    void this.#round(signal).finally(() => {
      if (signal.aborted) return;
      this.#busy = false;
      if (this.#again) {
        this.#again = false;
        setTimeout(() => this.#refresh(false), 200);
      }
    });
  }

  async #round(signal: AbortSignal): Promise<void> {
    const { chosen, axis, range } = this.state;
    for (const id of this.#stale) {
      this.#curves.delete(id);
      this.#events.delete(id);
    }
    this.#stale.clear();
    const points = Math.min(2000, [...this.#plots.values()][0]?.points ?? 800);
    await Promise.allSettled(
      chosen.map(async (id) => {
        const known = this.#curves.get(id) ?? new Map<string, Curve>();
        const own = new Set(this.state.runs.get(id)?.names);
        const names = [...this.#inSight].filter((name) => own.has(name) && !known.has(name));
        for (let at = 0; at < names.length; at += MOST_NAMES) {
          const some = names.slice(at, at + MOST_NAMES);
          const found = await series(id, some, axis, range, points, signal);
          for (const [name, curve] of Object.entries(found)) known.set(name, curve);
        }
        if (!this.#events.has(id)) this.#events.set(id, (await timeline(id)).events);
        if (!signal.aborted) this.#curves.set(id, known);
      }),
    );
    if (!signal.aborted) this.#draw();
  }

  #draw(): void {
    const { axis, smooth, logScale, range } = this.state;
    for (const name of this.#inSight) {
      const lines: Line[] = this.state.chosen.flatMap((id) => {
        const curve = this.#curves.get(id)?.get(name);
        const events = this.#events.get(id) ?? [];
        return curve?.count ? [{ id, colour: this.state.colour(id), curve, events }] : [];
      });
      this.#plots.get(name)?.draw(lines, { axis, smooth, logScale, range });
    }
  }
}

function same(one: Element[], other: Element[]): boolean {
  return one.length === other.length && one.every((element, at) => element === other[at]);
}
