/** Dark or light: the system's choice, until the visitor switches. */

const KEY = "stoker-board-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export function current(): "dark" | "light" {
  const chosen = localStorage.getItem(KEY);
  if (chosen === "dark" || chosen === "light") return chosen;
  return dark.matches ? "dark" : "light";
}

export function apply(): void {
  document.documentElement.dataset["theme"] = current();
}

export function toggle(): void {
  localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
  apply();
}

export function onSystemChange(call: () => void): void {
  dark.addEventListener("change", call);
}

/** A colour of the page, by the name of its CSS variable. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
