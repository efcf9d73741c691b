/** The page: a bar with the controls, the list of runs, and the current tab. */

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { listen } from "./api";
import { Charts } from "./charts";
import { Compare } from "./compare";
import { el, fill, part } from "./dom";
import { onKeys, HELP } from "./keys";
import { RunList } from "./list";
import { Log } from "./log";
import { MediaPage } from "./media";
import { RunPage } from "./run";
import { AXES, State, TABS, type Tab } from "./state";
import { Table } from "./table";
import * as theme from "./theme";
import type { View } from "./view";

const VIEWS: Record<Tab, new (state: State) => View> = {
  charts: Charts,
  table: Table,
  compare: Compare,
  run: RunPage,
  log: Log,
  media: MediaPage,
};

const state = new State();
const main = part("main");
const list = new RunList(part("runs"), state);
const line = el("span", { class: "line-state", role: "status" }, "connecting…");
let view: View | null = null;

function show(): void {
  view?.destroy?.();
  view = new VIEWS[state.tab](state);
  fill(main, view.root);
  for (const button of document.querySelectorAll<HTMLElement>("[data-tab]")) {
    const isOn = button.dataset["tab"] === state.tab;
    button.setAttribute("aria-current", isOn ? "page" : "false");
  }
  document.body.dataset["tab"] = state.tab;
}

function switchTheme(): void {
  theme.toggle();
  view?.repaint?.();
}

function makeBar(): void {
  const tabs = TABS.map((tab) =>
    el("button", { type: "button", class: "tab", "data-tab": tab, click: () => state.go(tab) }, tab),
  );
  const axis = el("select", { id: "axis", "aria-label": "x axis" },
    ...AXES.map((name) => el("option", { value: name }, name === "time" ? "wall time" : name)));
  const smooth = el("input", { id: "smooth", type: "range", min: 0, max: 0.99, step: 0.01, "aria-label": "smoothing" });
  const log = el("input", { id: "log", type: "checkbox" });
  const filter = el("input", { id: "filter", type: "search", placeholder: "Filter", "aria-label": "Filter charts" });
  const all = el("button", { type: "button", id: "reset", click: () => state.set({ range: null }) }, "show all");
  axis.addEventListener("change", () => state.set({ axis: AXES[axis.selectedIndex] ?? "step" }));
  smooth.addEventListener("input", () => state.set({ smooth: Number(smooth.value) }));
  filter.addEventListener("input", () => state.set({ filter: filter.value.trim() }));
  log.addEventListener("change", () => state.set({ logScale: log.checked }));
  const match = () => {
    axis.value = state.axis;
    smooth.value = String(state.smooth);
    log.checked = state.logScale;
    if (document.activeElement !== filter) filter.value = state.filter;
    all.hidden = !state.range;
  };
  state.on(match);
  match();
  const help = part<HTMLDialogElement>("help");
  fill(help, el("h2", {}, "Keyboard shortcuts"), el("dl", {}, ...HELP.flatMap(([key, does]) => [el("dt", {}, key), el("dd", {}, does)])),
    el("button", { type: "button", click: () => help.close() }, "close"));
  fill(part("bar"),
    el("h1", {}, "Stoker"),
    el("nav", { class: "tabs", "aria-label": "Views" }, ...tabs),
    el("div", { class: "controls" },
      filter, el("label", {}, "x ", axis), el("label", {}, "smooth ", smooth), el("label", {}, log, " log scale"), all),
    line,
    el("button", { type: "button", id: "theme", "aria-label": "switch between dark and light", click: switchTheme }, "◐"),
    el("button", { type: "button", id: "keys", "aria-label": "keyboard shortcuts", click: () => help.showModal() }, "?"));
}

theme.apply();
theme.onSystemChange(() => {
  theme.apply();
  view?.repaint?.();
});
makeBar();
state.on((change) => {
  if (change.tab) show();
  else view?.update(change);
});
show();
onKeys(state, list, switchTheme, part<HTMLDialogElement>("help"));
listen(
  (news) => state.take(news),
  (isUp) => {
    line.textContent = isUp ? "live" : "no connection";
    line.classList.toggle("up", isUp);
  },
);
