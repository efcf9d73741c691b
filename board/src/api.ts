/** What the server tells, and how it is asked. */

export interface Status {
  state: "running" | "finished" | "preempted" | "stopped" | "failed" | "dead";
  why: string;
  seen: number;
  step: number;
  total: number | null;
  epoch: number;
  epochs: number | null;
  eta: number | null;
}

export interface Best {
  name: string;
  value: number;
  step: number;
  mode: "min" | "max";
}

export interface Summary {
  id: string;
  version: number;
  status: Status;
  best: Best | null;
  names: string[];
  rows: number;
  read: number;
  faults: string[];
}

export type Plain = string | number | boolean | null;

export interface Checkpoint {
  name: string;
  step: number;
  size: number;
  time: number | null;
  metrics: Record<string, number>;
  state: "whole" | "sizes fit" | "broken";
  faults: string[];
}

export interface Media {
  name: string;
  step: number;
  time: number | null;
  kind: "image" | "text";
  file?: string;
  text?: string;
}

export interface Details extends Summary {
  config: Record<string, Plain>;
  env: Record<string, Plain>;
  cost: Record<string, [string, number][]>;
  checkpoints: Checkpoint[];
  media: Media[];
  last: Record<string, number | null>;
}

export interface Curve {
  x: number[];
  y: (number | null)[];
  mean_x: number[];
  mean_y: (number | null)[];
  count: number;
  bad: number;
}

export interface TableRow {
  id: string;
  state: Status["state"];
  config: Record<string, Plain>;
  last: Record<string, number | null>;
  best: Best | null;
}

export interface News {
  runs: Summary[];
  gone: string[];
  known: string[] | null;
}

export type Axis = "step" | "samples" | "epoch" | "time";

type Asked = Record<string, string | number | string[] | undefined>;

async function ask<T>(call: string, asked: Asked, signal?: AbortSignal): Promise<T> {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(asked)) {
    if (value === undefined) continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
  }
  const answer = await fetch(`/api/${call}?${query}`, signal ? { signal } : {});
  if (!answer.ok) throw new Error(await answer.text());
  return (await answer.json()) as T;
}

export const details = (run: string) => ask<Details>("run", { run });
export const log = (run: string) => ask<{ lines: string[]; cut: boolean }>("log", { run });
export const table = () => ask<{ keys: string[]; rows: TableRow[] }>("table", {});
export const verify = (run: string, checkpoint: string) =>
  ask<Checkpoint>("verify", { run, checkpoint });
export const diff = (runs: string[]) =>
  ask<{ runs: string[]; rows: { key: string; values: (string | null)[] }[] }>("diff", {
    run: runs,
  });

export const imageAddress = (run: string, file: string) =>
  `/api/image?${new URLSearchParams({ run, file })}`;

export async function series(
  run: string,
  names: string[],
  x: Axis,
  range: [number, number] | null,
  points: number,
  signal: AbortSignal,
): Promise<Record<string, Curve>> {
  const asked = { run, name: names, x, points, from: range?.[0], to: range?.[1] };
  return (await ask<{ series: Record<string, Curve> }>("series", asked, signal)).series;
}

/**
 * News of runs as they come; the browser itself connects again when the line breaks.
 *
 * A page nobody sees lets go of its line: browsers have few for each address.
 */
export function listen(onNews: (news: News) => void, onLine: (up: boolean) => void): void {
  let source: EventSource | null = null;
  const connect = () => {
    source?.close();
    source = null;
    if (document.hidden) return;
    source = new EventSource("/api/stream");
    source.addEventListener("runs", (event) => {
      onNews(JSON.parse((event as MessageEvent<string>).data) as News);
    });
    source.addEventListener("open", () => onLine(true));
    source.addEventListener("error", () => onLine(false));
  };
  document.addEventListener("visibilitychange", connect);
  connect();
}
