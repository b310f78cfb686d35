// How close steps come to the card's limits: a roofline for those that multiply, the rate of
// LPDDR5 for the others. A circle is a step of a kernel, all its launches together; its area is
// its share of the time.

class Roofline {
  constructor(page) {
    this.page = page;
    this.points = gatherPoints(page.model);
    this.surface = new Surface(byId("roofline-canvas"), () => this.#draw());
    takeInHand(this.surface.canvas, this);
  }

  update() {
    this.surface.invalidate();
  }

  #draw() {
    const { surface } = this;
    const split = this.points.some((point) => point.macs) ? Math.round(surface.width * 0.6) : 0;
    this.hits = [];
    if (split) this.#drawRoofline(0, split);
    this.#drawRates(split, surface.width);
  }

  /** Multiply-adds per ns over multiply-adds per byte, both in powers of ten. */
  #drawRoofline(left, right) {
    const { card } = this.page.model;
    const points = this.points.filter((point) => point.macs && point.time);
    const ridge = card.macs_per_ns / card.bytes_per_ns;
    const finite = points.filter((point) => point.bytes).map((point) => point.macs / point.bytes);
    const lowest = Math.min(ridge / 30, ...finite);
    const highest = Math.max(ridge * 30, ...finite);
    const rates = points.map((point) => point.macs / point.time);
    const plot = new Plot(this.surface, this.page.colours.named, { left, right, title: "Steps that multiply" });
    plot.x = logScale(lowest / 2, highest * 4, plot.left, plot.right);
    plot.y = logScale(Math.min(card.macs_per_ns / 1000, ...rates) / 2, card.macs_per_ns * 2, plot.bottom, plot.top);
    plot.drawAxes("multiply-adds per byte of LPDDR5", "multiply-adds per ns, modelled");
    const corner = [plot.x(ridge), plot.y(card.macs_per_ns)];
    plot.clip(() => {
      plot.roof([[plot.x(lowest / 2), plot.y(lowest / 2 * card.bytes_per_ns)], corner,
        [plot.right, corner[1]]]);
    });
    plot.note(`PT, all cores: ${formatCount(card.macs_per_ns)} per ns`, plot.right - 8, corner[1] - 9, "right");
    plot.note(`LPDDR5: ${formatCount(card.bytes_per_ns)} bytes per ns`, plot.left + 8, plot.top + 30, "left");
    const endless = plot.x(highest * 2.6); // steps with no LPDDR5 traffic at all
    this.#drawPoints(plot, points, (point) => [
      point.bytes ? plot.x(point.macs / point.bytes) : endless, plot.y(point.macs / point.time)]);
    if (points.some((point) => !point.bytes)) plot.note("all in LX", endless, plot.bottom - 10, "center");
  }

  /** Bytes per ns over the time that a step takes in all. */
  #drawRates(left, right) {
    const { card } = this.page.model;
    const points = this.points.filter((point) => !point.macs && point.time);
    const plot = new Plot(this.surface, this.page.colours.named, { left, right, title: "Other steps" });
    const times = points.map((point) => point.time);
    plot.x = logScale(Math.min(1e3, ...times) / 1.5, Math.max(1e4, ...times) * 1.8, plot.left, plot.right);
    const most = card.bytes_per_ns * 1.15;
    const step = roundStep(card.bytes_per_ns / 4);
    plot.y = Object.assign((value) => plot.bottom - (plot.bottom - plot.top) * value / most, {
      ticks: [0, 1, 2, 3, 4].map((count) => count * step).filter((value) => value <= most) });
    plot.drawAxes("modelled time of all launches", "bytes of LPDDR5 per ns", formatTime);
    const limit = plot.y(card.bytes_per_ns);
    plot.roof([[plot.left, limit], [plot.right, limit]]);
    plot.note("LPDDR5, one way", plot.left + 8, limit - 9, "left");
    this.#drawPoints(plot, points, (point) => [plot.x(point.time), plot.y(point.bytes / point.time)]);
  }

  #drawPoints(plot, points, where) {
    const { surface, page } = this;
    const { context } = surface;
    const { op: selected } = page.selection;
    const placed = points.map((point) => {
      const [x, y] = where(point);
      const radius = Math.min(22, 3 + 60 * Math.sqrt(point.time / page.model.duration) / 2);
      return { point, x, y, radius };
    }).sort((a, b) => b.radius - a.radius);
    for (const hit of placed) {
      const isSelected = selected && selected.step === hit.point.step;
      context.beginPath();
      context.arc(hit.x, hit.y, hit.radius, 0, 2 * Math.PI);
      context.globalAlpha = 0.62;
      context.fillStyle = page.colours.ofStep(hit.point.step);
      context.fill();
      context.globalAlpha = 1;
      context.lineWidth = isSelected ? 2.5 : 1;
      context.strokeStyle = isSelected ? page.colours.named.text : page.colours.named.surface;
      context.stroke();
      surface.marks++;
    }
    plot.label(placed.slice(0, 8).map(({ point, x, y, radius }) => ({ text: point.step.op, x, y, radius })));
    this.hits.push(...placed.reverse());
  }

  zoom() {}
  pan() {}
  fit() {}

  #at(x, y) {
    return this.hits?.find((hit) => Math.hypot(hit.x - x, hit.y - y) <= Math.max(6, hit.radius));
  }

  click(x, y) {
    const hit = this.#at(x, y);
    if (hit) this.page.selectStep(hit.point.kernel, hit.point.place);
  }

  hover(event, x, y) {
    const hit = event && this.#at(x, y);
    if (!hit) return this.page.tooltip.hide();
    const { point } = hit;
    const { card } = this.page.model;
    this.page.tooltip.show(event, point.step.op, [
      ["kernel", `${point.kernel.name}, step ${point.place}`],
      ["launches", formatCount(point.kernel.launches.length)],
      ["modelled, in all", formatTime(point.time)],
      ["multiply-adds", `${formatLarge(point.macs)}, ${formatShare(point.macs / point.time / card.macs_per_ns)} of PT`],
      ["LPDDR5", `${formatBytes(point.bytes)}, ${formatShare(point.bytes / point.time / card.bytes_per_ns)} of its rate`],
      ["bound by", point.step.bound]]);
  }
}

/** Every launched step of every kernel, with its sums over all launches. */
function gatherPoints(model) {
  return model.kernels.flatMap((kernel) => kernel.steps.map((step, place) => {
    const count = kernel.launches.length;
    return {
      kernel, step, place,
      time: step.duration * count,
      macs: step.macs * count,
      bytes: (step.bytes_read + step.bytes_written) * count,
    };
  })).filter((point) => point.time > 0);
}

/** A function from values to pixels, in powers of ten, with its ticks. */
function logScale(low, high, from, to) {
  const [start, span] = [Math.log10(low), Math.log10(high) - Math.log10(low)];
  const ticks = [];
  for (let power = Math.ceil(start); power <= Math.log10(high); power++) ticks.push(10 ** power);
  return Object.assign((value) => from + (to - from) * (Math.log10(value) - start) / span, { ticks });
}

/** The frame of a diagram. */
class Plot {
  constructor(surface, named, { left, right, title }) {
    Object.assign(this, { surface, named, title });
    this.left = left + 66;
    this.right = right - 18;
    this.top = 34;
    this.bottom = surface.height - 42;
  }

  drawAxes(nameX, nameY, formatX = formatLarge) {
    const { surface, named, left, right, top, bottom } = this;
    const { context } = surface;
    context.font = FONT.replace("11px", "600 12px");
    surface.label(this.title, left, 15, named.text);
    context.font = FONT;
    surface.box(left, top, right - left, bottom - top, named.sunken);
    context.textAlign = "center";
    for (const value of this.x.ticks) {
      surface.line(this.x(value), top, this.x(value), bottom, named.faint);
      surface.label(value < 1 ? String(Number(value.toPrecision(1))) : formatX(value), this.x(value), bottom + 12, named.muted);
    }
    surface.label(nameX, (left + right) / 2, bottom + 30, named.muted);
    context.textAlign = "right";
    for (const value of this.y.ticks) {
      surface.line(left, this.y(value), right, this.y(value), named.faint);
      surface.label(value && value < 1 ? String(Number(value.toPrecision(1))) : formatLarge(value), left - 6, this.y(value), named.muted);
    }
    context.save();
    context.translate(left - 52, (top + bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    surface.label(nameY, 0, 0, named.muted);
    context.restore();
    context.textAlign = "left";
  }

  clip(draw) {
    this.surface.clipped(this.left, this.top, this.right - this.left, this.bottom - this.top, draw);
  }

  roof(points) {
    const { context } = this.surface;
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.strokeStyle = this.named.text;
    context.lineWidth = 1.5;
    context.stroke();
    this.surface.marks++;
  }

  note(text, x, y, align) {
    this.surface.context.textAlign = align;
    this.surface.label(text, x, y, this.named.muted);
    this.surface.context.textAlign = "left";
  }

  /** Names beside their circles, those left out that would cover another. */
  label(marks) {
    const { context } = this.surface;
    const taken = [];
    for (const { text, x, y, radius } of marks) {
      const width = context.measureText(text).width;
      const isRight = x + radius + width + 8 < this.right;
      const box = { left: isRight ? x + radius + 4 : x - radius - 4 - width, top: y - 7, width, height: 14 };
      const covers = taken.some((other) => box.left < other.left + other.width && other.left < box.left + width
        && box.top < other.top + other.height && other.top < box.top + box.height);
      if (covers) continue;
      taken.push(box);
      context.strokeStyle = this.named.sunken; // a rim, so that lines don't cross the letters
      context.lineWidth = 3;
      context.strokeText(text, box.left, y);
      this.surface.label(text, box.left, y, this.named.text);
    }
  }
}
