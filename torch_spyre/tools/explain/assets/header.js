// The head of the page: what was explained, and its most important figures.

function showHeader(model) {
  const { explanation } = model;
  byId("title").textContent = explanation.title;
  byId("inputs").replaceChildren(...explanation.inputs.map((input) => make("code", {}, input)));
  const versions = Object.entries(explanation.environment).map(([name, value]) => `${name} ${value}`);
  byId("figures").replaceChildren(
    ...figures(model).map(([name, value, note, isWarning = false]) =>
      make("div", { class: isWarning ? "figure warning" : "figure" },
        make("dt", {}, name), make("dd", {}, value), make("dd", { class: "note", title: note }, note))),
    make("div", { class: "figure versions", title: versions.join("\n") },
      make("dt", {}, "Versions and settings"), make("dd", { class: "muted" }, versions.join(", "))));
}

/** [name, value, note, whether it deserves attention] */
function figures(model) {
  const { explanation, card, launches, launched, kernels, duration } = model;
  const sum = (of) => launched.reduce((total, op) => total + of(op), 0);
  const steps = launched.filter((op) => op.step);
  const macs = sum((op) => op.macs);
  const [read, written] = ["read", "written"].map((what) =>
    launched.reduce((total, op) => total + (op.launch.isOnCores ? op[what] : 0), 0));
  const peak = kernels.reduce((most, kernel) => Math.max(most, kernel.launches.length ? kernel.lx_bytes : 0), 0);
  const capacity = kernels.reduce((most, kernel) => Math.max(most, kernel.lx_capacity), 0);
  const fallbacks = Object.values(explanation.fallbacks).reduce((total, count) => total + count, 0);
  const { breaks, graphs } = explanation;
  return [
    ["Modelled time", formatTime(explanation.duration), `card busy ${formatShare(model.busy / duration)}`],
    ["Launches", formatCount(launches.length), `${plural(kernels.length, "kernel")}, ${plural(steps.length, "step")}`],
    ["Multiply-adds", formatLarge(macs), `${formatShare(macs / duration / card.macs_per_ns)} of PT's rate`],
    ["LPDDR5", formatBytes(read + written), `${formatShare((read + written) / duration / card.bytes_per_ns)} of its rate`],
    ["Scratchpad", formatBytes(peak), capacity ? `of ${formatBytes(capacity)} per core` : "no kernels"],
    ["Graphs", formatCount(graphs.length), plural(breaks.length, "graph break"), breaks.length > 0],
    ["On the CPU", formatCount(fallbacks), onTheCpu(explanation), fallbacks > 0],
  ];
}

function onTheCpu({ fallbacks, fallbacks_elsewhere: elsewhere }) {
  const [here, others] = [fallbacks, elsewhere].map((found) => Object.keys(found).join(", "));
  return here || (others ? `elsewhere in the script: ${others}` : "nothing left out");
}
