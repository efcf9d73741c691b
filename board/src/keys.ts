/** Keyboard shortcuts. */

import type { RunList } from "./list";
import { AXES, TABS, type State } from "./state";

export const HELP: [string, string][] = [
  ["1 … 6", "charts, table, compare, run, log, media"],
  ["j  k", "next and previous run"],
  ["space", "draw or hide the current run"],
  ["/", "filter the runs"],
  ["x", "next x axis"],
  ["l", "log scale"],
  ["s  S", "more and less smoothing"],
  ["r", "show the full range"],
  ["+  -  ←  →  0", "zoom and move in a focused chart"],
  ["t", "switch between dark and light"],
  ["?", "show this help"],
];

export function onKeys(
  state: State,
  list: RunList,
  switchTheme: () => void,
  help: HTMLDialogElement,
): void {
  const smooth = (by: number) =>
    state.set({ smooth: Math.round(100 * Math.min(0.99, Math.max(0, state.smooth + by))) / 100 });
  const nextAxis = () => AXES[(AXES.indexOf(state.axis) + 1) % AXES.length] ?? "step";
  const calls: Record<string, () => void> = {
    j: () => list.move(1),
    k: () => list.move(-1),
    "/": () => list.focusFilter(),
    x: () => state.set({ axis: nextAxis() }),
    l: () => state.set({ logScale: !state.logScale }),
    s: () => smooth(0.1),
    S: () => smooth(-0.1),
    r: () => state.set({ range: null }),
    t: switchTheme,
    "?": () => help.showModal(),
  };
  TABS.forEach((tab, at) => (calls[String(at + 1)] = () => state.go(tab)));
  calls[" "] = () => state.focus && state.toggle(state.focus);

  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.key === "Escape" && target instanceof HTMLInputElement) target.blur();
    const types = target instanceof HTMLInputElement && target.type !== "checkbox";
    if (types || target instanceof HTMLSelectElement) return;
    const presses = event.key === " " && target.closest("button, input, summary, .log");
    if (presses && !target.classList.contains("open")) return;
    const call = calls[event.key];
    if (!call) return;
    event.preventDefault();
    call();
  });
}
