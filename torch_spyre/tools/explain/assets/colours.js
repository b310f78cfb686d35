// Colours are named in the style sheet, once for both schemes; canvases ask for them here.

const BOUNDS = ["PT", "SFP", "LPDDR5", "LX", "ring", "PCIe", "link", "eager"];
const KINDS = ["matmul", "pointwise", "reduction", "restickify", "relayout", "transfer", "link", "eager"];
const BOUND_MEANINGS = {
  PT: "the matrix units",
  SFP: "the vector units",
  LPDDR5: "device memory",
  LX: "the scratchpads",
  ring: "the ring between the cores",
  PCIe: "copies from and to the host",
  link: "exchanges with other cards",
  eager: "not in a compiled kernel",
};

class Colours {
  constructor() {
    this.mode = "bound";
    this.read();
  }

  /** The style sheet's colours, resolved for the scheme in use. */
  read() {
    const probe = make("span", { hidden: true });
    document.body.append(probe);
    const resolve = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const plain = ["text", "muted", "faint", "line", "surface", "sunken", "accent", "layer-a",
      "layer-b", "launch", "on-colour", "warn"];
    this.named = Object.fromEntries(plain.map((name) => [name, resolve(name)]));
    this.bounds = Object.fromEntries(BOUNDS.map((name) => [name, resolve(`bound-${name}`)]));
    this.kinds = Object.fromEntries(KINDS.map((name) => [name, resolve(`kind-${name}`)]));
    this.otherKind = resolve("kind-other");
    probe.remove();
  }

  of(op) {
    return this.mode === "bound" ? this.bound(op.bound) : this.kind(op.kind);
  }

  /** Of a step without a launch: the ops graph and the scratchpad show kernels, not calls. */
  ofStep(step) {
    return this.mode === "bound" ? this.bound(step.bound) : this.kind(step.kind);
  }

  ofLaunch(launch) {
    return launch.kernel ? this.named.launch : this.bound(launch.isEager ? "eager" : launch.bound);
  }

  bound(name) {
    return this.bounds[name] || this.named.muted;
  }

  kind(name) {
    return this.kinds[name] || this.otherKind;
  }

  /** What the present colours stand for, of those that occur: [name, colour, meaning]. */
  legend(ops) {
    if (this.mode === "bound") {
      const found = new Set(ops.map((op) => op.bound));
      if (ops.some((op) => op.launch.isEager)) found.add("eager");
      return BOUNDS.filter((name) => found.has(name))
        .map((name) => [name, this.bound(name), BOUND_MEANINGS[name]]);
    }
    const found = new Set(ops.map((op) => op.kind));
    const known = KINDS.filter((name) => found.has(name)).map((name) => [name, this.kind(name), ""]);
    return [...found].every((name) => this.kinds[name])
      ? known : [...known, ["other", this.otherKind, ""]];
  }
}
