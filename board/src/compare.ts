/** The config keys in which the selected runs differ. */

import { diff } from "./api";
import { el, fill } from "./dom";
import type { Change, State } from "./state";
import type { View } from "./view";

export class Compare implements View {
  readonly root = el("div", { class: "scroll" });

  constructor(private readonly state: State) {
    void this.#fetch();
  }

  update(change: Change): void {
    if (change.choice || change.runs) void this.#fetch();
  }

  async #fetch(): Promise<void> {
    const selected = this.state.chosen.filter((id) => this.state.runs.has(id)).slice(0, 12);
    if (selected.length < 2) {
      fill(this.root, el("p", { class: "empty" }, "Select two or more runs to compare."));
      return;
    }
    const { runs, rows } = await diff(selected);
    if (!rows.length) {
      fill(this.root, el("p", { class: "empty" }, "Their configurations are the same."));
      return;
    }
    const heads = runs.map((id) =>
      el("th", { scope: "col", class: `run-${this.state.colour(id)}` }, el("span", { class: "dot" }), id),
    );
    const lines = rows.map(({ key, values }) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, key),
        ...values.map((value) =>
          el("td", { class: value === values[0] ? "" : "differs" }, value ?? "–"),
        ),
      ),
    );
    fill(
      this.root,
      el(
        "table",
        { class: "wide diff" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "setting"), ...heads)),
        el("tbody", {}, ...lines),
      ),
    );
  }
}
