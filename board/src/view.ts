/** A tab of the page. */

import type { Change } from "./state";

export interface View {
  readonly root: HTMLElement;
  update(change: Change): void;
  repaint?(): void;
  destroy?(): void;
}
