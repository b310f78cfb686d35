// What all drawings share: a sharp canvas, an axis to zoom and pan, and the hands that do so.

const FONT = '11px "IBM Plex Sans", Inter, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const MONO = '11px "IBM Plex Mono", ui-monospace, Menlo, Consolas, "Liberation Mono", monospace';

/** A canvas that fills its box, is sharp on any screen and drawn at most once per frame. */
class Surface {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.draw = draw;
    this.width = this.height = 0;
    this.marks = 0; // that the last frame drew: what the tests bound
    this.isWaiting = false;
    new ResizeObserver(() => this.#resize()).observe(canvas);
  }

  #resize() {
    const { clientWidth, clientHeight } = this.canvas;
    const ratio = devicePixelRatio || 1;
    if (!clientWidth || !clientHeight) return; // hidden
    [this.width, this.height] = [clientWidth, clientHeight];
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#paint();
  }

  invalidate() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    this.isWaiting = false;
    if (!this.width || !this.canvas.clientWidth) return;
    this.marks = 0;
    this.context.clearRect(0, 0, this.width, this.height);
    this.context.font = FONT;
    this.context.textBaseline = "middle";
    this.context.textAlign = "left";
    this.draw(this);
  }

  box(x, y, width, height, colour) {
    this.marks++;
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
  }

  frame(x, y, width, height, colour, thickness = 2) {
    this.marks++;
    this.context.strokeStyle = colour;
    this.context.lineWidth = thickness;
    this.context.strokeRect(x, y, width, height);
  }

  line(x0, y0, x1, y1, colour, dash = []) {
    this.marks++;
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
    context.setLineDash([]);
  }

  /** Text, cut to a width with "…"; nothing where not even three letters fit. */
  label(text, x, y, colour, width = Infinity) {
    const { context } = this;
    if (width < 18) return;
    let shown = text;
    if (width !== Infinity && context.measureText(text).width > width) {
      const letter = context.measureText("n").width;
      let length = Math.min(text.length, Math.floor(width / letter) + 2);
      do {
        shown = `${text.slice(0, --length)}…`;
      } while (length > 2 && context.measureText(shown).width > width);
      if (length <= 2) return;
    }
    this.marks++;
    context.fillStyle = colour;
    context.fillText(shown, x, y);
  }

  /** Draws only within a rectangle. */
  clipped(x, y, width, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }
}

/** A part of [0, length], shown on the pixels from `left` to `right`. */
class Axis {
  constructor(length, least) {
    this.length = length;
    this.least = Math.min(least, length);
    [this.start, this.end] = [0, length];
    [this.left, this.right] = [0, 1];
  }

  get scale() { return (this.right - this.left) / (this.end - this.start); }
  get isWhole() { return this.start <= 0 && this.end >= this.length; }

  toPixel(value) { return this.left + (value - this.start) * this.scale; }
  toValue(pixel) { return this.start + (pixel - this.left) / this.scale; }

  /** Shows [start, end], moved and widened as far as there is something to show. */
  show(start, end) {
    const span = Math.min(this.length, Math.max(this.least, end - start));
    const middle = (start + end) / 2;
    this.start = Math.max(0, Math.min(this.length - span, middle - span / 2));
    this.end = this.start + span;
  }

  zoom(factor, pixel) {
    const at = this.toValue(pixel);
    const span = Math.min(this.length, Math.max(this.least, (this.end - this.start) * factor));
    const share = (at - this.start) / (this.end - this.start);
    this.show(at - share * span, at + (1 - share) * span);
  }

  pan(pixels) {
    const moved = pixels / this.scale;
    this.show(this.start + moved, this.end + moved);
  }

  fit() { this.show(0, this.length); }

  /** Round values, some 90 pixels apart. */
  ticks() {
    const step = roundStep((this.end - this.start) / Math.max(2, (this.right - this.left) / 90));
    const values = [];
    for (let value = Math.ceil(this.start / step) * step; value <= this.end; value += step) values.push(value);
    return { step, values };
  }
}

/** The least of 1, 2, 5, 10, 20, … that is not below a value. */
function roundStep(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= value * 0.999);
}

/** A tick of a time axis; all ticks of an axis have the same unit. */
function formatTick(value, step, end) {
  const [unit, size] = end >= 1e9 ? ["s", 1e9] : end >= 1e6 ? ["ms", 1e6] : end >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return `${(value / size).toFixed(digits)} ${unit}`;
}

const KEY_STEP = 80; // pixels that an arrow key pans

/**
 * Wheel, drag, click and keys of a canvas. `hands` has zoom(factor, x, y), pan(dx, dy), fit(),
 * click(x, y, event), hover(event, x, y), and perhaps open(x, y) for a double click.
 */
function takeInHand(canvas, hands) {
  const at = (event) => [event.offsetX, event.offsetY];
  let drag = null;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const isPan = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (isPan) hands.pan(event.deltaX || event.deltaY, 0);
    else hands.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 300), ...at(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    drag = { x: event.offsetX, y: event.offsetY, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hands.hover(event, ...at(event));
    const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
    if (!drag.moved && Math.hypot(dx, dy) < 4) return;
    Object.assign(drag, { x: event.offsetX, y: event.offsetY, moved: true });
    canvas.classList.add("dragging");
    hands.pan(-dx, -dy);
  });
  canvas.addEventListener("pointerup", (event) => {
    canvas.classList.remove("dragging");
    if (drag && !drag.moved) hands.click(...at(event), event);
    drag = null;
  });
  canvas.addEventListener("pointerleave", () => hands.hover(null));
  canvas.addEventListener("dblclick", (event) => hands.open?.(...at(event)));
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = [canvas.clientWidth / 2, canvas.clientHeight / 2];
    const keys = {
      "+": () => hands.zoom(1 / 1.5, ...middle),
      "=": () => hands.zoom(1 / 1.5, ...middle),
      "-": () => hands.zoom(1.5, ...middle),
      "0": () => hands.fit(),
      ArrowLeft: () => hands.pan(-KEY_STEP, 0),
      ArrowRight: () => hands.pan(KEY_STEP, 0),
      ArrowUp: () => hands.pan(0, -KEY_STEP),
      ArrowDown: () => hands.pan(0, KEY_STEP),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}
