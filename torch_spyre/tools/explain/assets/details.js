// The panel at the side: everything about what is selected, or a summary where nothing is.

const PROGRAM_TEXTS = [
  { name: "Loops", language: "python", of: (op) => op.step.loop_ir },
  { name: "OpSpec", language: "python", of: (op) => op.step.spec },
  { name: "SuperDSC", language: "json", of: (op) => formatJson(op.step.sdsc) },
  { name: "Bundle", language: "python", of: (op) => op.kernel.mlir },
];

class Details {
  constructor(page) {
    this.page = page;
    this.model = page.model;
    this.panel = byId("details");
    this.text = "OpSpec";
    this.shown = undefined;
  }

  update() {
    const { op, launch, buffer } = this.page.selection;
    const key = [op, launch, buffer, this.page.colours.mode];
    if (this.shown?.every((value, i) => value === key[i])) return;
    this.shown = key;
    const content = op && op.step ? this.#step(op, buffer) : launch ? this.#launch(launch)
      : new Summary(this.page).content();
    this.panel.replaceChildren(...content);
    this.panel.scrollTop = 0;
    forgetColours();
  }

  #heading(title, badges, where) {
    const { page } = this;
    const move = (by, label, sign) => make("button", {
      type: "button", "aria-label": label, title: label, onclick: () => page.move(by) }, sign);
    return make("header", {},
      make("div", { class: "moves" },
        move(-1, "Previous operation  [", "‹"), move(1, "Next operation  ]", "›"),
        make("button", { type: "button", "aria-label": "Close", title: "Back to the summary  Esc", onclick: () => page.clear() }, "×")),
      make("h2", {}, title),
      make("div", { class: "badges" }, ...badges),
      make("p", { class: "where muted" }, where));
  }

  #badge(text, colour, title = null) {
    return make("span", { class: "badge", title }, swatch(colour), text);
  }

  #step(op, buffer) {
    const { colours } = this.page;
    const { step, kernel } = op;
    return [
      this.#heading(step.op, [
        this.#badge(step.kind, colours.kind(step.kind)),
        ...this.#boundBadge(step),
        step.source.aten ? make("code", { class: "badge" }, step.source.aten) : "",
      ], op.layer || "outside of modules"),
      step.why ? make("p", { class: "callout" }, make("strong", {}, "A copy that the compiler put in: "), step.why) : "",
      sourceLine(step.source),
      facts(this.#stepFacts(op)),
      make("h3", {}, "Busy units, modelled"), this.#units(step),
      this.#programTexts(op),
      make("h3", {}, "Tensors"),
      ...[...new Set(step.reads)].map((index) => this.#tensor("reads", kernel.buffers[index], index === buffer)),
      this.#tensor("writes", kernel.buffers[step.writes], step.writes === buffer),
      this.#kernelLine(op),
    ];
  }

  #stepFacts(op) {
    const { step } = op;
    const { card } = this.model;
    const bytes = step.bytes_read + step.bytes_written;
    const slices = Object.entries(step.slices).filter(([, count]) => count > 1)
      .map(([dimension, count]) => `${dimension} in ${count}`).join(", ");
    return [
      ["modelled time", formatTime(op.duration), `${formatCount(op.duration)} ns`],
      ["of the call", op.launch ? formatShare(op.duration / this.model.duration) : "not launched"],
      ["visits", step.visits > 1 ? `${formatCount(step.visits)}${step.loops.length ? `, in loops of ${step.loops.join(" × ")}` : ""}` : ""],
      ["cores", `${step.cores} of ${card.cores}`],
      ["core slices", slices || "none"],
      ["multiply-adds", step.macs ? formatLarge(step.macs) : ""],
      ["PT's rate", step.macs ? formatShare(step.macs / op.duration / card.macs_per_ns) : ""],
      ["LPDDR5 read", formatBytes(step.bytes_read), `${formatCount(step.bytes_read)} bytes`],
      ["LPDDR5 written", formatBytes(step.bytes_written), `${formatCount(step.bytes_written)} bytes`],
      ["LPDDR5's rate", bytes ? formatShare(bytes / op.duration / card.bytes_per_ns) : ""],
    ];
  }

  /** How long each unit is busy, as bars beside each other. */
  #units(step) {
    const { units } = step;
    const times = [["PT", units.pt], ["SFP", units.sfp], ["LPDDR5", units.memory], ["LX", units.lx], ["ring", units.ring]];
    const most = Math.max(1, step.duration, ...times.map(([, time]) => time));
    return make("div", { class: "units" }, ...times.map(([name, time]) => make("div", { class: name === step.bound ? "bounding" : "" },
      make("span", {}, name),
      make("span", { class: "track" }, make("i", { style: { width: `${100 * time / most}%`, background: `var(--bound-${name})` } })),
      make("span", { class: "number" }, time ? formatTime(time) : "–"))));
  }

  #tensor(role, buffer, isSelected) {
    if (!buffer) return "";
    const isSpill = buffer.component === "pool";
    return make("div", { class: `tensor${isSelected ? " selected" : ""}` },
      make("div", {}, make("span", { class: "role muted" }, role), make("code", {}, buffer.name),
        make("span", { class: `home ${buffer.component}` }, formatHome(buffer)),
        make("span", { class: "number muted" }, formatBytes(buffer.nbytes))),
      make("div", { class: "muted layout" }, `${formatTensor(buffer.dtype, buffer.shape)} → device_size [${buffer.device_size.join(", ")}], `
        + `stride_map [${buffer.stride_map.join(", ")}]`),
      isSpill && buffer.why_not_lx ? make("div", { class: "why" }, `not in LX: ${buffer.why_not_lx}`) : "");
  }

  /** The levels of the program, one at a time; the button shows all of them beside each other. */
  #programTexts(op) {
    const box = make("div", { class: "program", role: "tabpanel", "aria-live": "off" });
    const show = (name) => {
      this.text = name;
      const { language, of } = PROGRAM_TEXTS.find((text) => text.name === name);
      box.replaceChildren(codeBlock(of(op), language));
    };
    show(this.text);
    return make("section", { class: "program-texts" },
      make("div", { class: "toolbar" },
        choices(PROGRAM_TEXTS.map(({ name }) => name), this.text, show),
        make("button", { type: "button", id: "side-by-side", onclick: () => showSideBySide(op) }, "Side by side")),
      box);
  }

  #kernelLine(op) {
    const { launch, kernel, call } = op;
    const graph = call ? this.model.explanation.graphs[call.graph].name : "";
    const note = launch ? `launch ${launch.index}` : "not launched in the measured call";
    return make("p", { class: "kernel-line muted" }, `Step ${op.place} of ${kernel.steps.length} in `,
      launch ? make("button", { type: "button", class: "link", onclick: () => this.page.selectLaunch(launch) }, kernel.name) : kernel.name,
      `, ${note}${graph ? `, ${graph}` : ""}`);
  }

  #launch(launch) {
    const { kernel, call } = launch;
    const { colours } = this.page;
    const title = kernel ? kernel.name : launch.name;
    const kind = kernel || !launch.isOnCores ? launch.kind : "eager operation";
    const graph = call ? this.model.explanation.graphs[call.graph].name : "";
    const where = !call ? "in no graph" : `${graph}, call ${call.place}${call.what ? `: ${call.what}` : ""}`;
    const badge = this.#badge(kind, colours.ofLaunch(launch));
    const own = [
      ["modelled time", formatTime(launch.duration), `${formatCount(launch.duration)} ns`],
      ["starts at", formatTime(launch.start), `${formatCount(launch.start)} ns`],
      ["of the call", formatShare(launch.duration / this.model.duration)],
      ["card, queue", `${launch.device}, ${launch.queue}`],
      ...bytesOf(launch),
    ];
    if (!kernel) {
      return [
        this.#heading(title, [badge, ...this.#boundBadge(launch)], where),
        sourceLine(call?.source ?? NO_SOURCE),
        facts([...own, ...this.#eagerFacts(launch)]),
        ...(launch.units ? [make("h3", {}, "Busy units, modelled"), this.#units(launch)] : []),
      ];
    }
    return [
      this.#heading(title, [badge], where),
      facts([...own,
        ["launches", formatCount(kernel.launches.length)],
        ["cores", formatCount(kernel.cores)],
        ["LX per core", `${formatBytes(kernel.lx_bytes)} of ${formatBytes(kernel.lx_capacity)}`],
        ["LPDDR5 inside", formatBytes(kernel.pool_bytes)],
        ["arguments", formatCount(kernel.arguments)],
        ["bundle", kernel.hash.slice(0, 12), kernel.hash]]),
      make("h3", {}, plural(kernel.steps.length, "step")),
      this.#stepList(launch),
      make("h3", {}, "bundle.mlir"), codeBlock(kernel.mlir, "python"),
    ];
  }

  #boundBadge({ units, bound }) {
    return units ? [this.#badge(`bound by ${bound}`, this.page.colours.bound(bound), BOUND_MEANINGS[bound])] : [];
  }

  #eagerFacts(launch) {
    if (!launch.isEager) return [];
    const { card } = this.model;
    const { duration, macs, cores } = launch;
    return [
      ["cores", `${cores} of ${card.cores}`],
      ["multiply-adds", macs ? formatLarge(macs) : ""],
      ["PT's rate", macs ? formatShare(macs / duration / card.macs_per_ns) : ""],
      ["LPDDR5's rate", formatShare((launch.bytes_read + launch.bytes_written) / duration / card.bytes_per_ns)],
    ];
  }

  #stepList({ kernel, firstOp }) {
    const { page } = this;
    const box = make("div", { class: "step-list", style: { height: `${Math.min(12, kernel.steps.length) * 25}px` } });
    const list = new VirtualList(box, 25, (place) => {
      const op = this.model.ops[firstOp + place];
      return make("button", { type: "button", class: "call-row", onclick: () => page.selectOp(op) },
        swatch(page.colours.of(op)), make("code", {}, op.name),
        make("span", { class: "muted" }, op.layer), make("span", { class: "number" }, formatTime(op.duration)));
    });
    requestAnimationFrame(() => list.show(kernel.steps.length));
    return box;
  }
}

/** What a launch moved: an exchange over the link, the others from and to memory. */
function bytesOf(launch) {
  const names = launch.kind === "exchange" ? ["sent", "received"] : ["read", "written"];
  return [[names[0], formatBytes(launch.bytes_read)], [names[1], formatBytes(launch.bytes_written)]];
}

/** Python, loops, OpSpec and JSON of an op, in four columns. */
function showSideBySide(op) {
  const dialog = byId("compare");
  const columns = [
    ["Python", make("div", {}, sourceLine(op.source), op.source.aten ? make("p", {}, make("code", {}, op.source.aten)) : "",
      make("p", { class: "muted" }, op.layer))],
    ...PROGRAM_TEXTS.slice(0, 3).map(({ name, language, of }) => [name, codeBlock(of(op), language)]),
  ];
  byId("compare-title").textContent = op.name;
  byId("compare-columns").replaceChildren(...columns.map(([name, body]) =>
    make("section", {}, make("h3", {}, name), body)));
  dialog.showModal();
}
