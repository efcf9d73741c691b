/** A table of all runs with their settings and results; a click on a column head sorts. */

import { table, type Plain, type TableRow } from "./api";
import { el, fill, number, scrolling } from "./dom";
import { isMeasured, validationFirst } from "./names";
import type { Change, State } from "./state";
import type { View } from "./view";

type Cell = Plain | undefined;

interface Column {
  title: string;
  kind: "text" | "setting" | "result";
  of: (row: TableRow) => Cell;
}

/** The largest number of columns for best results: runs may monitor different ones. */
const MOST_BESTS = 3;

/** Settings that only name a run. */
const NAMING = new Set(["run.name", "run.dir"]);

export class Table implements View {
  readonly root = el("div", { class: "table" });
  #keys: string[] = [];
  #rows: TableRow[] = [];
  #sort: { title: string; down: boolean } | null = null;
  #timer = 0;
  #shown = "";

  constructor(private readonly state: State) {
    void this.#fetch();
  }

  update(change: Change): void {
    if (change.choice) this.#draw();
    if (!change.runs || this.#timer) return;
    this.#timer = window.setTimeout(() => {
      this.#timer = 0;
      void this.#fetch();
    }, 1000);
  }

  destroy(): void {
    clearTimeout(this.#timer);
  }

  async #fetch(): Promise<void> {
    const found = await table();
    const shown = JSON.stringify(found);
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.#keys = found.keys;
    this.#rows = found.rows;
    this.#draw();
  }

  #columns(): Column[] {
    const results = new Set<string>();
    for (const row of this.#rows) {
      for (const name of Object.keys(row.last)) if (!/^(time|lr)/.test(name)) results.add(name);
    }
    const names = [...results].sort(validationFirst);
    const result = (name: string): Column => ({
      title: name,
      kind: "result",
      of: (row) => row.last[name],
    });
    const bests = [...new Set(this.#rows.flatMap((row) => row.best?.name ?? []))];
    const isShared = (name: string) =>
      !isMeasured(name) && 2 * this.#rows.filter((row) => name in row.last).length > this.#rows.length;
    return [
      { title: "run", kind: "text", of: (row) => row.id },
      { title: "state", kind: "text", of: (row) => row.status.state },
      { title: "steps", kind: "result", of: (row) => row.status.step },
      ...bests.slice(0, MOST_BESTS).map((name) => ({
        title: `best ${name}`,
        kind: "result" as const,
        of: (row: TableRow) => (row.best?.name === name ? row.best.value : undefined),
      })),
      ...names.filter(isShared).map(result),
      ...this.#keys.filter((key) => !NAMING.has(key)).map((key) => ({
        title: key,
        kind: "setting" as const,
        of: (row: TableRow) => row.config[key],
      })),
      ...names.filter((name) => !isShared(name)).map(result),
    ];
  }

  #draw(): void {
    const columns = this.#columns();
    const rows = [...this.#rows];
    const by = columns.find((column) => column.title === this.#sort?.title);
    if (by && this.#sort) {
      const turn = this.#sort.down ? -1 : 1;
      rows.sort((a, b) => compare(by.of(a), by.of(b), turn));
    }
    const held = document.activeElement?.getAttribute("data-sort");
    const head = columns.map((column) => this.#head(column));
    const body = rows.map((row) => {
      const isChosen = this.state.chosen.includes(row.id);
      return el(
        "tr",
        { class: isChosen ? `chosen run-${this.state.colour(row.id)}` : "" },
        ...columns.map((column, at) => this.#cell(row, column, at === 0)),
      );
    });
    const old = this.root.querySelector(".scroll");
    const table = el("table", { class: "wide" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
    const at = old?.scrollLeft ?? 0;
    fill(this.root, scrolling(table));
    this.root.querySelector(".scroll")!.scrollLeft = at;
    if (held) {
      const heads = this.root.querySelectorAll<HTMLElement>("[data-sort]");
      [...heads].find((one) => one.dataset["sort"] === held)?.focus();
    }
  }

  #head(column: Column): HTMLElement {
    const isBy = this.#sort?.title === column.title;
    const arrow = isBy ? (this.#sort?.down ? " ↓" : " ↑") : "";
    const click = () => {
      const down = isBy ? !this.#sort?.down : column.kind === "result";
      this.#sort = { title: column.title, down };
      this.#draw();
    };
    const sorted = isBy ? (this.#sort?.down ? "descending" : "ascending") : "none";
    return el(
      "th",
      { scope: "col", class: column.kind, "aria-sort": sorted },
      el("button", { type: "button", class: "quiet", "data-sort": column.title, click }, column.title + arrow),
    );
  }

  #cell(row: TableRow, column: Column, isFirst: boolean): HTMLElement {
    const value = column.of(row);
    const isNumber = typeof value === "number" || column.kind === "result";
    const text = isNumber ? number(value as number | string | null) : String(value ?? "–");
    if (column.title === "state") {
      return el("td", {}, el("span", { class: `state ${text}`, title: row.status.why }, text));
    }
    if (!isFirst) {
      return el("td", { class: isNumber ? "number" : "" }, el("span", { class: "clip", title: text }, text));
    }
    const click = () => this.state.toggle(row.id);
    const pressed = this.state.chosen.includes(row.id) ? "true" : "false";
    return el(
      "th",
      { scope: "row" },
      el("button", { type: "button", class: "quiet", title: text, "aria-pressed": pressed, click },
        el("span", { class: "dot" }), el("span", { class: "run-name" }, text)),
    );
  }
}

/** Order numbers by value and text by alphabet; missing values come last in both directions. */
function compare(one: Cell, other: Cell, turn: number): number {
  const missing = Number(one == null) - Number(other == null);
  if (missing || one == null || other == null) return missing;
  if (typeof one === "number" && typeof other === "number") return turn * (one - other);
  return turn * String(one).localeCompare(String(other), "en", { numeric: true });
}
