/** The calls to the server, and the types of its answers. */

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

/** The latest value of a series; one that is not finite is a text. */
export type Value = number | string | null;

export interface Attempt {
  began: number;
  seconds: number;
  first_step: number;
  last_step: number;
  end: string | null;
  spent: Record<string, number>;
}

export interface RunEvent {
  time: number;
  step: number;
  kind: string;
  text: string;
}

export interface Timeline {
  goodput: number | null;
  seconds: Record<string, number>;
  attempts: Attempt[];
  events: RunEvent[];
}

export interface Checkpoint {
  name: string;
  step: number;
  size: number;
  time: number | null;
  metrics: Record<string, number>;
  state: "verified" | "sizes match" | "broken";
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
  last: Record<string, Value>;
}

export interface Curve {
  x: number[];
  y: (number | null)[];
  mean_x: number[];
  mean_y: (number | null)[];
  count: number;
  bad: number;
  /** When the first row of the run was written, in seconds since 1970. */
  began: number;
}

export interface TableRow {
  id: string;
  status: Status;
  config: Record<string, Plain>;
  last: Record<string, Value>;
  best: Best | null;
}

export interface Compared extends TableRow {
  bests: Record<string, Best>;
  goodput: number | null;
  seconds: number;
}

export interface Comparison {
  runs: Compared[];
  rows: { key: string; values: (string | null)[] }[];
}

export interface News {
  runs: Summary[];
  gone: string[];
  known: string[] | null;
}

export type Axis = "step" | "samples" | "epoch" | "time";

type Query = Record<string, string | number | string[] | undefined>;

async function get<T>(call: string, values: Query, signal?: AbortSignal): Promise<T> {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined) continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(name, String(one));
  }
  const answer = await fetch(`/api/${call}?${query}`, signal ? { signal } : {});
  if (!answer.ok) throw new Error(await answer.text());
  return (await answer.json()) as T;
}

export const details = (run: string) => get<Details>("run", { run });
export const log = (run: string) => get<{ lines: string[]; cut: boolean }>("log", { run });
export const table = () => get<{ keys: string[]; rows: TableRow[] }>("table", {});
export const verify = (run: string, checkpoint: string) =>
  get<Checkpoint>("verify", { run, checkpoint });
export const compare = (runs: string[]) => get<Comparison>("compare", { run: runs });
export const timeline = (run: string) => get<Timeline>("timeline", { run });

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
  const values = { run, name: names, x, points, from: range?.[0], to: range?.[1] };
  type Answer = { began: number; series: Record<string, Omit<Curve, "began">> };
  const { began, series: found } = await get<Answer>("series", values, signal);
  return Object.fromEntries(Object.entries(found).map(([name, curve]) => [name, { ...curve, began }]));
}

/**
 * Receive changes of runs as they happen. The browser reconnects by itself.
 *
 * A hidden page closes its connection, because browsers allow only a few per host.
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
