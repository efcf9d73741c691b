/** The images and texts that the current run has logged; a click shows an image in full size. */

import { details, imageAddress, type Media } from "./api";
import { count, el, fill } from "./dom";
import type { Change, State } from "./state";
import type { View } from "./view";

export class MediaPage implements View {
  readonly root = el("div", { class: "media" });
  readonly #zoom = new Zoom();
  #shown = "";

  constructor(private readonly state: State) {
    void this.#fetch();
  }

  update(change: Change): void {
    const { focus } = this.state;
    if (change.choice || (focus && change.runs?.has(focus))) void this.#fetch();
  }

  destroy(): void {
    this.#zoom.root.remove();
  }

  async #fetch(): Promise<void> {
    const id = this.state.focus;
    if (!id) return;
    const { media } = await details(id);
    const shown = JSON.stringify([id, media]);
    if (id !== this.state.focus || shown === this.#shown) return;
    this.#shown = shown;
    const images = media.filter((one) => one.kind === "image");
    const empty = el("p", { class: "empty" }, "This run has logged no images or texts.");
    const cards = media.map((one) => card(id, one, () => this.#zoom.show(id, images, images.indexOf(one))));
    fill(
      this.root,
      el("h2", { class: "title" }, id),
      media.length ? el("div", { class: "grid" }, ...cards) : empty,
    );
  }
}

function title(one: Media): string {
  return `${one.name}, step ${count(one.step)}`;
}

function card(id: string, one: Media, open: () => void): HTMLElement {
  const image = () =>
    el("button", { type: "button", class: "image", "aria-label": `enlarge ${title(one)}`, click: open },
      el("img", { src: imageAddress(id, one.file ?? ""), alt: title(one), loading: "lazy" }));
  const body = one.kind === "image" ? image() : el("pre", {}, one.text ?? "");
  return el("figure", { class: "card" }, el("figcaption", {}, title(one)), body);
}

/** One image over the page: fitted to the window or larger, and the next and previous ones. */
class Zoom {
  readonly #image = el("img", {});
  readonly #title = el("b", {});
  readonly #box = el("div", { class: "zoom-box", tabindex: 0 }, this.#image);
  readonly root = el("dialog", { class: "zoom", "aria-label": "image" });
  #id = "";
  #images: Media[] = [];
  #at = 0;
  #scale = 0;

  constructor() {
    const button = (text: string, label: string, click: () => void) =>
      el("button", { type: "button", "aria-label": label, click }, text);
    fill(
      this.root,
      el("div", { class: "zoom-bar" }, this.#title,
        button("‹", "previous image", () => this.#go(-1)), button("›", "next image", () => this.#go(1)),
        button("−", "smaller", () => this.#size(0.5)), button("+", "larger", () => this.#size(2)),
        button("fit", "fit to the window", () => this.#size(0)),
        button("✕", "close", () => this.root.close())),
      this.#box,
    );
    this.#image.addEventListener("load", () => this.#size(0));
    this.#image.addEventListener("click", () => this.#size(2));
    this.root.addEventListener("keydown", (event) => this.#onKey(event));
    document.body.append(this.root);
  }

  show(id: string, images: Media[], at: number): void {
    [this.#id, this.#images, this.#at] = [id, images, at];
    this.#go(0);
    if (!this.root.open) this.root.showModal();
    this.#box.focus();
  }

  #go(by: number): void {
    this.#at = Math.min(this.#images.length - 1, Math.max(0, this.#at + by));
    const one = this.#images[this.#at];
    if (!one) return;
    this.#image.src = imageAddress(this.#id, one.file ?? "");
    this.#image.alt = title(one);
    this.#title.textContent = title(one);
  }

  /** Change the size by a factor; 0 fits the image to the window. */
  #size(factor: number): void {
    const { naturalWidth: width, naturalHeight: height } = this.#image;
    if (!width || !height) return;
    const box = this.#box.getBoundingClientRect();
    const fits = Math.min(box.width / width, box.height / height);
    this.#scale = factor ? Math.min(64, Math.max(0.05, this.#scale * factor)) : fits;
    this.#image.style.width = `${Math.floor(width * this.#scale)}px`;
    this.#image.style.imageRendering = this.#scale > 1.5 ? "pixelated" : "auto";
    this.root.dataset["scale"] = String(Math.round(100 * this.#scale) / 100);
  }

  #onKey(event: KeyboardEvent): void {
    const calls: Record<string, () => void> = {
      ArrowLeft: () => this.#go(-1),
      ArrowRight: () => this.#go(1),
      "+": () => this.#size(2),
      "=": () => this.#size(2),
      "-": () => this.#size(0.5),
      "0": () => this.#size(0),
    };
    event.stopPropagation();
    const call = calls[event.key];
    if (!call || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    call();
  }
}
