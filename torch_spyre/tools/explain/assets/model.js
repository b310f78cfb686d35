// The explanation, indexed for looking: what happened, on which lane, when, and in which layer.

/**
 * One operation as it happened: a step in a launch of its kernel, or a launch that is no kernel
 * of a graph (a copy, an exchange with other cards, an eager operation), which has no step.
 */
class Op {
  constructor(launch, step, place, start, duration, layer) {
    this.launch = launch; // null: compiled, but not launched in the measured call
    this.step = step;
    this.place = place; // of the step in its kernel
    this.start = start; // from the start of the call
    this.duration = duration;
    this.layer = layer;
    this.index = -1;
    this.call = launch ? launch.call : null;
    this.kernel = launch ? launch.kernel : null;
  }

  get end() { return this.start + this.duration; }
  get name() { return this.step ? this.step.op : this.launch.name; }
  get kind() { return this.step ? this.step.kind : KIND_OF_LAUNCH[this.launch.kind] ?? "transfer"; }
  get bound() { return this.step ? this.step.bound : this.launch.bound; }
  get cores() { return (this.step || this.launch).cores; }
  get macs() { return (this.step || this.launch).macs; }
  get read() { return (this.step || this.launch).bytes_read; }
  get written() { return (this.step || this.launch).bytes_written; }
  get source() { return (this.step || this.call)?.source ?? NO_SOURCE; }
  /** A copy that the compiler put in, rather than the model. */
  get isCopy() { return this.step !== null && this.step.why !== ""; }
}

const KIND_OF_LAUNCH = { kernel: "eager", exchange: "link" }; // of those that are no kernels of graphs
const NO_SOURCE = Object.freeze({ file: "", line: 0, function: "", code: "", aten: "", layer: "" });

class Model {
  constructor(explanation) {
    this.explanation = explanation;
    this.card = explanation.card;
    this.duration = explanation.launches.reduce((end, launch) =>
      Math.max(end, launch.start + launch.duration), Math.max(1, explanation.duration));
    this.kernels = explanation.kernels.map((kernel, index) =>
      ({ ...kernel, index, launches: [], total: 0, lxUse: lxUse(kernel) }));
    this.launches = explanation.launches.map((launch, index) => this.#launch(launch, index));
    this.ops = [];
    for (const launch of this.launches) this.#addOps(launch);
    this.#addUnlaunched();
    this.ops.forEach((op, index) => { op.index = index; });
    this.launched = this.ops.filter((op) => op.launch);
    this.lanes = makeLanes(this.launches, this.ops);
    this.busy = busyTime(this.launches);
  }

  #call(graph, place) {
    return { graph, place, ...this.explanation.graphs[graph].calls[place] };
  }

  #launch(launch, index) {
    const call = launch.call ? this.#call(...launch.call) : null;
    const isOnCores = launch.kind === "kernel";
    const kernel = isOnCores && call && call.kernel !== null ? this.kernels[call.kernel] : null;
    const view = { ...launch, index, call, kernel, isOnCores, end: launch.start + launch.duration, firstOp: 0 };
    view.isEager = isOnCores && !kernel;
    if (kernel) {
      kernel.launches.push(view);
      kernel.total += launch.duration;
    }
    return view;
  }

  #addOps(launch) {
    launch.firstOp = this.ops.length;
    const { kernel, start } = launch;
    if (!kernel || kernel.steps.length === 0) {
      this.ops.push(new Op(launch, null, 0, start, launch.duration, launch.call?.source?.layer ?? ""));
      return;
    }
    kernel.steps.forEach((step, place) => this.ops.push(new Op(
      launch, step, place, start + step.start, step.duration, layerOf(launch.call, step, place))));
  }

  /** Kernels that another input would need: found by search, but on no lane. */
  #addUnlaunched() {
    const seen = new Set(this.launches.filter((l) => l.call).map((l) => `${l.call.graph}.${l.call.place}`));
    this.explanation.graphs.forEach((graph, g) => graph.calls.forEach((call, place) => {
      if (call.kernel === null || seen.has(`${g}.${place}`)) return;
      const kernel = this.kernels[call.kernel];
      kernel.steps.forEach((step, s) => {
        const op = new Op(null, step, s, step.start, step.duration, layerOf(call, step, s));
        op.call = this.#call(g, place);
        op.kernel = kernel;
        this.ops.push(op);
      });
    }));
  }

  /** The op of a step: in the given launch, if it is one of this kernel, else in the first one. */
  opOf(kernel, place, launch = null) {
    const found = launch && launch.kernel === kernel ? launch : kernel.launches[0];
    if (found) return this.ops[found.firstOp + place];
    return this.ops.find((op) => op.kernel === kernel && op.place === place);
  }

  /** The kernel that most of the time goes to. */
  hottest() {
    return this.kernels.reduce((best, kernel) =>
      (!best || kernel.total > best.total ? kernel : best), null);
  }

  /** A name for a kernel's call that says where in the model it is: its layers in common. */
  static callName(op) {
    if (!op.kernel) return op.name;
    const layers = op.call.layers.filter((layer) => layer);
    const common = layers.length ? layers.reduce(commonPrefix) : "";
    return common ? `${op.kernel.name} · ${common}` : op.kernel.name;
  }
}

function layerOf(call, step, place) {
  return call.layers[place] ?? step.source.layer;
}

/** commonPrefix("model.layers.1.mlp", "model.layers.1.norm") → "model.layers.1" */
function commonPrefix(one, other) {
  const [a, b] = [one.split("."), other.split(".")];
  let length = 0;
  while (length < a.length && a[length] === b[length]) length++;
  return a.slice(0, length).join(".");
}

/** Bytes of LX in use during every step. */
function lxUse(kernel) {
  const use = new Float64Array(kernel.steps.length);
  for (const buffer of kernel.buffers) {
    if (buffer.component !== "lx") continue;
    for (let step = Math.max(0, buffer.first); step <= buffer.last && step < use.length; step++) {
      use[step] += buffer.nbytes;
    }
  }
  return use;
}

/** How long anything was under way: what overlaps on several queues counts once. */
function busyTime(launches) {
  let [busy, until] = [0, 0];
  for (const { start, end } of [...launches].sort((a, b) => a.start - b.start)) {
    busy += Math.max(0, end - Math.max(start, until));
    until = Math.max(until, end);
  }
  return busy;
}

/** One lane per card and queue, each with its launches, ops and layers in the order of time. */
function makeLanes(launches, ops) {
  const lanes = new Map();
  for (const launch of launches) {
    const key = `${launch.device}.${launch.queue}`;
    if (!lanes.has(key)) lanes.set(key, { device: launch.device, queue: launch.queue, launches: [] });
    lanes.get(key).launches.push(launch);
  }
  const sorted = [...lanes.values()].sort((a, b) => a.device - b.device || a.queue - b.queue);
  for (const lane of sorted) {
    lane.launches.sort((a, b) => a.start - b.start);
    lane.ops = lane.launches.flatMap(({ firstOp, kernel }) =>
      ops.slice(firstOp, firstOp + Math.max(1, kernel ? kernel.steps.length : 0)));
    lane.steps = lane.ops.filter((op) => op.step);
    lane.onCores = lane.ops.filter((op) => op.cores);
    lane.layers = layerRows(lane.onCores);
  }
  return sorted;
}

const LAYER_ROWS = 4;

/** "model.layers.3.mlp.up_proj" → ["model", "layers.3", "mlp", "up_proj"]; a star is any number. */
function layerParts(layer) {
  const parts = [];
  for (const part of layer ? layer.split(".") : []) {
    if (/^(\d+|\*)$/.test(part) && parts.length) parts[parts.length - 1] += `.${part}`;
    else parts.push(part);
  }
  return parts;
}

/** The innermost two modules: what tells an operation from its neighbours. */
function shortLayer(layer) {
  return layerParts(layer).slice(-2).join(".");
}

/** Modules over time, as rows of spans: the outermost first, those within it below. */
function layerRows(ops) {
  const rows = Array.from({ length: LAYER_ROWS }, () => []);
  let open = [];
  for (const op of ops) {
    const parts = layerParts(op.layer).slice(0, LAYER_ROWS);
    let same = 0;
    while (same < parts.length && open[same]?.name === parts[same]) open[same++].end = op.end;
    open = open.slice(0, same);
    for (let depth = same; depth < parts.length; depth++) {
      const span = { name: parts[depth], layer: op.layer, start: op.start, end: op.end, op };
      rows[depth].push(span);
      open.push(span);
    }
  }
  return rows.filter((row) => row.length);
}

/** The first place in a list, sorted by start, of something that ends after `time`. */
function firstEndingAfter(sorted, time) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle].end > time) high = middle;
    else low = middle + 1;
  }
  return low;
}
