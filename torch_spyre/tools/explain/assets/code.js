// Program text with colours.

const TOKENS = {
  python: new RegExp([
    /(?<comment>#.*$)/,
    /(?<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')/,
    /\b(?<keyword>def|return|for|in|if|else|with|as|not|and|or|None|True|False|self)\b/,
    /\b(?<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b/,
  ].map((part) => part.source).join("|"), "gm"),
  json: new RegExp([
    /(?<keyword>"(?:[^"\\]|\\.)*"(?=\s*:))/,
    /(?<string>"(?:[^"\\]|\\.)*")/,
    /(?<number>-?\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b)/,
  ].map((part) => part.source).join("|"), "g"),
};

const MOST_COLOURED = 200_000; // letters; longer texts are shown plain

/**
 * A block of program text. Colours are ranges of CSS.highlights, so a text of ten thousand words
 * is one node of the document; browsers without them show it plain.
 */
function codeBlock(text, language) {
  const code = make("code", {}, text);
  if (globalThis.Highlight && CSS.highlights && text && text.length < MOST_COLOURED) {
    colour(code.firstChild, text, TOKENS[language]);
  }
  return make("pre", { class: "code", tabindex: "0" }, text ? code : make("span", { class: "muted" }, "not known"));
}

function colour(node, text, tokens) {
  for (const { index, 0: token, groups } of text.matchAll(tokens)) {
    const kind = Object.keys(groups).find((name) => groups[name] !== undefined);
    if (!CSS.highlights.has(kind)) CSS.highlights.set(kind, new Highlight());
    // A static range costs nothing when the page changes elsewhere.
    CSS.highlights.get(kind).add(new StaticRange({
      startContainer: node, startOffset: index, endContainer: node, endOffset: index + token.length }));
  }
}

/** Forgets the colours of blocks that are shown no more. */
function forgetColours() {
  for (const highlight of globalThis.CSS?.highlights?.values() ?? []) {
    for (const range of [...highlight]) if (!range.startContainer.isConnected) highlight.delete(range);
  }
}

/** The line of the model, with its place. */
function sourceLine(source) {
  const place = formatPlace(source);
  if (!place && !source.code) return make("p", { class: "muted" }, "The source is not known.");
  return make("figure", { class: "source" },
    make("figcaption", {}, make("code", {}, place), source.function ? ` in ${source.function}` : ""),
    codeBlock(source.code, "python"));
}
