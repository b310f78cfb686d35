// Where the time goes: operations grouped by layer, by operation, …, as a table that sorts and opens.

const TABLE_ROW = 27;

const GROUPINGS = {
  layer: { name: "layer", of: (op) => blockOf(op.layer) },
  module: { name: "module", of: (op) => op.layer },
  role: { name: "module, all layers", of: (op) => op.layer.replace(/\.\d+(?=\.|$)/g, ".*") },
  op: { name: "operation", of: (op) => op.name },
  aten: { name: "PyTorch operation", of: (op) => op.source.aten },
  line: { name: "source line", of: (op) => formatPlace(op.source) },
  bound: { name: "what bounds it", of: (op) => op.bound },
  kernel: { name: "kernel", of: (op) => (op.kernel ? op.kernel.name : "") },
};

/** "model.layers.3.mlp.up_proj" → "model.layers.3": up to the first number. */
function blockOf(layer) {
  return layer.match(/^.*?\.\d+(?=\.|$)/)?.[0] ?? layer;
}

const COLUMNS = [
  { key: "name", title: "", of: (row) => row.name, isText: true },
  { key: "time", title: "modelled", of: (row) => row.time, format: formatTime },
  { key: "share", title: "share", of: (row) => row.time, isBar: true },
  { key: "count", title: "steps", of: (row) => row.count, format: formatCount },
  { key: "macs", title: "multiply-adds", of: (row) => row.macs, format: (n) => (n ? formatLarge(n) : "") },
  { key: "pt", title: "of PT", of: (row) => row.pt, format: (share) => (share ? formatShare(share) : "") },
  { key: "read", title: "read", of: (row) => row.read, format: formatBytes },
  { key: "written", title: "written", of: (row) => row.written, format: formatBytes },
];

class TimeTable {
  constructor(page) {
    this.page = page;
    this.model = page.model;
    this.sort = { key: "time", isDown: true };
    this.open = new Set();
    this.grouping = this.model.ops.some((op) => op.layer) ? "layer" : "op";
    this.#makeHeader();
    this.list = new VirtualList(byId("time-rows"), TABLE_ROW, (index) => this.#makeRow(index));
    this.#regroup();
  }

  update() {
    this.list.show(this.rows.length);
  }

  #makeHeader() {
    const select = byId("grouping");
    for (const [key, { name }] of Object.entries(GROUPINGS)) select.append(make("option", { value: key }, name));
    select.value = this.grouping;
    select.addEventListener("change", () => {
      this.grouping = select.value;
      this.open.clear();
      this.#regroup();
    });
    this.headers = COLUMNS.map((column) => {
      const button = make("button", { type: "button", onclick: () => this.#sortBy(column) });
      return make("div", { role: "columnheader", class: column.isText ? "" : "number", "data-key": column.key }, button);
    });
    byId("time-head").replaceChildren(...this.headers);
  }

  #sortBy({ key, isText }) {
    const isDown = this.sort.key === key ? !this.sort.isDown : !isText;
    this.sort = { key, isDown };
    this.#arrange();
  }

  #regroup() {
    const groups = new Map();
    const { of } = GROUPINGS[this.grouping];
    for (const op of this.model.launched) {
      const name = of(op) || fallbackName(op);
      if (!groups.has(name)) groups.set(name, { name, ops: [], time: 0, count: 0, macs: 0, read: 0, written: 0, bounds: {} });
      addTo(groups.get(name), op);
    }
    this.groups = [...groups.values()];
    for (const group of this.groups) group.pt = group.macs / group.time / this.model.card.macs_per_ns;
    this.total = this.groups.reduce((sum, group) => sum + group.time, 0);
    this.#arrange();
  }

  /** Sorts the groups and what is open of them. */
  #arrange() {
    const { key, isDown } = this.sort;
    const column = COLUMNS.find((found) => found.key === key);
    const compare = column.isText
      ? (a, b) => a.name.localeCompare(b.name, "en", { numeric: true })
      : (a, b) => (column.of(a) || 0) - (column.of(b) || 0);
    this.groups.sort((a, b) => (isDown ? compare(b, a) : compare(a, b)));
    this.rows = [];
    for (const group of this.groups) {
      this.rows.push(group);
      if (!this.open.has(group.name)) continue;
      const ops = [...group.ops].sort((a, b) => b.duration - a.duration || a.index - b.index);
      this.rows.push(...ops.map((op) => ({ op })));
    }
    this.headers.forEach((header, i) => {
      const isSorted = COLUMNS[i].key === key;
      const name = i === 0 ? GROUPINGS[this.grouping].name : COLUMNS[i].title;
      header.setAttribute("aria-sort", !isSorted ? "none" : isDown ? "descending" : "ascending");
      header.firstChild.textContent = `${name}${!isSorted ? "" : isDown ? " ↓" : " ↑"}`;
    });
    this.list.show(this.rows.length);
  }

  #makeRow(index) {
    const row = this.rows[index];
    if (row.op) return this.#makeOpRow(row.op);
    const isOpen = this.open.has(row.name);
    const cells = COLUMNS.map((column) => {
      if (column.isText) {
        return make("div", { role: "cell", class: "name", title: row.name },
          make("span", { class: "opener", "aria-hidden": "true" }, isOpen ? "▾" : "▸"), row.name);
      }
      if (column.isBar) return make("div", { role: "cell", class: "share" }, this.#bar(row), formatShare(row.time / this.total));
      return make("div", { role: "cell", class: "number" }, column.format(column.of(row)));
    });
    return this.#row(cells, () => {
      if (!this.open.delete(row.name)) this.open.add(row.name);
      this.#arrange();
    }, { "aria-expanded": String(isOpen), class: "time-row group" });
  }

  #makeOpRow(op) {
    const pt = op.macs / op.duration / this.model.card.macs_per_ns;
    const own = { time: op.duration, count: "", macs: op.macs, pt, read: op.read, written: op.written };
    const where = [op.layer, formatPlace(op.source)].filter((text) => text).join(" · ");
    const cells = COLUMNS.map((column) => {
      if (column.isText) {
        return make("div", { role: "cell", class: "name child", title: where },
          swatch(this.page.colours.of(op)), op.name, make("span", { class: "muted" }, where));
      }
      if (column.isBar) return make("div", { role: "cell", class: "share" }, make("span"), formatShare(op.duration / this.total));
      return make("div", { role: "cell", class: "number" }, own[column.key] === "" ? "" : column.format(own[column.key]));
    });
    const isSelected = this.page.selection.op === op;
    return this.#row(cells, () => this.page.selectOp(op, { reveal: true }),
      { class: `time-row${isSelected ? " selected" : ""}` });
  }

  #row(cells, act, attributes) {
    const isKey = (event) => event.key === "Enter" || event.key === " ";
    return make("div", {
      role: "row", tabindex: "0", ...attributes, onclick: act,
      onkeydown: (event) => {
        if (!isKey(event)) return;
        event.preventDefault();
        act();
      },
    }, ...cells);
  }

  /** A bar as long as the share of the time, in the colours of what the time is spent on. */
  #bar(row) {
    const widest = this.groups.reduce((most, group) => Math.max(most, group.time), 0);
    const parts = BOUNDS.filter((name) => row.bounds[name]).map((name) => make("i", {
      style: { width: `${100 * row.bounds[name] / widest}%`, background: `var(--bound-${name})` },
      title: `${name} ${formatTime(row.bounds[name])}`,
    }));
    return make("span", { class: "bar" }, ...parts);
  }
}

/** The group of what has no layer, no line, …: copies by themselves, the rest by what it is. */
function fallbackName(op) {
  if (op.step) return op.isCopy ? "(copies that the compiler put in)" : "(of the graph)";
  return op.launch.isOnCores ? "(eager)" : `(${op.launch.kind})`;
}

function addTo(group, op) {
  group.ops.push(op);
  group.time += op.duration;
  group.count++;
  group.macs += op.macs;
  group.read += op.read;
  group.written += op.written;
  group.bounds[op.bound] = (group.bounds[op.bound] || 0) + op.duration;
}
