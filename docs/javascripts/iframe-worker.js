// Lets the search work when the site is opened as a file. Browsers allow no Worker on file:, so this
// one runs its script in a hidden frame; messages go both ways as with the real one.

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc =
        "<script>var postMessage = (data) => parent.postMessage(data, '*');</script>" +
        `<script src="${new URL(url, location.href)}"></script>`;
      this.loaded = new Promise((resolve) => this.frame.addEventListener("load", resolve));
      window.addEventListener("message", (event) => {
        if (event.source !== this.frame.contentWindow) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      document.body.append(this.frame);
    }

    async postMessage(data) {
      await this.loaded;
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
