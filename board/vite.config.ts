import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig, type Plugin } from "vite";

const ROOT = import.meta.dirname;

/** Every file the page is made from; the tests compute the same from what is committed. */
function sources(folder = ROOT): string[] {
  return readdirSync(folder, { withFileTypes: true })
    .filter((entry) => entry.name !== "node_modules")
    .flatMap((entry) => {
      const path = join(folder, entry.name);
      return entry.isDirectory() ? sources(path) : [relative(ROOT, path).replaceAll("\\", "/")];
    })
    .sort();
}

function digest(): string {
  const hash = createHash("sha256");
  for (const name of sources()) {
    hash.update(`${name}\0`).update(readFileSync(join(ROOT, name))).update("\0");
  }
  return hash.digest("hex");
}

const recordSource: Plugin = {
  name: "record-source",
  generateBundle() {
    this.emitFile({ type: "asset", fileName: "source.sha256", source: `${digest()}\n` });
  },
};

export default defineConfig({
  plugins: [recordSource],
  build: {
    outDir: "../src/stoker/board/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
  },
});
