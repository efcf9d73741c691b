/** The list of runs: state, progress, time left and best result of each. */

import type { Summary } from "./api";
import { age, el, fill, number, roughly } from "./dom";
import type { Change, State } from "./state";

export class RunList {
  readonly #items = el("ul", { class: "runs" });
  readonly #filter: HTMLInputElement;
  readonly #count = el("span", { class: "faint" });
  readonly #rows = new Map<string, HTMLElement>();

  constructor(
    root: HTMLElement,
    private readonly state: State,
  ) {
    this.#filter = el("input", {
      type: "search",
      placeholder: "Filter runs  (/)",
      "aria-label": "Filter runs",
      input: () => this.#layOut(),
    });
    const button = (text: string, click: () => void) =>
      el("button", { type: "button", class: "quiet", click }, text);
    const all = button("all", () => state.choose(this.#shown().map((run) => run.id)));
    const none = button("none", () => state.choose([]));
    fill(root, el("div", { class: "filter" }, this.#filter, this.#count, all, none), this.#items);
    state.on((change) => this.#update(change));
    setInterval(() => this.#tick(), 5000);
  }

  focusFilter(): void {
    this.#filter.focus();
    this.#filter.select();
  }

  /** Move the focus by a number of runs. */
  move(by: number): void {
    const shown = this.#shown();
    const at = shown.findIndex((run) => run.id === this.state.focus);
    const next = shown[Math.min(shown.length - 1, Math.max(0, at + by))];
    if (!next) return;
    this.state.focusOn(next.id);
    const row = this.#rows.get(next.id);
    row?.querySelector("button")?.focus();
    row?.scrollIntoView({ block: "nearest" });
  }

  #shown(): Summary[] {
    const text = this.#filter.value.trim().toLowerCase();
    return [...this.state.runs.values()]
      .filter((run) => `${run.id} ${run.status.state}`.toLowerCase().includes(text))
      .sort((a, b) => rank(a) - rank(b) || b.status.seen - a.status.seen || order(a.id, b.id));
  }

  #update(change: Change): void {
    for (const id of change.runs ?? []) {
      const run = this.state.runs.get(id);
      if (run) this.#row(id).replaceChildren(...this.#cells(run));
      else this.#rows.delete(id);
    }
    if (change.runs) this.#layOut();
    if (change.runs || change.choice) this.#mark();
  }

  #layOut(): void {
    const shown = this.#shown();
    const rows = shown.map((run) => this.#row(run.id));
    const old = [...this.#items.children];
    if (rows.length !== old.length || rows.some((row, at) => row !== old[at])) {
      const active = document.activeElement;
      this.#items.replaceChildren(...rows);
      if (active instanceof HTMLElement && this.#items.contains(active)) active.focus();
    }
    this.#count.textContent = `${shown.length}`;
  }

  #row(id: string): HTMLElement {
    let row = this.#rows.get(id);
    if (!row) {
      row = el("li", { "data-run": id });
      this.#rows.set(id, row);
    }
    return row;
  }

  #mark(): void {
    for (const [id, row] of this.#rows) {
      const isChosen = this.state.chosen.includes(id);
      row.className = isChosen ? `chosen run-${this.state.colour(id)}` : "";
      row.classList.toggle("focus", id === this.state.focus);
      const box = row.querySelector("input");
      if (box) box.checked = isChosen;
    }
  }

  #tick(): void {
    for (const [id, row] of this.#rows) {
      const seen = row.querySelector(".seen");
      const run = this.state.runs.get(id);
      if (seen && run) seen.textContent = left(run) || age(run.status.seen);
    }
  }

  #cells(run: Summary): Node[] {
    const { status, best } = run;
    const share = status.total ? Math.min(1, status.step / status.total) : null;
    const box = el("input", {
      type: "checkbox",
      "aria-label": `draw ${run.id}`,
      change: () => this.state.toggle(run.id),
    });
    const steps = status.total ? `${status.step}/${status.total}` : `${status.step} steps`;
    const name = el("span", { class: "run-name", title: run.id }, run.id);
    const result = best ? `best ${best.name} ${number(best.value)}` : "";
    const reading = run.read < 1 ? `reading ${Math.round(run.read * 100)} %` : "";
    const open = el(
      "button",
      { type: "button", class: "open", click: () => this.state.focusOn(run.id) },
      name,
      el(
        "span",
        { class: "line" },
        el("span", { class: `state ${status.state}`, title: status.why }, status.state),
        el("span", { class: "steps" }, steps),
        el("span", { class: "seen faint" }, left(run) || age(status.seen)),
      ),
      Boolean(status.why) && el("span", { class: "line why", title: status.why }, status.why),
      Boolean(result || reading) && el("span", { class: "line best" }, reading || result),
      run.faults.length > 0 && el("span", { class: "line fault" }, run.faults.join("; ")),
    );
    const bar = el("progress", { max: 1, "aria-label": "progress" });
    bar.value = share ?? 0;
    if (share !== null) open.append(bar);
    return [el("label", { class: "pick" }, box, el("span", { class: "dot" })), open];
  }
}

/** The time left, empty for a run that has not written for a minute. */
function left({ status }: Summary): string {
  const isQuiet = Date.now() / 1000 - status.seen > 60;
  return status.eta === null || isQuiet ? "" : `${roughly(status.eta)} left`;
}

function rank(run: Summary): number {
  return run.status.state === "running" ? 0 : 1;
}

function order(one: string, other: string): number {
  return one < other ? -1 : 1;
}
