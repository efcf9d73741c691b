/** The current run: state, progress, time line, time per step, checkpoints, configuration. */

import { details, timeline, verify, type Checkpoint, type Details, type Plain, type Timeline } from "./api";
import { age, bytes, count, el, fill, number, percent, scrolling, seconds } from "./dom";
import { timelineSection } from "./timeline";
import type { Change, State } from "./state";
import type { View } from "./view";

export class RunPage implements View {
  readonly root = el("div", { class: "run-page" });
  readonly #verified = new Map<string, Checkpoint>();
  #timer = 0;
  #open = new Set(["config"]);

  constructor(private readonly state: State) {
    void this.#fetch();
  }

  update(change: Change): void {
    if (change.choice) void this.#fetch();
    else if (this.state.focus && change.runs?.has(this.state.focus) && !this.#timer) {
      this.#timer = window.setTimeout(() => {
        this.#timer = 0;
        void this.#fetch();
      }, 1000);
    }
  }

  destroy(): void {
    clearTimeout(this.#timer);
  }

  async #fetch(): Promise<void> {
    const id = this.state.focus;
    if (!id) {
      fill(this.root, el("p", { class: "empty" }, "Select a run."));
      return;
    }
    const [run, line] = await Promise.all([details(id), timeline(id)]);
    if (id !== this.state.focus) return;
    fill(
      this.root,
      el("h2", { class: "title" }, run.id),
      this.#faults(run),
      this.#facts(run, line),
      timelineSection(line),
      this.#costs(run),
      this.#checkpoints(run),
      this.#pairs("config", "Configuration", run.config),
      this.#pairs("env", "Environment", run.env),
    );
  }

  #faults(run: Details): HTMLElement | false {
    if (!run.faults.length) return false;
    return el("ul", { class: "faults" }, ...run.faults.map((fault) => el("li", {}, fault)));
  }

  #facts(run: Details, { goodput }: Timeline): HTMLElement {
    const { status, best, last } = run;
    const facts: [string, string, (string | undefined)?][] = [["state", status.state, status.why || age(status.seen)]];
    const of = status.total ? ` of ${count(status.total)}` : "";
    const done = status.total ? `${Math.round((100 * status.step) / status.total)} %` : undefined;
    facts.push(["steps", `${count(status.step)}${of}`, done]);
    if (status.epochs) facts.push(["epochs", `${status.epoch} of ${status.epochs}`]);
    if (status.eta !== null) facts.push(["time left", seconds(status.eta)]);
    if (goodput !== null) facts.push(["goodput", percent(goodput)]);
    if (best) {
      facts.push([`best ${best.name}`, number(best.value), `at step ${count(best.step)}`]);
    }
    const shown: [string, string, (value: number) => string][] = [
      ["lr", "learning rate", (value) => number(value)],
      ["samples/s", "samples per second", (value) => number(value)],
      ["tokens/s", "tokens per second", (value) => number(value)],
      ["time/step", "time per step", seconds],
      ["memory/host", "memory, peak", (value) => `${value.toPrecision(3)} GiB`],
      ["memory/device", "device memory, peak", (value) => `${value.toPrecision(3)} GiB`],
    ];
    for (const [name, title, format] of shown) {
      const value = last[name];
      if (typeof value === "number") facts.push([title, format(value)]);
    }
    return el(
      "dl",
      { class: "facts" },
      ...facts.map(([title, value, more]) =>
        el("div", {}, el("dt", {}, title), el("dd", {}, value, el("small", {}, more ?? ""))),
      ),
    );
  }

  /** The time of a step by part, from the metrics and from cost.json. */
  #costs(run: Details): HTMLElement | false {
    const groups = new Map<string, [string, number][]>();
    const times = Object.entries(run.last).flatMap(([name, value]): [string, number][] =>
      /^(time|cost)\/.+/.test(name) && typeof value === "number" ? [[name, value]] : []);
    const isOfStep = ([name]: [string, number]) => name === "time/step" || name === "time/data";
    const ofStep = times.filter(isOfStep).map(([name, value]): [string, number] => [name.slice(5), value]);
    if (ofStep.length > 1) groups.set("step and data wait", ofStep);
    const others = times.filter((one) => !isOfStep(one));
    if (others.length) groups.set("other times", others);
    for (const [title, parts] of Object.entries(run.cost)) groups.set(title, parts);
    if (!groups.size) return false;
    const blocks = [...groups].map(([title, parts]) => {
      const most = Math.max(...parts.map(([, value]) => Math.abs(value)), 1e-12);
      const bars = parts
        .sort((a, b) => b[1] - a[1])
        .slice(0, 30)
        .map(([name, value]) => {
          const meter = el("meter", { min: 0, max: 1 });
          meter.value = Math.abs(value) / most;
          return el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, meter),
            el("td", { class: "number" }, seconds(value)));
        });
      return el("div", {}, el("h3", {}, title), el("table", { class: "bars" }, el("tbody", {}, ...bars)));
    });
    return el("section", {}, el("h2", {}, "Time per step"), el("div", { class: "columns" }, ...blocks));
  }

  #checkpoints(run: Details): HTMLElement | false {
    if (!run.checkpoints.length) return false;
    const rows = run.checkpoints.map((found) => {
      const known = this.#verified.get(`${run.id}/${found.name}`);
      const one = known && known.time === found.time ? known : found;
      const click = (event: Event) => void this.#verify(run.id, found.name, event.target as HTMLElement);
      const result = Object.entries(one.metrics)
        .filter(([name]) => name.startsWith("val"))
        .slice(0, 3)
        .map(([name, value]) => `${name} ${number(value)}`);
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, count(one.step)),
        el("td", { class: "number" }, bytes(one.size)),
        el("td", {}, one.time ? age(one.time) : "–"),
        el("td", {}, result.join(", ")),
        el("td", {}, el("span", { class: `check ${one.state.replace(" ", "-")}` }, one.state),
          one.faults.length > 0 && el("small", {}, ` ${one.faults.join("; ")}`)),
        el("td", {}, el("button", { type: "button", click }, "verify")),
      );
    });
    const heads = ["step", "size", "saved", "results", "state", ""];
    return el(
      "section",
      {},
      el("h2", {}, "Checkpoints"),
      scrolling(
        el("table", { class: "wide" },
          el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
          el("tbody", {}, ...rows))),
    );
  }

  async #verify(id: string, name: string, button: HTMLElement): Promise<void> {
    button.setAttribute("disabled", "");
    button.textContent = "reading…";
    try {
      this.#verified.set(`${id}/${name}`, await verify(id, name));
    } finally {
      await this.#fetch();
    }
  }

  #pairs(key: string, title: string, values: Record<string, Plain>): HTMLElement | false {
    const entries = Object.entries(values);
    if (!entries.length) return false;
    const box = el(
      "details",
      { open: this.#open.has(key) },
      el("summary", {}, el("h2", {}, title)),
      scrolling(
        el("table", { class: "pairs" },
          el("tbody", {}, ...entries.map(([name, value]) =>
            el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, String(value))))))),
    );
    box.addEventListener("toggle", () => this.#open[box.open ? "add" : "delete"](key));
    return box;
  }
}
