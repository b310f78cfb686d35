// Numbers and names as people read them.

/** 12345 → "12.3 µs". Nanoseconds of the card's clock: modelled. */
function formatTime(nanoseconds) {
  const units = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];
  for (const [unit, size] of units) {
    if (nanoseconds >= size) return `${significant(nanoseconds / size)} ${unit}`;
  }
  return `${Math.round(nanoseconds)} ns`;
}

/** 1536 → "1.5 KiB". */
function formatBytes(bytes) {
  const units = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
  for (const [unit, size] of units) {
    if (bytes >= size) return `${significant(bytes / size)} ${unit}`;
  }
  return `${formatCount(bytes)} B`;
}

/** 1234567 → "1,234,567". */
function formatCount(count) {
  return Math.round(count).toLocaleString("en-US");
}

/** 1234567 → "1.23 M". */
function formatLarge(count) {
  const units = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];
  for (const [unit, size] of units) {
    if (count >= size) return `${significant(count / size)} ${unit}`;
  }
  return formatCount(count);
}

/** A share of one: 0.1234 → "12.3 %". */
function formatShare(share) {
  if (!Number.isFinite(share)) return "–";
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(share < 0.995 ? 1 : 0)} %`;
}

/** Three digits that matter, without zeros behind the point that say nothing. */
function significant(value) {
  if (value >= 100) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}

/** "1 graph", "2 graphs". */
function plural(count, word, words = `${word}s`) {
  return `${formatCount(count)} ${count === 1 ? word : words}`;
}

/** "model.py:41", or "" where the source is not known. */
function formatPlace(source) {
  return source.file ? `${source.file}:${source.line}` : "";
}

/** Where a tensor lies: "LX at 1024", "LPDDR5", "argument 3". */
function formatHome(buffer) {
  if (buffer.component === "lx") return `LX at ${formatCount(buffer.address)}`;
  if (buffer.component === "pool") return "LPDDR5";
  return `argument ${buffer.address}`;
}

/** "float16[8, 100]". */
function formatTensor(dtype, sizes) {
  return `${dtype}[${sizes.join(", ")}]`;
}

const JSON_WIDTH = 88;

/** A JSON text that people can read: what fits on a line is one line. */
function formatJson(text) {
  try {
    return printJson(JSON.parse(text), "");
  } catch {
    return text; // whatever it is, it is shown
  }
}

function printJson(value, indent) {
  const isList = Array.isArray(value);
  const parts = !value || typeof value !== "object" ? null
    : isList ? value.map((item) => ["", item])
      : Object.entries(value).map(([key, item]) => [`${JSON.stringify(key)}: `, item]);
  if (!parts) return JSON.stringify(value);
  const [open, close] = isList ? "[]" : "{}";
  const inner = `${indent}  `;
  const printed = parts.map(([key, item]) => key + printJson(item, inner));
  const line = `${open}${printed.join(", ")}${close}`;
  if (indent.length + line.length <= JSON_WIDTH && !line.includes("\n")) return line;
  return `${open}\n${printed.map((part) => inner + part).join(",\n")}\n${indent}${close}`;
}
