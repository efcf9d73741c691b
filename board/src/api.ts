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
export const diff = (runs: string[]) =>
  get<{ runs: string[]; rows: { key: string; values: (string | null)[] }[] }>("diff", {
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
  const values = { run, name: names, x, points, from: range?.[0], to: range?.[1] };
  return (await get<{ series: Record<string, Curve> }>("series", values, signal)).series;
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
