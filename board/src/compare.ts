/** The selected runs side by side: how they went, their results, the settings that differ. */

import { compare, type Compared, type Comparison } from "./api";
import { count, el, fill, number, percent, scrolling, seconds } from "./dom";
import { isMeasured, validationFirst } from "./names";
import type { Change, State } from "./state";
import type { View } from "./view";

const MOST_RUNS = 12;

export class Compare implements View {
  readonly root = el("div", { class: "compare" });
  #shown = "";

  constructor(private readonly state: State) {
    void this.#fetch();
  }

  update(change: Change): void {
    const chosen = this.state.chosen.some((id) => change.runs?.has(id));
    if (change.choice || chosen) void this.#fetch();
  }

  async #fetch(): Promise<void> {
    const known = this.state.chosen.filter((id) => this.state.runs.has(id));
    if (known.length < 2) {
      this.#shown = "";
      fill(this.root, el("p", { class: "empty" }, "Select two or more runs to compare."));
      return;
    }
    const found = await compare(known.slice(0, MOST_RUNS));
    const shown = JSON.stringify([found, this.state.chosen]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const left = known.length - MOST_RUNS;
    const more = left > 0 && el("p", { class: "faint" }, `${left} more selected runs are left out.`);
    fill(this.root, scrolling(this.#table(found)), more);
  }

  #table({ runs, rows }: Comparison): HTMLTableElement {
    const heads = runs.map(({ id }) =>
      el("th", { scope: "col", class: `run-${this.state.colour(id)}`, title: id },
        el("span", { class: "dot" }), el("span", { class: "run-name" }, id)));
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.last)))].sort(validationFirst);
    const settings = rows.map(({ key, values }) => settingRow(key, values));
    const none = row("", [el("td", { colspan: runs.length, class: "faint" }, "Their settings are the same.")]);
    return el(
      "table",
      { class: "wide diff" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), ...heads)),
      group("Progress", runs.length, progressRows(runs)),
      group("Results: best, last", runs.length,
        names.filter((name) => !isMeasured(name)).map((name) => resultRow(name, runs))),
      group("Speed and memory: last", runs.length,
        names.filter(isMeasured).map((name) => resultRow(name, runs))),
      group("Settings that differ", runs.length, settings.length ? settings : [none]),
    );
  }
}

function group(title: string, width: number, rows: HTMLElement[]): HTMLElement | false {
  if (!rows.length) return false;
  const head = el("tr", { class: "group" },
    el("th", { scope: "rowgroup", colspan: width + 1 }, el("span", {}, title)));
  return el("tbody", {}, head, ...rows);
}

function row(title: string, cells: HTMLElement[]): HTMLElement {
  return el("tr", {}, el("th", { scope: "row", title }, el("span", { class: "key" }, title)), ...cells);
}

function progressRows(runs: Compared[]): HTMLElement[] {
  const facts: [string, (run: Compared) => [string, string?]][] = [
    ["state", ({ status }) => [status.state, status.why]],
    ["steps", ({ status }) => [status.total ? `${count(status.step)} of ${count(status.total)}` : count(status.step)]],
    ["epochs", ({ status }) => [status.epochs ? `${status.epoch} of ${status.epochs}` : String(status.epoch)]],
    ["time, all attempts", (run) => [run.goodput === null ? "–" : seconds(run.seconds)]],
    ["goodput", (run) => [run.goodput === null ? "–" : percent(run.goodput)]],
  ];
  return facts.map(([title, of]) =>
    row(title, runs.map((run) => {
      const [text, more] = of(run);
      const kind = title === "state" ? `state ${run.status.state}` : "";
      return el("td", {}, el("span", { class: kind }, text), Boolean(more) && el("small", { class: "clip", title: more }, more));
    })),
  );
}

/** The best and the last value of each run; the best of all is marked. */
function resultRow(name: string, runs: Compared[]): HTMLElement {
  const bests = runs.map((run) => run.bests[name]);
  const known = bests.filter((best) => best !== undefined);
  const values = known.map((best) => best.value);
  const top = known[0]?.mode === "max" ? Math.max(...values) : Math.min(...values);
  return row(name, runs.map((run, at) => {
    const best = bests[at];
    const last = number(run.last[name]);
    if (!best || isMeasured(name)) return el("td", { class: "number" }, last);
    const leads = values.length > 1 && best.value === top;
    return el("td", { class: leads ? "number leads" : "number" }, number(best.value),
      el("small", {}, `step ${count(best.step)} · last ${last}`));
  }));
}

function settingRow(key: string, values: (string | null)[]): HTMLElement {
  return row(key, values.map((value) =>
    el("td", { class: value === values[0] ? "" : "differs" },
      el("span", { class: "clip", title: value ?? "" }, value ?? "–"))));
}
