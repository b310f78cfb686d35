// The search box: all words must occur in an operation's name, layer, source line or tensors.
// Kernels are named after operations, so what is in them is found only by a kernel's full name.

const MOST_ROWS = 2000;
const RESULT_ROW = 44;
const KERNEL_PREFIX = "spyre_";

class Search {
  constructor(page) {
    this.page = page;
    this.input = byId("search");
    this.box = byId("results");
    this.found = [];
    this.active = -1;
    this.list = new VirtualList(byId("result-rows"), RESULT_ROW, (index) => this.#row(index));
    this.input.addEventListener("input", () => this.#search());
    this.input.addEventListener("focus", () => this.#show(this.input.value.trim() !== ""));
    this.input.addEventListener("keydown", (event) => this.#key(event));
    document.addEventListener("pointerdown", (event) => {
      if (!event.target.closest(".search")) this.#show(false);
    });
  }

  /** What there is to find, one text per operation; made when somebody searches first. */
  get texts() {
    this.made ??= this.page.model.ops.map((op) => textOf(op).toLowerCase());
    return this.made;
  }

  #search() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter((word) => word);
    const { ops } = this.page.model;
    const found = words.length
      ? ops.filter((op) => words.every((word) => this.#has(op, word))) : [];
    // Who types "silu" means the operation first, and then others on a line with silu in it.
    const isNamed = (op) => words.some((word) => op.name.toLowerCase().includes(word));
    this.found = [...found.filter(isNamed), ...found.filter((op) => !isNamed(op))];
    this.active = this.found.length ? 0 : -1;
    byId("result-count").textContent = this.found.length > MOST_ROWS
      ? `${formatCount(this.found.length)} operations, the first ${formatCount(MOST_ROWS)} listed`
      : plural(this.found.length, "operation");
    this.#show(words.length > 0);
    this.page.setMatches(words.length ? new Set(this.found) : null);
  }

  #has(op, word) {
    return this.texts[op.index].includes(word)
      || (word.startsWith(KERNEL_PREFIX) && op.kernel !== null && op.kernel.name.includes(word));
  }

  #show(isOpen) {
    this.box.hidden = !isOpen;
    this.input.setAttribute("aria-expanded", String(isOpen));
    const height = Math.min(8, this.found.length) * RESULT_ROW;
    this.list.box.style.height = `${height}px`;
    this.list.box.scrollTop = 0;
    if (isOpen) this.list.show(Math.min(this.found.length, MOST_ROWS));
  }

  #row(index) {
    const op = this.found[index];
    const { colours } = this.page;
    const where = [op.layer, op.source.aten, formatPlace(op.source)].filter((text) => text).join(" · ");
    return make("div", {
      role: "option", id: `result-${index}`, "aria-selected": String(index === this.active),
      class: "result", onclick: () => this.#choose(index),
    },
    make("div", {}, swatch(colours.of(op)), make("strong", {}, op.name),
      make("span", { class: "number muted" }, op.launch ? formatTime(op.duration) : "not launched")),
    make("div", { class: "muted" }, where || Model.callName(op)));
  }

  #key(event) {
    const last = Math.min(this.found.length, MOST_ROWS) - 1;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 };
    if (event.key in moves && last >= 0) {
      event.preventDefault();
      this.active = Math.max(0, Math.min(last, this.active + moves[event.key]));
      this.list.reveal(this.active);
      this.input.setAttribute("aria-activedescendant", `result-${this.active}`);
    } else if (event.key === "Enter" && this.active >= 0) {
      this.#choose(this.active);
    } else if (event.key === "Escape") {
      this.input.value = "";
      this.#search();
      this.input.blur();
    }
  }

  #choose(index) {
    this.active = index;
    this.#show(false);
    this.page.selectOp(this.found[index], { reveal: true });
  }
}

function textOf(op) {
  const { source, step, kernel } = op;
  const tensors = step
    ? [...step.reads, step.writes].map((index) => kernel.buffers[index]?.name ?? "") : [];
  return [op.name, op.kind, op.bound, op.layer, source.aten, formatPlace(source), source.function,
    source.code, op.isCopy ? "copy" : "", ...tensors].join("\n");
}
