// What the panel shows at first: where the time goes, and what is worth a look.

class Summary {
  constructor(page) {
    this.page = page;
    this.model = page.model;
  }

  content() {
    return [
      make("h2", {}, "Where the time goes"),
      this.#bounds(),
      make("h3", {}, "Longest operations, modelled"), this.#longest(),
      ...this.#copies(),
      ...this.#spills(),
      make("h3", {}, "How to look around"),
      make("ul", { class: "hints" },
        make("li", {}, "Click an operation anywhere: its source line and all levels of its program appear here."),
        make("li", {}, make("kbd", {}, "/"), " searches, ", make("kbd", {}, "["), " and ", make("kbd", {}, "]"), " go to the operation before and after."),
        make("li", {}, "Wheel zooms, dragging moves, a double click zooms to a launch. With the keyboard: ",
          make("kbd", {}, "+"), " ", make("kbd", {}, "−"), " ", make("kbd", {}, "0"), " and arrows."),
        make("li", {}, "The address of this page names what is selected, and can be shared with the file.")),
    ];
  }

  /** The time by what bounds it: one bar and its legend. */
  #bounds() {
    const times = Object.fromEntries(BOUNDS.map((name) => [name, 0]));
    for (const op of this.model.launched) times[op.bound] += op.duration;
    const found = BOUNDS.filter((name) => times[name]).sort((a, b) => times[b] - times[a]);
    const total = found.reduce((sum, name) => sum + times[name], 0);
    return make("div", { class: "bounds" },
      make("div", { class: "stacked", "aria-hidden": "true" }, ...found.map((name) =>
        make("i", { style: { width: `${100 * times[name] / total}%`, background: `var(--bound-${name})` } }))),
      make("dl", {}, ...found.map((name) => make("div", {},
        make("dt", {}, swatch(`var(--bound-${name})`), name, make("span", { class: "muted" }, BOUND_MEANINGS[name])),
        make("dd", { class: "number" }, formatTime(times[name])),
        make("dd", { class: "number muted" }, formatShare(times[name] / total))))));
  }

  /** Equal operations of equal layers together: the longest ten. */
  #longest() {
    const groups = new Map();
    for (const op of this.model.launched) {
      const role = GROUPINGS.role.of(op);
      const key = `${op.name}\n${role}`;
      if (!groups.has(key)) groups.set(key, { op, role, time: 0, count: 0 });
      const group = groups.get(key);
      group.time += op.duration;
      group.count++;
    }
    const top = [...groups.values()].sort((a, b) => b.time - a.time).slice(0, 10);
    return make("div", { class: "longest" }, ...top.map(({ op, role, time, count }) => make("button", {
      type: "button", class: "call-row",
      onclick: () => (op.step ? this.page.selectOp(op, { reveal: true }) : this.page.selectLaunch(op.launch, { reveal: true })),
    }, swatch(this.page.colours.of(op)), make("code", {}, op.name),
    make("span", { class: "muted" }, shortLayer(role)),
    make("span", { class: "muted times" }, count > 1 ? `× ${formatCount(count)}` : ""),
    make("span", { class: "number" }, formatTime(time)))));
  }

  #copies() {
    const copies = this.model.launched.filter((op) => op.isCopy);
    if (!copies.length) return [];
    return [make("h3", {}, "Copies that the compiler put in"),
      this.#reasons(copies.map((op) => ({ reason: op.step.why, amount: op.duration, op })), formatTime)];
  }

  #spills() {
    const spills = this.model.kernels.filter((kernel) => kernel.launches.length).flatMap((kernel) =>
      kernel.buffers.flatMap((buffer, index) => {
        if (buffer.component !== "pool") return [];
        const place = writerOf(kernel, index) ?? 0;
        return [{ reason: buffer.why_not_lx || "no reason was noted", amount: buffer.nbytes, op: this.model.opOf(kernel, place), buffer: index }];
      }));
    if (!spills.length) return [];
    return [make("h3", {}, "Tensors that did not stay in LX"), this.#reasons(spills, formatBytes)];
  }

  /** Equal reasons together; a click leads to the first of them. */
  #reasons(found, format) {
    const groups = new Map();
    for (const { reason, amount, op, buffer = null } of found) {
      if (!groups.has(reason)) groups.set(reason, { reason, amount: 0, count: 0, op, buffer });
      const group = groups.get(reason);
      group.amount += amount;
      group.count++;
    }
    const top = [...groups.values()].sort((a, b) => b.amount - a.amount).slice(0, 6);
    return make("div", { class: "reasons" }, ...top.map(({ reason, amount, count, op, buffer }) => make("button", {
      type: "button", onclick: () => this.page.selectOp(op, { buffer, reveal: true }) },
    make("span", {}, reason), make("span", { class: "muted times" }, `× ${formatCount(count)}`),
    make("span", { class: "number" }, format(amount)))));
  }
}
