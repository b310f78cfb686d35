// The graph of a kernel: its operations, and on the lines between them tensors with their layouts.

const TAG_WIDTH = 156;
const TAG_HEIGHT = 32;
const READABLE = 0.5; // below this scale boxes have no text

class Flow {
  constructor(page) {
    this.page = page;
    this.kernel = null;
    this.shown = undefined; // the place of the step that was brought into sight, null: the first one
    this.view = { scale: 0.9, x: 0, y: 0 }; // what of the graph is at the canvas's corner
    this.surface = new Surface(byId("flow-canvas"), () => this.#draw());
    takeInHand(this.surface.canvas, this);
    byId("flow-fit").addEventListener("click", () => this.fit());
  }

  update() {
    if (this.surface.canvas.checkVisibility() && this.kernel !== this.page.kernel) {
      this.kernel = this.page.kernel;
      this.graph = this.kernel ? layOutFlow(this.kernel) : null;
      this.shown = undefined;
    }
    this.surface.invalidate();
  }

  /** Brings the selected step, or the first one, into the middle. */
  #follow() {
    const { op } = this.page.selection;
    const place = op && op.step && op.kernel === this.kernel ? op.place : null;
    if (this.shown === place) return;
    const isFirst = this.shown === undefined;
    this.shown = place;
    const node = this.graph.nodes[place ?? 0];
    if (!node) return;
    const { view, surface } = this;
    if (isFirst || view.scale < READABLE) view.scale = 0.9;
    const x = (node.x - view.x) * view.scale;
    const y = (node.y - view.y) * view.scale;
    const isInSight = x > 0 && y > 0 && x < surface.width - NODE_WIDTH && y < surface.height - NODE_HEIGHT;
    if (isInSight && !isFirst) return;
    const share = place === null ? 0.03 : 0.4;
    view.x = node.x - share * surface.width / view.scale;
    view.y = node.y + node.height / 2 - surface.height / 2 / view.scale;
  }

  // ---- Drawing --------------------------------------------------------------------------------

  #draw() {
    const { surface, view, graph } = this;
    if (!graph) return;
    this.#follow();
    const { context } = surface;
    context.save();
    context.scale(view.scale, view.scale);
    context.translate(-view.x, -view.y);
    const isReadable = view.scale >= READABLE;
    for (const edge of graph.edges) this.#drawEdge(edge);
    for (const node of this.#visible()) {
      if (isReadable) this.#drawTag(node);
      this.#drawNode(node, isReadable);
    }
    context.restore();
  }

  *#visible() {
    const { view, surface, graph } = this;
    const first = Math.max(0, Math.floor(view.x / RANK_WIDTH) - 1);
    const last = Math.ceil((view.x + surface.width / view.scale) / RANK_WIDTH);
    const [top, bottom] = [view.y, view.y + surface.height / view.scale];
    for (const rank of graph.ranks.slice(first, last + 1)) {
      for (const node of rank) {
        if (node.step && node.y < bottom && node.y + node.height > top) yield node;
      }
    }
  }

  #colourOf(buffer) {
    const { colours } = this.page;
    const { component } = this.kernel.buffers[buffer];
    return colours.bound(component === "lx" ? "LX" : "LPDDR5");
  }

  #drawEdge({ buffer, from, to, through }) {
    const { view, surface, page } = this;
    const right = view.x + surface.width / view.scale;
    if (to.x < view.x || from.x > right) return;
    surface.marks++;
    const { context } = surface;
    const points = [
      [from.x + NODE_WIDTH, from.y + NODE_HEIGHT / 2],
      [from.x + NODE_WIDTH + 8 + TAG_WIDTH, from.y + NODE_HEIGHT / 2],
      ...through.flatMap(({ rank, y, height }) => [
        [rank * RANK_WIDTH, y + height / 2], [rank * RANK_WIDTH + NODE_WIDTH + 8 + TAG_WIDTH, y + height / 2]]),
      [to.x, to.y + NODE_HEIGHT / 2],
    ];
    context.beginPath();
    context.moveTo(...points[0]);
    for (let i = 1; i < points.length; i++) {
      const [[x0, y0], [x1, y1]] = [points[i - 1], points[i]];
      const bend = (x1 - x0) / 2;
      context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    }
    const isSelected = [from, to].some((node) => this.#isSelected(node));
    context.globalAlpha = isSelected ? 1 : 0.55;
    context.strokeStyle = isSelected ? page.colours.named.accent : this.#colourOf(buffer);
    context.lineWidth = (isSelected ? 2.2 : 1.5) / Math.min(1, view.scale * 1.5);
    context.stroke();
    context.globalAlpha = 1;
  }

  #isSelected(node) {
    const { op } = this.page.selection;
    return op && op.step && op.kernel === this.kernel && op.place === node.place;
  }

  /** What a step writes: its name and place, its layout. */
  #drawTag(node) {
    const { surface, page, kernel } = this;
    const buffer = kernel.buffers[node.step.writes];
    if (!buffer) return;
    const { named } = page.colours;
    const [x, y] = [node.x + NODE_WIDTH + 8, node.y + NODE_HEIGHT / 2 - TAG_HEIGHT / 2];
    surface.line(node.x + NODE_WIDTH, y + TAG_HEIGHT / 2, x, y + TAG_HEIGHT / 2, this.#colourOf(node.step.writes));
    surface.box(x, y, TAG_WIDTH, TAG_HEIGHT, named.surface);
    surface.box(x, y, 3, TAG_HEIGHT, this.#colourOf(node.step.writes));
    surface.frame(x, y, TAG_WIDTH, TAG_HEIGHT, named.line, 1);
    surface.label(`${buffer.name} · ${formatHome(buffer)}`, x + 8, y + 9.5, named.text, TAG_WIDTH - 12);
    surface.context.font = MONO;
    surface.label(`[${buffer.device_size.join(", ")}]`, x + 8, y + 23, named.muted, TAG_WIDTH - 12);
    surface.context.font = FONT;
  }

  #drawNode(node, isReadable) {
    const { surface, page, kernel } = this;
    const { named } = page.colours;
    const { step, x, y, height } = node;
    const op = page.opOf(kernel, node.place);
    surface.context.globalAlpha = op && page.isFaded(op) ? 0.3 : 1;
    surface.box(x, y, NODE_WIDTH, height, isReadable ? named.surface : page.colours.ofStep(step));
    if (isReadable) {
      surface.box(x, y, NODE_WIDTH, 22, page.colours.ofStep(step));
      surface.label(step.op, x + 8, y + 11.5, named["on-colour"], NODE_WIDTH - 74);
      surface.context.textAlign = "right";
      surface.label(formatTime(step.duration), x + NODE_WIDTH - 8, y + 11.5, named["on-colour"]);
      surface.context.textAlign = "left";
      const place = shortLayer(op ? op.layer : step.source.layer);
      const note = step.why ? "copy put in by the compiler" : place || formatPlace(step.source) || step.kind;
      surface.label(note, x + 8, y + 34, named.muted, NODE_WIDTH - 16);
      node.arguments.forEach((index, row) => {
        const buffer = kernel.buffers[index];
        const middle = y + NODE_HEIGHT + PORT_HEIGHT * row + 5;
        surface.box(x - 6, middle - 2.5, 5, 5, named.muted);
        surface.label(`${buffer.name} [${buffer.device_size.join(", ")}]`, x + 8, middle, named.muted, NODE_WIDTH - 16);
      });
    }
    const isSelected = this.#isSelected(node);
    surface.frame(x, y, NODE_WIDTH, height, isSelected ? named.text : named.line, isSelected ? 2.5 : 1);
    surface.context.globalAlpha = 1;
  }

  // ---- Hands ----------------------------------------------------------------------------------

  zoom(factor, x, y) {
    const { view } = this;
    const scale = Math.max(0.02, Math.min(2, view.scale / factor));
    view.x += x / view.scale - x / scale;
    view.y += y / view.scale - y / scale;
    view.scale = scale;
    this.surface.invalidate();
  }

  pan(dx, dy) {
    this.view.x += dx / this.view.scale;
    this.view.y += dy / this.view.scale;
    this.surface.invalidate();
  }

  fit() {
    if (!this.graph || !this.graph.nodes.length) return;
    const { nodes } = this.graph;
    const reach = (of) => nodes.reduce(([low, high], node) =>
      [Math.min(low, of(node)[0]), Math.max(high, of(node)[1])], [Infinity, -Infinity]);
    const [left, right] = reach((node) => [node.x, node.x + RANK_WIDTH]);
    const [top, bottom] = reach((node) => [node.y, node.y + node.height]);
    const { surface } = this;
    const scale = Math.min(1, surface.width / (right - left + 40), surface.height / (bottom - top + 40));
    this.view = { scale, x: (left + right - surface.width / scale) / 2, y: (top + bottom - surface.height / scale) / 2 };
    surface.invalidate();
  }

  #at(x, y) {
    const { view } = this;
    const [graphX, graphY] = [view.x + x / view.scale, view.y + y / view.scale];
    for (const node of this.#visible()) {
      const isInside = graphX >= node.x && graphX < node.x + NODE_WIDTH + 8 + TAG_WIDTH
        && graphY >= node.y && graphY < node.y + node.height;
      if (isInside) return node;
    }
    return null;
  }

  click(x, y) {
    const node = this.graph && this.#at(x, y);
    if (node) this.page.selectStep(this.kernel, node.place);
  }

  hover(event, x, y) {
    const node = event && this.graph && this.#at(x, y);
    if (!node) return this.page.tooltip.hide();
    this.page.describe(event, this.page.opOf(this.kernel, node.place));
  }
}
