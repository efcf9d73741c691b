/** One chart: a curve per selected run, the values under the cursor, drag to zoom. */

import uPlot from "uplot";
import type { Axis, Curve, RunEvent } from "./api";
import { el, fill, number, seconds } from "./dom";
import { axisTitle } from "./names";
import { colour } from "./theme";

export interface Line {
  id: string;
  colour: number;
  curve: Curve;
  events: RunEvent[];
}

/** Events that are marked in charts: where an attempt did not simply start or finish. */
const MARKED = new Set(["restart", "rollback", "preempted", "failed", "killed"]);
const AXIS_TITLES: Record<Axis, string> = {
  step: "step",
  samples: "samples",
  epoch: "epoch",
  time: "time since the first row",
};

export interface Display {
  axis: Axis;
  smooth: number;
  logScale: boolean;
  range: [number, number] | null;
}

const HEIGHT = 230;

/** An exponential moving average without bias towards its start. */
export function smoothed(values: (number | null)[], weight: number): (number | null)[] {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

export class Plot {
  readonly root: HTMLElement;
  readonly #canvas = el("div", { class: "canvas" });
  readonly #reading = el("div", { class: "reading" });
  #chart: uPlot | null = null;
  #shape = "";
  #lines: Line[] = [];
  #display: Display = { axis: "step", smooth: 0, logScale: false, range: null };

  constructor(
    readonly name: string,
    private readonly onZoom: (range: [number, number] | null) => void,
  ) {
    this.root = el(
      "figure",
      { class: "card", "data-name": name, tabindex: 0, "aria-label": `${name}, chart` },
      el("figcaption", {}, name),
      this.#canvas,
      this.#reading,
    );
    this.root.addEventListener("keydown", (event) => this.#onKey(event));
  }

  get points(): number {
    return Math.max(200, Math.round(this.#canvas.clientWidth * Math.min(2, devicePixelRatio)));
  }

  draw(lines: Line[], display: Display): void {
    this.#lines = lines;
    this.#display = display;
    const shape = JSON.stringify([lines.map((l) => [l.id, l.colour]), display.logScale, display.axis]);
    const smooth = display.smooth > 0;
    this.root.dataset["points"] = String(lines.reduce((n, l) => n + l.curve.x.length, 0));
    this.root.dataset["axis"] = display.axis;
    this.root.dataset["titles"] = `${AXIS_TITLES[display.axis]}, ${axisTitle(this.name)}`;
    if (!lines.some(({ curve }) => curve.y.some((value) => value !== null))) {
      this.destroy();
      const loaded = lines.some(({ curve }) => curve.y.length);
      fill(this.#canvas, el("p", { class: "undrawn" }, loaded ? "no finite values" : "loading…"));
      fill(this.#reading);
      return;
    }
    if (!this.#chart || shape + smooth !== this.#shape) {
      this.#chart?.destroy();
      fill(this.#canvas);
      this.#chart = new uPlot(this.#options(), this.#data(), this.#canvas);
      this.#shape = shape + smooth;
    } else {
      this.#chart.setData(this.#data(), true);
    }
    this.#read(null);
  }

  resize(): void {
    const width = this.#canvas.clientWidth;
    if (this.#chart && width && width !== this.#chart.width) {
      this.#chart.setSize({ width, height: HEIGHT });
    }
  }

  repaint(): void {
    this.#shape = "";
    if (this.#lines.length) this.draw(this.#lines, this.#display);
  }

  destroy(): void {
    this.#chart?.destroy();
    this.#chart = null;
  }

  #data(): uPlot.AlignedData {
    const { smooth, logScale } = this.#display;
    const shown = (y: (number | null)[]) =>
      logScale ? y.map((value) => (value !== null && value > 0 ? value : null)) : y;
    const tables: uPlot.AlignedData[] = this.#lines.flatMap(({ curve }) => {
      const raw: uPlot.AlignedData = [curve.x, shown(curve.y)];
      if (!smooth) return [raw];
      return [raw, [curve.mean_x, shown(smoothed(curve.mean_y, smooth))]];
    });
    return tables.length ? uPlot.join(tables) : [[], []];
  }

  #options(): uPlot.Options {
    const { axis, logScale, smooth } = this.#display;
    const grid = { stroke: colour("--grid"), width: 1 };
    const font = "11px system-ui, sans-serif";
    const ink = { stroke: colour("--faint"), font, labelFont: font, labelSize: 18, labelGap: 0, grid, ticks: grid };
    const times = (_: uPlot, splits: number[]) => splits.map((value) => seconds(value));
    const plain = (_: uPlot, splits: number[]) => splits.map((v) => (v === null ? "" : compact(v)));
    const series = this.#lines.flatMap(({ colour: at }): uPlot.Series[] => {
      const stroke = colour(`--run-${at}`);
      const points = { size: 4 };
      if (!smooth) return [{ stroke, width: 1.5, points }];
      return [
        { stroke: `${stroke}55`, width: 1, points: { show: false } },
        { stroke, width: 2, points: { show: false } },
      ];
    });
    return {
      width: Math.max(160, this.#canvas.clientWidth),
      height: HEIGHT,
      padding: [10, 12, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: "board", filters: { pub: (type) => /^mouse(move|leave)$/.test(type) } },
        drag: { x: true, y: false, setScale: false },
        points: { size: 7 },
        bind: { dblclick: () => () => (this.onZoom(null), null) },
      },
      scales: {
        x: { time: false, range: (_, low, high) => this.#xRange(low, high) },
        y: { distr: logScale ? 3 : 1 },
      },
      axes: [
        { ...ink, label: AXIS_TITLES[axis], size: 30, values: axis === "time" ? times : plain, space: 64 },
        { ...ink, label: axisTitle(this.name), size: 52, values: plain },
      ],
      series: [{}, ...series],
      hooks: {
        draw: [(chart) => this.#drawEvents(chart)],
        setSelect: [(chart) => this.#select(chart)],
        setCursor: [(chart) => this.#read(chart.cursor.idx ?? null)],
      },
    };
  }

  /** The events to mark, with their places; several at one place are one mark. */
  #marks(chart: uPlot): { place: number; colour: number; label: string; title: string }[] {
    const { axis } = this.#display;
    if (axis !== "step" && axis !== "time") return [];
    const { left, width } = chart.bbox;
    const marks = this.#lines.flatMap(({ id, events, colour: at, curve }) =>
      events.filter((event) => MARKED.has(event.kind)).map((event) => {
        const x = axis === "step" ? event.step : event.time - curve.began;
        const title = `${id}: ${event.kind} at step ${event.step}`;
        return { place: Math.round(chart.valToPos(x, "x", true)), colour: at, label: event.kind, title };
      }));
    const seen = marks.filter(({ place }) => place >= left && place <= left + width);
    return seen.sort((one, other) => one.place - other.place);
  }

  /** Dashed lines where a run was restarted, preempted or rolled back, in its colour. */
  #drawEvents(chart: uPlot): void {
    const { ctx, bbox } = chart;
    const marks = this.#marks(chart);
    const unit = devicePixelRatio;
    ctx.save();
    ctx.setLineDash([3 * unit, 3 * unit]);
    ctx.lineWidth = unit;
    ctx.font = `${10 * unit}px system-ui, sans-serif`;
    ctx.fillStyle = colour("--faint");
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    let free = 0;
    marks.forEach(({ place, colour: at, label }, number) => {
      if (place === marks[number - 1]?.place) return;
      ctx.strokeStyle = colour(`--run-${at}`);
      ctx.beginPath();
      ctx.moveTo(place, bbox.top);
      ctx.lineTo(place, bbox.top + bbox.height);
      ctx.stroke();
      const end = place + 3 * unit + ctx.measureText(label).width;
      if (place < free || end > bbox.left + bbox.width) return;
      ctx.fillText(label, place + 3 * unit, bbox.top + 9 * unit);
      free = end + 4 * unit;
    });
    ctx.restore();
    this.root.dataset["events"] = String(marks.length);
    this.#canvas.title = marks.slice(0, 12).map(({ title }) => title).join("\n");
  }

  #xRange(low: number | null, high: number | null): [number, number] {
    if (this.#display.range) return this.#display.range;
    if (low === null || high === null) return [0, 1];
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  #select(chart: uPlot): void {
    const { left, width } = chart.select;
    if (width < 4) return;
    const range: [number, number] = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.onZoom(range);
  }

  /** Keyboard control: + and - zoom, arrows move, 0 shows all. */
  #onKey(event: KeyboardEvent): void {
    const scale = this.#chart?.scales["x"];
    if (event.ctrlKey || event.metaKey || scale?.min == null || scale.max == null) return;
    const span = scale.max - scale.min;
    const [low, high] = [scale.min, scale.max];
    const moves: Record<string, [number, number] | null> = {
      "+": [low + span / 4, high - span / 4],
      "=": [low + span / 4, high - span / 4],
      "-": [low - span / 2, high + span / 2],
      ArrowLeft: [low - span / 4, high - span / 4],
      ArrowRight: [low + span / 4, high + span / 4],
      "0": null,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();
    this.onZoom(moves[event.key] ?? null);
  }

  /** The values under the cursor, or the last ones. */
  #read(at: number | null): void {
    const chart = this.#chart;
    if (!chart) return;
    const step = this.#display.smooth ? 2 : 1;
    const rows = this.#lines.slice(0, 8).map((line, order) => {
      const values = chart.data[1 + order * step + (step - 1)] ?? [];
      const [place, value] = nearest(values, at ?? values.length - 1);
      const x = place === null ? null : chart.data[0][place];
      const where = x == null ? "" : this.#display.axis === "time" ? seconds(x) : number(x);
      const bad = line.curve.bad ? ` · ${line.curve.bad} not finite` : "";
      return el(
        "div",
        { class: `reading-row run-${line.colour}` },
        el("span", { class: "dot" }),
        el("span", { class: "run-name" }, line.id),
        el("b", {}, number(value)),
        el("span", { class: "faint" }, `${where && `@ ${where}`}${bad}`),
      );
    });
    const more = this.#lines.length - 8;
    fill(this.#reading, ...rows, more > 0 && el("div", { class: "faint" }, `and ${more} more`));
  }
}

/** A number on an axis: 20k, 0.25, 1e-5. */
function compact(value: number): string {
  const size = Math.abs(value);
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]] as const) {
    if (size >= unit && size < 1e12 && (unit !== 1e3 || size >= 1e4)) {
      return `${Number((value / unit).toPrecision(4))}${letter}`;
    }
  }
  return number(Number(value.toPrecision(6)));
}

/** The position and value at an index, or at the last index before it that has a value. */
function nearest(
  values: ArrayLike<number | null | undefined>,
  at: number,
): [number | null, number | null] {
  for (let i = at; i >= 0; i -= 1) {
    const value = values[i];
    if (value !== null && value !== undefined) return [i, value];
  }
  return [null, null];
}
