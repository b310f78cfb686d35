// The page: what is selected, which view is shown, and the address that says so.

class Page {
  constructor(model) {
    this.model = model;
    this.selection = { op: null, launch: null, buffer: null };
    this.kernel = model.hottest();
    this.matches = null; // what the search box found; everything else is faded
    this.colours = new Colours();
    this.tooltip = new Tooltip(byId("tooltip"));
    showHeader(model);
    this.timeline = new Timeline(this);
    this.views = {
      scratchpad: new Scratchpad(this),
      operations: new Flow(this),
      roofline: new Roofline(this),
      time: new TimeTable(this),
      graphs: new Graphs(this),
    };
    this.details = new Details(this);
    this.search = new Search(this);
    this.#wireTabs();
    this.#wireKernels();
    this.#wireColours();
    this.#wireKeys();
    this.view = "scratchpad";
    this.#readHash();
    addEventListener("hashchange", () => this.#readHash());
  }

  update() {
    this.timeline.update();
    this.views[this.view].update();
    this.details.update();
    byId("zoom-selection").disabled = !this.selection.launch;
    const { kernel } = this;
    if (kernel) byId("kernel").value = String(kernel.index);
  }

  // ---- Selection ------------------------------------------------------------------------------

  selectOp(op, { buffer = null, reveal = false } = {}) {
    this.#select({ op, launch: op.launch, buffer }, reveal);
  }

  selectLaunch(launch, { reveal = false } = {}) {
    this.#select({ op: launch.kernel ? null : this.model.ops[launch.firstOp], launch, buffer: null }, reveal);
  }

  /** A step of a kernel: in the launch that is selected, if it is one of this kernel. */
  selectStep(kernel, place, buffer = null) {
    const op = this.opOf(kernel, place);
    if (op) this.selectOp(op, { buffer, reveal: true });
  }

  opOf(kernel, place) {
    return this.model.opOf(kernel, place, this.selection.launch);
  }

  clear() {
    this.#select({ op: null, launch: null, buffer: null }, false);
  }

  /** To the operation before or after the selected one. */
  move(by) {
    const { op, launch } = this.selection;
    const from = op ? op.index : launch ? launch.firstOp - (by > 0 ? 1 : 0) : by > 0 ? -1 : this.model.ops.length;
    const next = this.model.ops[from + by];
    if (next) this.selectOp(next, { reveal: true });
  }

  #select(selection, reveal) {
    this.selection = selection;
    const { op, launch } = selection;
    const kernel = op ? op.kernel : launch ? launch.kernel : null;
    if (kernel) this.kernel = kernel;
    if (reveal) this.timeline.reveal(op ?? opLike(launch));
    this.tooltip.hide();
    this.#writeHash();
    byId("announcer").textContent = op ? `${op.name} ${op.layer}, ${formatTime(op.duration)} modelled`
      : launch ? launch.name : "";
    this.update();
  }

  setMatches(matches) {
    this.matches = matches;
    this.update();
  }

  isFaded(op) {
    return this.matches !== null && !this.matches.has(op);
  }

  /** The note beside the pointer for an op. */
  describe(event, op) {
    this.tooltip.show(event, op.name, [
      ["layer", op.layer || "–"],
      ["source", formatPlace(op.source) || "–"],
      ["modelled", formatTime(op.duration)],
      ["cores", String(op.cores)],
      ["bound by", op.bound],
      ["LPDDR5", `${formatBytes(op.read)} read, ${formatBytes(op.written)} written`]]);
  }

  // ---- The address ----------------------------------------------------------------------------

  #writeHash() {
    const { op, launch } = this.selection;
    const words = new URLSearchParams();
    if (launch) words.set("launch", launch.index);
    else if (op) words.set("call", `${op.call.graph}.${op.call.place}`);
    if (op && op.step) words.set("step", op.place);
    if (this.view !== "scratchpad") words.set("view", this.view);
    const hash = words.toString();
    if (location.hash.slice(1) !== hash) location.hash = hash;
  }

  #readHash() {
    const words = new URLSearchParams(location.hash.slice(1));
    const view = words.get("view");
    this.#showView(view in this.views ? view : "scratchpad");
    const { launch, op } = this.#named(words);
    const { op: oldOp, launch: oldLaunch } = this.selection;
    if (op !== oldOp || launch !== oldLaunch) this.#select({ op, launch, buffer: null }, true);
    else this.update();
  }

  /** The launch and the op that an address names; null for what this file does not have. */
  #named(words) {
    const { launches, ops } = this.model;
    const place = words.has("step") ? Number(words.get("step")) : null;
    const launch = words.has("launch") ? launches[Number(words.get("launch"))] ?? null : null;
    if (launch && !launch.kernel) return { launch, op: ops[launch.firstOp] };
    if (launch) return { launch, op: place === null || !launch.kernel.steps[place] ? null : ops[launch.firstOp + place] };
    const op = words.has("call") ? ops.find((found) => !found.launch && found.place === place
      && `${found.call.graph}.${found.call.place}` === words.get("call")) ?? null : null;
    return { launch: null, op };
  }

  // ---- Controls -------------------------------------------------------------------------------

  #showView(name) {
    this.view = name;
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const isShown = tab.dataset.view === name;
      tab.setAttribute("aria-selected", String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
      byId(`view-${tab.dataset.view}`).hidden = !isShown;
    }
    byId("kernel-choice").hidden = name !== "scratchpad" && name !== "operations";
  }

  #wireTabs() {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    const open = (tab) => {
      this.#showView(tab.dataset.view);
      this.#writeHash();
      this.update();
    };
    tabs.forEach((tab, index) => {
      tab.addEventListener("click", () => open(tab));
      tab.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        const next = tabs[(index + by + tabs.length) % tabs.length];
        open(next);
        next.focus();
      });
    });
  }

  #wireKernels() {
    const select = byId("kernel");
    for (const kernel of this.model.kernels) {
      const note = kernel.launches.length
        ? `${plural(kernel.launches.length, "launch", "launches")}, ${formatTime(kernel.total)}` : "not launched";
      select.append(make("option", { value: kernel.index }, `${kernel.name} — ${note}`));
    }
    select.disabled = this.model.kernels.length === 0;
    select.addEventListener("change", () => {
      this.kernel = this.model.kernels[Number(select.value)];
      this.update();
    });
  }

  #wireColours() {
    const select = byId("colour-mode");
    const legend = () => byId("legend").replaceChildren(...this.colours.legend(this.model.launched)
      .map(([name, colour, meaning]) => make("span", { title: meaning || null }, swatch(colour), name)));
    select.addEventListener("change", () => {
      this.colours.mode = select.value;
      legend();
      this.update();
    });
    const restyle = () => {
      this.colours.read();
      legend();
      this.update();
    };
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", restyle);
    byId("scheme").addEventListener("click", () => {
      const { style } = document.documentElement;
      const isDark = style.colorScheme ? style.colorScheme === "dark" : dark.matches;
      style.colorScheme = isDark ? "light" : "dark";
      restyle();
    });
    legend();
  }

  #wireKeys() {
    byId("compare-close").addEventListener("click", () => byId("compare").close());
    document.addEventListener("keydown", (event) => {
      const isTyping = event.target.matches("input, select, textarea") || byId("compare").open;
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = {
        "/": () => byId("search").focus(),
        "[": () => this.move(-1),
        "]": () => this.move(1),
        Escape: () => this.clear(),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }
}

/** A launch as something with a start, an end and a duration that the timeline can show. */
function opLike(launch) {
  return launch && { launch, start: launch.start, end: launch.end, duration: launch.duration };
}

function start() {
  const model = new Model(JSON.parse(byId("explanation").textContent));
  globalThis.explainPage = new Page(model); // for the console, and for the tests
}

start();
