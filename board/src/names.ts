/** Names of series: which belong together, in which order they come, and their units. */

/** Whether a series tells how training runs, not what it learns. */
export function isMeasured(name: string): boolean {
  return /^(time|memory|cost|device|gpu|cpu|host)\/|\/s$|^(lr|grad)/.test(name);
}

/** Validation before training, training before the rest; then by alphabet, numbers by value. */
export function validationFirst(one: string, other: string): number {
  return rank(one) - rank(other) || one.localeCompare(other, "en", { numeric: true });
}

function rank(name: string): number {
  if (isMeasured(name)) return 3;
  if (/^val(\/|$)/.test(name)) return 0;
  return /^train(\/|$)/.test(name) ? 1 : 2;
}

/** The group of a chart: everything before the last slash, and two groups of their own. */
export function groupOf(name: string): string {
  if (/^(lr|grad)/.test(name)) return "learning rate and gradients";
  if (isMeasured(name)) return "time, throughput and memory";
  const end = name.lastIndexOf("/");
  return end > 0 ? name.slice(0, end) : "other";
}

/** The groups of charts in the order of their first series. */
export function grouped(names: string[]): Map<string, string[]> {
  const groups = new Map<string, string[]>();
  for (const name of [...names].sort(validationFirst)) {
    const own = groups.get(groupOf(name));
    if (own) own.push(name);
    else groups.set(groupOf(name), [name]);
  }
  return groups;
}

/** The title of the y axis: what is drawn, and its unit. */
export function axisTitle(name: string): string {
  const short = name.slice(name.lastIndexOf("/") + 1) || name;
  if (/\/s$/.test(name)) return `${name.slice(0, -2)} per second`;
  if (/^(time|cost)\//.test(name)) return `${short}, seconds`;
  if (/^memory\//.test(name)) return `${short}, GiB`;
  return /^lr(\/|$)/.test(name) ? "learning rate" : short;
}
