// The scratchpad of a kernel: tensors as rectangles of address × time, and those that are not there.

const SCRATCH_LEFT = 64;
const SCRATCH_BOTTOM = 30;
const SCRATCH_TOP = 8;
const OUTSIDE_ROW = 46;

class Scratchpad {
  constructor(page) {
    this.page = page;
    this.mode = "steps";
    this.kernel = null;
    this.surface = new Surface(byId("scratchpad-canvas"), () => this.#draw());
    takeInHand(this.surface.canvas, this);
    byId("scratchpad-mode").append(choices(["steps", "time"], this.mode, (mode) => {
      this.mode = mode;
      this.#setAxis();
      this.surface.invalidate();
    }));
    this.outside = new VirtualList(byId("outside"), OUTSIDE_ROW, (index) => this.#outsideRow(index));
  }

  update() {
    if (this.kernel !== this.page.kernel) this.#setKernel(this.page.kernel);
    this.surface.invalidate();
  }

  #setKernel(kernel) {
    this.kernel = kernel;
    this.inside = [];
    this.missing = [];
    if (kernel) {
      const buffers = kernel.buffers.map((buffer, index) => ({ buffer, index, writer: writerOf(kernel, index) }));
      this.inside = buffers.filter(({ buffer }) => buffer.component === "lx");
      const rank = ({ buffer }) => (buffer.component === "pool" ? 0 : 1);
      this.missing = buffers.filter(({ buffer }) => buffer.component !== "lx")
        .sort((a, b) => rank(a) - rank(b) || b.buffer.nbytes - a.buffer.nbytes);
    }
    this.#setAxis();
    this.#setNotes();
    this.outside.show(this.missing.length);
  }

  #setAxis() {
    const { kernel } = this;
    const isTime = this.mode === "time";
    const length = !kernel ? 1 : isTime ? kernel.duration : kernel.steps.length;
    this.axis = new Axis(Math.max(1, length), isTime ? 20 : 2);
    // A plan that uses little of LX is drawn larger; the note says how much there is.
    const used = kernel ? kernel.lx_bytes : 0;
    const capacity = kernel ? kernel.lx_capacity : 1;
    this.top = used > capacity / 2 || used === 0 ? Math.max(capacity, used) : used * 1.15;
  }

  #setNotes() {
    const { kernel } = this;
    if (!kernel) return byId("scratchpad-note").replaceChildren("No kernel was compiled.");
    const spilled = this.missing.filter(({ buffer }) => buffer.component === "pool");
    const bytes = spilled.reduce((sum, { buffer }) => sum + buffer.nbytes, 0);
    byId("scratchpad-note").replaceChildren(
      `${plural(this.inside.length, "tensor")} in LX, at most ${formatBytes(kernel.lx_bytes)} of `
      + `${formatBytes(kernel.lx_capacity)} per core that a plan may use`);
    byId("outside-note").replaceChildren(spilled.length
      ? `${plural(spilled.length, "tensor")} made in the kernel but kept in LPDDR5, ${formatBytes(bytes)}; then its arguments`
      : "Everything made in this kernel stays in LX. Its arguments:");
  }

  /** The stretch of the axis that a buffer lives for. */
  #life({ first, last }) {
    if (this.mode === "steps") return [first, last + 1];
    const { steps } = this.kernel;
    const [from, to] = [steps[Math.max(0, first)], steps[Math.min(last, steps.length - 1)]];
    return from && to ? [from.start, to.start + to.duration] : [0, 0];
  }

  #rectangle(buffer) {
    const [start, end] = this.#life(buffer);
    const height = this.surface.height - SCRATCH_TOP - SCRATCH_BOTTOM;
    const perByte = height / this.top;
    const tall = Math.max(2, buffer.nbytes * perByte);
    const left = this.axis.toPixel(start);
    return {
      left,
      top: SCRATCH_TOP + height - buffer.address * perByte - tall,
      width: Math.max(2, this.axis.toPixel(end) - left),
      height: tall,
    };
  }

  #draw() {
    const { surface, axis, kernel, page } = this;
    if (!kernel) return;
    [axis.left, axis.right] = [SCRATCH_LEFT, surface.width - 10];
    const { named } = page.colours;
    const height = surface.height - SCRATCH_TOP - SCRATCH_BOTTOM;
    surface.box(axis.left, SCRATCH_TOP, axis.right - axis.left, height, named.sunken);
    this.#drawGrid(height);
    surface.clipped(axis.left, 0, axis.right - axis.left, surface.height - SCRATCH_BOTTOM + 1, () => {
      for (const tensor of this.inside) this.#drawBuffer(tensor);
      this.#drawSelection(height);
      const capacity = SCRATCH_TOP + height - height * kernel.lx_capacity / this.top;
      if (capacity >= SCRATCH_TOP) surface.line(axis.left, capacity + 0.5, axis.right, capacity + 0.5, named.warn, [5, 4]);
    });
    if (!this.inside.length) {
      surface.label("This kernel keeps nothing in LX; the list says why.", axis.left + 16, SCRATCH_TOP + 20, named.muted);
    }
  }

  #drawGrid(height) {
    const { surface, axis, page } = this;
    const { named } = page.colours;
    const byte = roundBytes(this.top / Math.max(2, height / 46));
    surface.context.textAlign = "right";
    for (let value = 0; value <= this.top; value += byte) {
      const y = SCRATCH_TOP + height - value / this.top * height;
      surface.line(axis.left, y + 0.5, axis.right, y + 0.5, named.faint);
      surface.label(value ? formatBytes(value) : "0", axis.left - 6, y, named.muted);
    }
    surface.context.textAlign = "center";
    const { step, values } = axis.ticks();
    const y = surface.height - SCRATCH_BOTTOM + 12;
    for (const value of values) {
      const x = axis.toPixel(value);
      if (this.mode === "time") surface.label(formatTick(value, step, axis.end), x, y, named.muted);
      else if (Number.isInteger(value) && value < axis.length) surface.label(`step ${value}`, x, y, named.muted);
      surface.line(x, surface.height - SCRATCH_BOTTOM, x, surface.height - SCRATCH_BOTTOM + 4, named.line);
    }
    surface.context.textAlign = "left";
  }

  #drawBuffer({ buffer, writer }) {
    const { surface, page, kernel } = this;
    const { left, top, width, height } = this.#rectangle(buffer);
    if (left > this.axis.right || left + width < this.axis.left) return;
    const step = kernel.steps[writer];
    surface.box(left, top, width, height, step ? page.colours.ofStep(step) : page.colours.named.muted);
    // A result may lie where its operand was, so rectangles overlap; a rim keeps them apart.
    if (height > 4) surface.frame(left, top, width, height, page.colours.named.surface, 1);
    if (height < 12) return;
    const from = Math.max(left, this.axis.left);
    const room = left + width - from - 10;
    surface.label(buffer.name, from + 5, top + Math.min(height / 2, 10), page.colours.named["on-colour"], room);
    if (height > 28) {
      surface.label(formatBytes(buffer.nbytes), from + 5, top + 23, page.colours.named["on-colour"], room);
    }
  }

  /** The selected step as a band, the selected tensor framed. */
  #drawSelection(height) {
    const { surface, page, kernel } = this;
    const { op, buffer } = page.selection;
    if (!op || !op.step || op.kernel !== kernel) return;
    const [start, end] = this.#life({ first: op.place, last: op.place });
    const [left, right] = [this.axis.toPixel(start), this.axis.toPixel(end)];
    surface.context.globalAlpha = 0.14;
    surface.box(left, SCRATCH_TOP, Math.max(2, right - left), height, page.colours.named.text);
    surface.context.globalAlpha = 1;
    const shown = buffer === null ? [op.step.writes] : [buffer];
    for (const index of shown) {
      if (kernel.buffers[index]?.component !== "lx") continue;
      const { left: x, top, width, height: tall } = this.#rectangle(kernel.buffers[index]);
      surface.frame(x, top, width - 1, tall, page.colours.named.text, 2);
    }
  }

  #outsideRow(index) {
    const { buffer, index: place, writer } = this.missing[index];
    const isSpill = buffer.component === "pool";
    const step = writer ?? readersOf(this.kernel, place)[0];
    const row = make("button", { type: "button", class: `outside-row${isSpill ? " spill" : ""}`, title: buffer.why_not_lx },
      make("span", { class: "outside-head" },
        make("code", {}, buffer.name),
        make("span", { class: "muted" }, formatTensor(buffer.dtype, buffer.shape)),
        make("span", { class: "number" }, formatBytes(buffer.nbytes))),
      make("span", { class: "outside-why muted" }, isSpill
        ? buffer.why_not_lx || "no reason was noted"
        : [formatHome(buffer), buffer.why_not_lx].filter((text) => text).join(": ")));
    if (step !== undefined) row.addEventListener("click", () => this.page.selectStep(this.kernel, step, place));
    return row;
  }

  // ---- Hands ----------------------------------------------------------------------------------

  zoom(factor, x) {
    this.axis.zoom(factor, x);
    this.surface.invalidate();
  }

  pan(dx) {
    this.axis.pan(dx);
    this.surface.invalidate();
  }

  fit() {
    this.axis.fit();
    this.surface.invalidate();
  }

  #at(x, y) {
    return this.inside.findLast(({ buffer }) => {
      const box = this.#rectangle(buffer);
      return x >= box.left && x < box.left + box.width && y >= box.top && y < box.top + box.height;
    });
  }

  click(x, y) {
    const found = this.kernel && this.#at(x, y);
    if (found && found.writer !== undefined) this.page.selectStep(this.kernel, found.writer, found.index);
  }

  hover(event, x, y) {
    const found = event && this.kernel && this.#at(x, y);
    if (!found) return this.page.tooltip.hide();
    const { buffer, writer } = found;
    this.page.tooltip.show(event, buffer.name, [
      ["written by", writer === undefined ? "–" : `${this.kernel.steps[writer].op}, step ${writer}`],
      ["tensor", formatTensor(buffer.dtype, buffer.shape)],
      ["device_size", `[${buffer.device_size.join(", ")}]`],
      ["LX", `${formatCount(buffer.address)} to ${formatCount(buffer.address + buffer.nbytes)}`],
      ["alive", `step ${buffer.first} to ${buffer.last}`]]);
  }
}

/** The first step that writes a buffer, and the steps that read it. */
function writerOf(kernel, buffer) {
  const place = kernel.steps.findIndex((step) => step.writes === buffer);
  return place < 0 ? undefined : place;
}

function readersOf(kernel, buffer) {
  return kernel.steps.flatMap((step, place) => (step.reads.includes(buffer) ? [place] : []));
}

/** The least power of two that is not below a value. */
function roundBytes(value) {
  return 2 ** Math.ceil(Math.log2(Math.max(64, value)));
}
