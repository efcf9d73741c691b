/** The images and texts that the current run has logged. */

import { details, imageAddress, type Media } from "./api";
import { count, el, fill } from "./dom";
import type { Change, State } from "./state";
import type { View } from "./view";

export class MediaPage implements View {
  readonly root = el("div", { class: "media" });
  #shown = "";

  constructor(private readonly state: State) {
    void this.#fetch();
  }

  update(change: Change): void {
    const { focus } = this.state;
    if (change.choice || (focus && change.runs?.has(focus))) void this.#fetch();
  }

  async #fetch(): Promise<void> {
    const id = this.state.focus;
    if (!id) return;
    const { media } = await details(id);
    const shown = JSON.stringify([id, media]);
    if (id !== this.state.focus || shown === this.#shown) return;
    this.#shown = shown;
    const empty = el("p", { class: "empty" }, "This run has logged no images or texts.");
    fill(
      this.root,
      el("h2", { class: "title" }, id),
      media.length ? el("div", { class: "grid" }, ...media.map((one) => card(id, one))) : empty,
    );
  }
}

function card(id: string, one: Media): HTMLElement {
  const name = `${one.name}, step ${count(one.step)}`;
  const body =
    one.kind === "image"
      ? el("img", { src: imageAddress(id, one.file ?? ""), alt: name, loading: "lazy" })
      : el("pre", {}, one.text ?? "");
  return el("figure", { class: "card" }, el("figcaption", {}, name), body);
}
