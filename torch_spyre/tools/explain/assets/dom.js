// Elements, lists that show only what is visible, and the note beside the pointer.

/**
 * An element: make("td", { class: "number" }, "12").
 *
 * What comes from a model is only ever set as text, never parsed as HTML.
 */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

/** A square of a colour, as in a legend. */
function swatch(colour) {
  return make("span", { class: "swatch", style: { background: colour }, "aria-hidden": "true" });
}

/** A row of buttons of which one is pressed: choices(["time", "steps"], "time", (name) => …). */
function choices(names, pressed, choose) {
  const buttons = names.map((name) =>
    make("button", { type: "button", "aria-pressed": String(name === pressed) }, name));
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      choose(button.textContent);
    });
  }
  return make("div", { class: "choices", role: "group" }, ...buttons);
}

/** A list of any length in a box that scrolls: only the rows in sight are in the document. */
class VirtualList {
  constructor(box, rowHeight, makeRow) {
    this.box = box;
    this.rowHeight = rowHeight;
    this.makeRow = makeRow;
    this.count = 0;
    this.space = make("div", { class: "virtual-space" });
    box.replaceChildren(this.space);
    box.addEventListener("scroll", () => this.#fill(false));
    new ResizeObserver(() => this.#fill(false)).observe(box);
  }

  /** Shows `count` rows anew. */
  show(count) {
    this.count = count;
    this.space.style.height = `${count * this.rowHeight}px`;
    this.#fill(true);
  }

  /** Scrolls as little as makes a row visible. */
  reveal(index) {
    const top = index * this.rowHeight;
    const { scrollTop, clientHeight } = this.box;
    if (top < scrollTop) this.box.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight) {
      this.box.scrollTop = top + this.rowHeight - clientHeight;
    }
    this.#fill(true);
  }

  #fill(isNew) {
    const margin = 4;
    const first = Math.max(0, Math.floor(this.box.scrollTop / this.rowHeight) - margin);
    const visible = Math.ceil(this.box.clientHeight / this.rowHeight) + 2 * margin;
    const last = Math.min(this.count, first + visible);
    if (!isNew && first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    const rows = [];
    for (let index = first; index < last; index++) {
      const row = this.makeRow(index);
      row.style.top = `${index * this.rowHeight}px`;
      row.style.height = `${this.rowHeight}px`;
      row.classList.add("virtual-row");
      rows.push(row);
    }
    this.space.replaceChildren(...rows);
  }
}

/** The note beside the pointer: a headline and lines of [name, value]. */
class Tooltip {
  constructor(element) {
    this.element = element;
  }

  show(event, title, lines) {
    const rows = lines.map(([name, value]) =>
      make("div", {}, make("span", { class: "muted" }, name), make("span", {}, value)));
    this.element.replaceChildren(make("strong", {}, title), ...rows);
    this.element.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    const below = event.clientY + 16;
    const top = below + height > innerHeight - 8 ? event.clientY - height - 12 : below;
    this.element.style.left = `${Math.max(8, left)}px`;
    this.element.style.top = `${Math.max(8, top)}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

/** Lines of [name, value] as a list of terms; those without a value are left out. */
function facts(lines) {
  const known = lines.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return make("dl", { class: "facts" }, ...known.map(([name, value, title = null]) =>
    make("div", {}, make("dt", {}, name), make("dd", { title }, value))));
}
