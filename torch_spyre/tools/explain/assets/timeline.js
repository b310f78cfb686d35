// The card over time: for every queue its layers, its launches, the cores at work, LX in use.

const GUTTER = 96;
const MAP_HEIGHT = 26;
const AXIS_HEIGHT = 22;
const TOP = MAP_HEIGHT + AXIS_HEIGHT;
const ROW = 17; // of a layer
const LAUNCH_ROW = 20;
const CORES_HEIGHT = 88;
const LX_HEIGHT = 34;
const GAP = 4;
const LANE_GAP = 16;

/**
 * Visits what of a sorted list is in sight: wide things one by one, those narrower than a pixel
 * all at once per pixel. So a frame draws no more than its width allows, however long the list.
 */
function inSight(sorted, axis, wide, narrow) {
  let [pixel, bucket] = [-1, []];
  const flush = () => {
    if (bucket.length) narrow(bucket, pixel);
    bucket = [];
  };
  for (let i = firstEndingAfter(sorted, axis.start); i < sorted.length; i++) {
    const item = sorted[i];
    if (item.start >= axis.end) break;
    const [left, right] = [axis.toPixel(item.start), axis.toPixel(item.end)];
    if (right - left >= 1) {
      flush();
      wide(item, Math.max(left, axis.left - 2), Math.min(right, axis.right + 2));
      continue;
    }
    if (Math.floor(left) !== pixel) flush();
    pixel = Math.floor(left);
    bucket.push(item);
  }
  flush();
}

/** Which of several things most of the time goes to. */
function longest(items) {
  return items.reduce((best, item) => (item.end - item.start > best.end - best.start ? item : best));
}

class Timeline {
  constructor(page) {
    this.page = page;
    this.model = page.model;
    this.axis = new Axis(this.model.duration, 20);
    this.scroll = 0;
    this.bands = this.#layOut();
    this.mostLx = this.model.launches.reduce((most, { kernel }) =>
      Math.max(most, kernel ? Math.max(...kernel.lxUse) : 0), 1);
    const canvas = byId("timeline-canvas");
    this.surface = new Surface(canvas, () => this.#draw());
    this.#fitWidth(canvas.clientWidth); // before the first frame: an address may name an op
    canvas.parentElement.style.height = `${Math.min(TOP + this.height + 10, 330)}px`;
    takeInHand(canvas, this);
    byId("zoom-in").addEventListener("click", () => this.zoom(1 / 2, this.#middle()));
    byId("zoom-out").addEventListener("click", () => this.zoom(2, this.#middle()));
    byId("zoom-fit").addEventListener("click", () => this.fit());
    byId("zoom-selection").addEventListener("click", () => this.#showSelection());
  }

  /** The rows from top to bottom, each with its place: { kind, top, height, lane, items }. */
  #layOut() {
    const bands = [];
    let top = 8;
    const add = (kind, lane, height, items, more = {}) => {
      bands.push({ kind, lane, top, height, items, ...more });
      top += height + (kind === "layer" ? 1 : GAP);
    };
    for (const lane of this.model.lanes) {
      lane.layers.forEach((row, depth) => add("layer", lane, ROW, row, { depth }));
      add("launch", lane, LAUNCH_ROW, lane.launches);
      if (lane.onCores.length) add("cores", lane, CORES_HEIGHT, lane.onCores);
      if (lane.steps.length) add("lx", lane, LX_HEIGHT, lane.steps);
      top += LANE_GAP;
    }
    this.height = top - LANE_GAP;
    return bands;
  }

  update() {
    this.surface.invalidate();
  }

  #fitWidth(width) {
    [this.axis.left, this.axis.right] = [GUTTER, Math.max(GUTTER + 1, width - 12)];
  }

  #middle() {
    return (this.axis.left + this.axis.right) / 2;
  }

  /** Moves so that an op can be seen, if it can't. */
  reveal(op) {
    if (!op || !op.launch) return;
    const { axis } = this;
    const isInSight = op.start >= axis.start && op.end <= axis.end;
    if (isInSight && op.duration * axis.scale >= 6) return;
    const { launch } = op;
    const share = op.duration / launch.duration;
    if (share * (axis.right - axis.left) >= 12) return this.#showSpan(launch);
    const span = Math.max(op.duration * 24, axis.least);
    axis.show((op.start + op.end - span) / 2, (op.start + op.end + span) / 2);
    this.surface.invalidate();
  }

  #showSelection() {
    const { op, launch } = this.page.selection;
    const shown = op && op.launch ? op : launch;
    if (shown) this.#showSpan(shown);
  }

  #showSpan({ start, end }) {
    const margin = (end - start) * 0.04;
    this.axis.show(start - margin, end + margin);
    this.surface.invalidate();
  }

  // ---- Drawing --------------------------------------------------------------------------------

  #draw() {
    const { axis, surface } = this;
    this.#fitWidth(surface.width);
    this.#drawMap();
    this.#drawAxis();
    surface.clipped(0, TOP, surface.width, surface.height - TOP, () => {
      for (const band of this.bands) {
        const y = TOP + band.top - this.scroll;
        if (y > surface.height || y + band.height < TOP) continue;
        this.#drawName(band, y);
        surface.clipped(axis.left, y - 3, axis.right - axis.left, band.height + 6, () =>
          this.#drawBand(band, y));
      }
    });
  }

  #drawBand(band, y) {
    switch (band.kind) {
      case "layer": return this.#drawLayers(band, y);
      case "launch": return this.#drawLaunches(band, y);
      case "cores": return this.#drawCores(band, y);
      default: return this.#drawLx(band, y);
    }
  }

  /** The whole call in one line, and which part of it is shown. */
  #drawMap() {
    const { surface, axis, page } = this;
    const { named } = page.colours;
    const whole = new Axis(this.model.duration, 1);
    [whole.left, whole.right] = [axis.left, axis.right];
    const [top, height] = [5, MAP_HEIGHT - 10];
    surface.label("whole call", 10, MAP_HEIGHT / 2, named.muted);
    surface.box(whole.left, top, whole.right - whole.left, height, named.sunken);
    for (const lane of this.model.lanes) {
      const mark = (op, left, right) =>
        surface.box(left, top, Math.max(1, right - left), height, page.colours.of(op));
      inSight(lane.ops, whole, mark, (ops, pixel) => mark(longest(ops), pixel, pixel + 1));
    }
    const [left, right] = [whole.toPixel(axis.start), whole.toPixel(axis.end)];
    surface.context.globalAlpha = 0.72;
    surface.box(whole.left, top, left - whole.left, height, named.surface);
    surface.box(right, top, whole.right - right, height, named.surface);
    surface.context.globalAlpha = 1;
    if (!axis.isWhole) surface.frame(left, top, Math.max(3, right - left), height, named.text, 1.5);
  }

  #drawAxis() {
    const { surface, axis, page } = this;
    const { named } = page.colours;
    const { step, values } = axis.ticks();
    const y = MAP_HEIGHT + AXIS_HEIGHT / 2;
    surface.label("modelled time", 10, y, named.muted);
    surface.context.textAlign = "center";
    for (const value of values) {
      const x = axis.toPixel(value);
      surface.line(x, TOP - 4, x, surface.height, named.faint);
      if (x > axis.left + 14 && x < axis.right - 20) {
        surface.label(formatTick(value, step, axis.end), x, y, named.muted);
      }
    }
    surface.context.textAlign = "left";
  }

  #drawName(band, y) {
    const { surface, page } = this;
    const { named } = page.colours;
    const middle = y + Math.min(band.height, 20) / 2;
    const names = {
      layer: band.depth === 0 ? "layers" : "",
      launch: this.model.lanes.length > 1 ? `card ${band.lane.device} queue ${band.lane.queue}` : "launches",
      cores: "cores",
      lx: "LX in use",
    };
    surface.label(names[band.kind], 10, middle, named.muted, GUTTER - 12);
    const most = { cores: String(this.model.card.cores), lx: formatBytes(this.mostLx) }[band.kind];
    if (!most) return;
    surface.context.textAlign = "right";
    if (band.kind === "cores") surface.label(most, GUTTER - 6, y + 6, named.muted);
    surface.label(band.kind === "cores" ? "0" : `≤ ${most}`, GUTTER - 6, y + band.height - 6, named.muted);
    surface.context.textAlign = "left";
  }

  #drawLayers(band, y) {
    const { surface, axis, page } = this;
    const { named } = page.colours;
    const tint = (place) => named[place % 2 ? "layer-b" : "layer-a"];
    let place = 0;
    inSight(band.items, axis, (span, left, right) => {
      surface.box(left, y, Math.max(1, right - left - 1), band.height, tint(place++));
      const [middle, room] = [y + band.height / 2 + 0.5, right - left - 8];
      const number = /\.(\d+)$/.exec(span.name)?.[1];
      // Forty layers side by side have no room for more than their numbers.
      if (number && room < 46 && room > 6 * number.length) surface.label(number, left + 4, middle, named.text);
      else surface.label(span.name, left + 4, middle, named.text, room);
    }, (spans, pixel) => surface.box(pixel, y, 1, band.height, tint(place++)));
  }

  #drawLaunches(band, y) {
    const { surface, axis, page } = this;
    const { named } = page.colours;
    const colour = (launch) => page.colours.ofLaunch(launch);
    inSight(band.items, axis, (launch, left, right) => {
      surface.box(left, y, Math.max(1, right - left - 1), band.height, colour(launch));
      surface.label(launch.name, left + 5, y + band.height / 2 + 0.5, named["on-colour"], right - left - 10);
    }, (launches, pixel) => surface.box(pixel, y, 1, band.height, colour(longest(launches))));
    const { launch, op } = page.selection;
    if (launch && !(op && op.step) && band.items.includes(launch)) {
      this.#frame(launch, y, band.height);
    }
  }

  #drawCores(band, y) {
    const { surface, axis, page } = this;
    const { named } = page.colours;
    const bottom = y + band.height;
    surface.box(axis.left, y, axis.right - axis.left, band.height, named.sunken);
    const column = (op, left, width) => {
      const height = Math.max(2, band.height * Math.min(1, op.cores / this.model.card.cores));
      surface.context.globalAlpha = page.isFaded(op) ? 0.15 : 1;
      surface.box(left, bottom - height, width, height, page.colours.of(op));
    };
    inSight(band.items, axis, (op, left, right) => {
      const gap = right - left > 6 ? 1 : 0;
      column(op, left, right - left - gap);
      const height = band.height * op.cores / this.model.card.cores;
      if (height > 14) {
        const width = right - left - 10;
        surface.label(op.name, left + 5, bottom - height + 10, named["on-colour"], width);
        if (height > 30) surface.label(formatTime(op.duration), left + 5, bottom - height + 24, named["on-colour"], width);
      }
    }, (ops, pixel) => column(longest(ops.filter((op) => !page.isFaded(op)).concat(ops.slice(0, 1))), pixel, 1));
    surface.context.globalAlpha = 1;
    const { op } = page.selection;
    if (op && op.cores && op.launch && band.items[0] && op.launch.device === band.lane.device
      && op.launch.queue === band.lane.queue) this.#frame(op, y, band.height);
  }

  #drawLx(band, y) {
    const { surface, axis, page } = this;
    const colour = page.colours.bound("LX");
    const bottom = y + band.height;
    surface.box(axis.left, y, axis.right - axis.left, band.height, page.colours.named.sunken);
    const column = (op, left, width) => {
      const height = band.height * op.kernel.lxUse[op.place] / this.mostLx;
      if (height > 0) surface.box(left, bottom - height, width, height, colour);
    };
    inSight(band.items, axis, (op, left, right) => column(op, left, right - left),
      (ops, pixel) => column(longest(ops), pixel, 1));
  }

  #frame({ start, end }, y, height) {
    const [left, right] = [this.axis.toPixel(start), this.axis.toPixel(end)];
    const width = Math.max(3, right - left);
    this.surface.frame(left - 0.5, y - 1, width, height + 2, this.page.colours.named.text, 2);
  }

  // ---- Hands ----------------------------------------------------------------------------------

  zoom(factor, x) {
    this.axis.zoom(factor, x);
    this.surface.invalidate();
  }

  pan(dx, dy) {
    this.axis.pan(dx);
    const most = Math.max(0, TOP + this.height + 10 - this.surface.height);
    this.scroll = Math.max(0, Math.min(most, this.scroll + dy));
    this.surface.invalidate();
  }

  fit() {
    this.axis.fit();
    this.surface.invalidate();
  }

  /** What lies at a point: [band, item], or null. */
  #at(x, y) {
    if (x < this.axis.left) return null;
    const inside = y - TOP + this.scroll;
    const band = this.bands.find(({ top, height }) => inside >= top && inside < top + height);
    if (!band || y < TOP) return null;
    const slack = 2 / this.axis.scale; // the narrowest ones can be hit, too
    const time = this.axis.toValue(x);
    const near = firstEndingAfter(band.items, time);
    const item = [near, near - 1].map((place) => band.items[place])
      .find((found) => found && found.start <= time + slack && found.end >= time - slack);
    return item ? [band, item] : null;
  }

  click(x, y) {
    if (y < MAP_HEIGHT) return this.#centre(x);
    const found = this.#at(x, y);
    if (!found) return;
    const [band, item] = found;
    if (band.kind === "launch") this.page.selectLaunch(item);
    else this.page.selectOp(band.kind === "layer" ? item.op : item);
  }

  #centre(x) {
    const { axis } = this;
    const at = (x - axis.left) / (axis.right - axis.left) * axis.length;
    const half = (axis.end - axis.start) / 2;
    axis.show(at - half, at + half);
    this.surface.invalidate();
  }

  open(x, y) {
    const found = this.#at(x, y);
    if (!found) return;
    const [band, item] = found;
    const isStep = band.kind === "cores" || band.kind === "lx";
    const { axis } = this;
    const { launch } = item;
    const isShown = isStep && launch.start >= axis.start && launch.end <= axis.end
      && (launch.end - launch.start) * axis.scale > 0.6 * (axis.right - axis.left);
    this.#showSpan(isStep && !isShown ? launch : item);
  }

  hover(event, x, y) {
    const found = event && this.#at(x, y);
    if (!found) return this.page.tooltip.hide();
    const [band, item] = found;
    if (band.kind === "layer") {
      this.page.tooltip.show(event, item.layer.split(".").slice(0, -1).join(".") || item.name, [
        ["module", item.name], ["modelled", formatTime(item.end - item.start)]]);
    } else if (band.kind === "launch") {
      this.page.tooltip.show(event, item.name, [
        ["kind", item.kind], ["modelled", formatTime(item.duration)], ...bytesOf(item)]);
    } else this.page.describe(event, item);
  }
}
