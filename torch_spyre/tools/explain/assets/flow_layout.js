// Where the operations of a kernel stand in their graph: in layers from left to right, so that
// every tensor flows to the right, and in an order within each layer that crosses few lines.

const NODE_WIDTH = 196;
const NODE_HEIGHT = 46;
const PORT_HEIGHT = 15; // a line for each argument of the kernel that a step reads
const RANK_WIDTH = NODE_WIDTH + 196; // with room for the label of what a step writes
const NODE_GAP = 26;
const PASSING_HEIGHT = 12; // of a line that passes through a layer

/**
 * The graph of a kernel: { nodes, edges, ranks }. A node has step, x, y, height and the arguments
 * that it reads; an edge has the buffer and its points from the writer to the reader.
 */
function layOutFlow(kernel) {
  const nodes = kernel.steps.map((step, place) => ({ place, step, rank: 0, y: 0, height: 0, before: [], after: [] }));
  const links = linkSteps(kernel, nodes);
  const ranks = [];
  for (const node of nodes) {
    node.height = NODE_HEIGHT + PORT_HEIGHT * node.arguments.length;
    (ranks[node.rank] ||= []).push(node);
  }
  const edges = links.map((link) => routeThrough(link, ranks));
  orderRanks(ranks);
  placeRanks(ranks);
  for (const node of nodes) node.x = node.rank * RANK_WIDTH;
  return { nodes, edges, ranks };
}

/** Who reads what from whom. Steps are in order, so a writer stands before its readers. */
function linkSteps(kernel, nodes) {
  const writers = kernel.buffers.map(() => []);
  const links = [];
  for (const node of nodes) {
    node.arguments = [];
    for (const buffer of new Set(node.step.reads)) {
      const from = writers[buffer] ?? [];
      if (from.length === 0) node.arguments.push(buffer);
      for (const writer of from) {
        links.push({ buffer, from: writer, to: node });
        node.rank = Math.max(node.rank, writer.rank + 1);
      }
    }
    writers[node.step.writes]?.push(node);
  }
  return links;
}

/** A line past several layers takes a place in each of them. */
function routeThrough({ buffer, from, to }, ranks) {
  const through = [];
  let last = from;
  for (let rank = from.rank + 1; rank < to.rank; rank++) {
    const passing = { rank, y: 0, height: PASSING_HEIGHT, before: [last], after: [] };
    last.after.push(passing);
    ranks[rank].push(passing);
    through.push(passing);
    last = passing;
  }
  last.after.push(to);
  to.before.push(last);
  return { buffer, from, to, through };
}

/** Sorts each layer by the mean place of its neighbours, there and back again. */
function orderRanks(ranks) {
  const number = (rank) => rank.forEach((item, order) => { item.order = order; });
  ranks.forEach(number);
  for (let sweep = 0; sweep < 6; sweep++) {
    const isForward = sweep % 2 === 0;
    for (const rank of isForward ? ranks : [...ranks].reverse()) {
      for (const item of rank) {
        const beside = isForward ? item.before : item.after;
        item.wish = beside.length ? mean(beside.map((other) => other.order)) : item.order;
      }
      rank.sort((a, b) => a.wish - b.wish || a.order - b.order);
      number(rank);
    }
  }
}

/** Moves what stands in a layer towards its neighbours, as far as the order leaves room. */
function placeRanks(ranks) {
  for (const rank of ranks) stack(rank, rank.map(() => 0));
  for (let sweep = 0; sweep < 8; sweep++) {
    const isForward = sweep % 2 === 0;
    for (const rank of isForward ? ranks : [...ranks].reverse()) {
      stack(rank, rank.map((item) => {
        const beside = isForward ? item.before : item.after;
        if (!beside.length) return item.y;
        return mean(beside.map((other) => other.y + other.height / 2)) - item.height / 2;
      }));
    }
  }
}

/** Gives each item the place it wishes for, and where two want the same, moves both. */
function stack(rank, wishes) {
  const room = (item) => item.height + NODE_GAP;
  let edge = -Infinity;
  rank.forEach((item, i) => {
    item.y = Math.max(wishes[i], edge);
    edge = item.y + room(item);
  });
  const shift = mean(rank.map((item, i) => wishes[i] - item.y));
  edge = Infinity;
  for (let i = rank.length - 1; i >= 0; i--) {
    const item = rank[i];
    item.y = Math.min(Math.max(item.y + shift, wishes[i]), edge - room(item));
    edge = item.y;
  }
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : 0;
}
