/** The end of the log of the current run; it scrolls along while you are at its end. */

import { log } from "./api";
import { el, fill } from "./dom";
import type { Change, State } from "./state";
import type { View } from "./view";

export class Log implements View {
  readonly #lines = el("div", { class: "log", tabindex: 0, role: "log", "aria-label": "log" });
  readonly #title = el("h2", { class: "title" });
  readonly root = el("div", { class: "log-page" }, this.#title, this.#lines);

  constructor(private readonly state: State) {
    void this.#fetch(true);
  }

  update(change: Change): void {
    const { focus } = this.state;
    if (change.choice) void this.#fetch(true);
    else if (focus && change.runs?.has(focus)) void this.#fetch(false);
  }

  async #fetch(isNew: boolean): Promise<void> {
    const id = this.state.focus;
    this.#title.textContent = id ?? "";
    if (!id) return;
    const found = await log(id);
    if (id !== this.state.focus) return;
    const box = this.#lines;
    const follows = isNew || box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const lines = found.lines.filter((line, at) => line || at < found.lines.length - 1);
    const level = (line: string) => /^\S+ \S+ (DEBUG|INFO|WARNING|ERROR) /.exec(line)?.[1] ?? "";
    fill(
      box,
      found.cut && el("div", { class: "faint" }, "… earlier lines are in log.txt"),
      ...lines.map((line) => el("div", { class: level(line).toLowerCase() }, line || " ")),
      !lines.length && el("div", { class: "faint" }, "This run has no log."),
    );
    if (follows) box.scrollTop = box.scrollHeight;
  }
}
