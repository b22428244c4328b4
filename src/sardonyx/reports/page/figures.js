"use strict";
// The data of the page, and its figures as people read them.

window.addEventListener("error", (event) => {
  document.documentElement.dataset.error = event.message;
});

const DATA = JSON.parse(document.getElementById("data").textContent);
const KINDS = ["value", "scratch", "output", "part of a concatenation"];
const SCRATCH = 1, OUTPUT = 2, PART = 3;

const ORDERS = DATA.orders.map((order) => ({
  ...order,
  steps: order.steps.map(([name, op, kernel]) => ({
    name: DATA.texts[name], op: DATA.texts[op], kernel: DATA.texts[kernel],
  })),
  tensors: order.tensors.map(([name, kind, type, bytes, made, start, end, drawn, height, maker, idle]) => ({
    name: DATA.texts[name], kind, type: DATA.texts[type], bytes, made, start, end, drawn, height,
    maker: DATA.texts[maker], idle,
  })),
}));

const element = (id) => document.getElementById(id);

function make(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const units = ["KB", "MB", "GB", "TB"];
  let power = 1;
  while (power < units.length && bytes / 1000 ** power >= 999.5) ++power;
  const scaled = bytes / 1000 ** power;
  return `${scaled.toFixed(scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0)} ${units[power - 1]}`;
}

function clamp(number, least, most) {
  return Math.max(least, Math.min(most, number));
}

// The most bytes that a chart shows: one scale for all orders.
const TOP = Math.max(1, ...ORDERS.map((order) =>
  order.tensors.reduce((top, t) => Math.max(top, t.height + t.bytes), order.peak)));

// Tensors that are alive in a step, in the order they are stacked: outputs on top.
function aliveAt(order, step) {
  return order.tensors.filter((t) => t.kind !== PART && t.start <= step && step <= t.drawn).sort(byStack);
}

function byStack(a, b) {
  return (a.kind === OUTPUT) - (b.kind === OUTPUT) || a.start - b.start || b.bytes - a.bytes;
}

// Ops by the bytes that they make over all steps: the first few have colours of their own.
const HUES = [212, 28, 140, 275, 50, 185, 330, 95, 0, 245];
const OP_HUES = (() => {
  const totals = new Map();
  for (const order of ORDERS) {
    for (const t of order.tensors) {
      if (t.kind === SCRATCH || t.kind === PART) continue;
      const op = order.steps[t.made].op;
      totals.set(op, (totals.get(op) || 0) + t.bytes * (t.end - t.start + 1));
    }
  }
  const ops = [...totals].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([op]) => op);
  return new Map(ops.slice(0, HUES.length).map((op, i) => [op, HUES[i]]));
})();
