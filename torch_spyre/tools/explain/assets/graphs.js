// What Dynamo captured: graphs and why there are several, breaks, the CPU's part, the settings.

class Graphs {
  constructor(page) {
    const { graphs, breaks, fallbacks, environment } = page.model.explanation;
    const elsewhere = page.model.explanation.fallbacks_elsewhere;
    this.page = page;
    byId("graphs").replaceChildren(
      make("h3", {}, plural(breaks.length, "graph break")),
      breaks.length ? make("ol", { class: "breaks" }, ...breaks.map((found) => this.#break(found)))
        : make("p", { class: "muted" }, "Dynamo captured everything without a break."),
      make("h3", {}, "On the CPU"),
      Object.keys(fallbacks).length ? countTable(fallbacks, "operation", "calls")
        : make("p", { class: "muted" }, "Nothing of this call ran on the CPU."),
      ...(Object.keys(elsewhere).length ? [make("h3", {}, "On the CPU elsewhere in the script"),
        countTable(elsewhere, "operation", "calls")] : []),
      make("h3", {}, plural(graphs.length, "graph")),
      ...graphs.map((graph, index) => this.#graph(graph, index)),
      make("h3", {}, "Versions and settings"),
      facts(Object.entries(environment)));
  }

  update() {}

  #break({ reason, source }) {
    return make("li", {}, make("strong", {}, reason), sourceLine(source));
  }

  #graph(graph, index) {
    const { kernels } = this.page.model;
    const calls = graph.calls.map((call, place) => {
      const name = call.kernel === null ? call.what : kernels[call.kernel].name;
      return { name, call, place };
    });
    const body = make("div", { class: "graph-body" });
    const panel = make("details", { class: "graph" },
      make("summary", {}, make("strong", {}, graph.name), " ",
        make("span", { class: "muted" }, `${graph.why} · ${plural(graph.calls.length, "call")}`)), body);
    // A graph of a large model is a long text: it is put in when somebody looks.
    panel.addEventListener("toggle", () => {
      if (panel.open && !body.childElementCount) body.append(...this.#graphBody(graph, index, calls));
    });
    return panel;
  }

  #graphBody(graph, index, calls) {
    const list = make("div", { class: "call-list" });
    const columns = make("div", { class: "columns" },
      make("div", {}, make("h4", {}, "As the model calls it"), countTable(graph.captured, "operation", "times")),
      make("div", {}, make("h4", {}, "As it is lowered"), countTable(graph.decomposed, "operation", "times")),
      make("div", {}, make("h4", {}, "What is launched"), list));
    const rows = new VirtualList(list, 24, (row) => this.#callRow(index, calls[row]));
    requestAnimationFrame(() => rows.show(calls.length));
    return [
      sourceLine(graph.source), columns,
      make("h4", {}, "FX graph"), codeBlock(graph.fx, "python"),
      make("h4", {}, "Loops before the passes"), codeBlock(graph.loops, "python"),
    ];
  }

  #callRow(graph, { name, call, place }) {
    const op = this.page.model.ops.find((found) =>
      found.call && found.call.graph === graph && found.call.place === place);
    const layers = call.layers.filter((layer) => layer);
    const common = layers.length ? layers.reduce(commonPrefix) : "";
    return make("button", {
      type: "button", class: "call-row", disabled: !op,
      onclick: () => (op.launch ? this.page.selectLaunch(op.launch, { reveal: true }) : this.page.selectOp(op)),
    }, make("code", {}, name), make("span", { class: "muted" }, common));
  }
}

function countTable(counts, what, howOften) {
  const sorted = Object.entries(counts).sort(([a, n], [b, m]) => m - n || a.localeCompare(b, "en"));
  const box = make("div", { class: "count-table" });
  const shown = sorted.slice(0, 200);
  box.append(make("table", {},
    make("thead", {}, make("tr", {}, make("th", {}, what), make("th", { class: "number" }, howOften))),
    make("tbody", {}, ...shown.map(([name, count]) =>
      make("tr", {}, make("td", {}, make("code", {}, name)), make("td", { class: "number" }, formatCount(count)))))));
  if (shown.length < sorted.length) box.append(make("p", { class: "muted" }, `and ${sorted.length - shown.length} more`));
  return box;
}
