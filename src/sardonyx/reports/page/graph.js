"use strict";
// The graph of a model: a canvas that is dragged and zoomed, and the facts about the selected node.

window.addEventListener("error", (event) => {
  document.documentElement.dataset.error = event.message;
});

const DATA = JSON.parse(document.getElementById("data").textContent);
const NODES = DATA.nodes, EDGES = DATA.edges;
const WIDE = 150, HIGH = 34, STEP_X = 172, STEP_Y = 62; // pixels at scale 1
const HUES = [212, 28, 140, 275, 50, 185, 330, 95, 0, 245];
const element = (id) => document.getElementById(id);
const chart = element("chart");
const view = { x: 0, y: 0, scale: 1, mode: "op", chosen: -1, found: null };
let palette = readPalette();

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "soft", "line", "panel", "accent", "peak", "other", "light", "vivid"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function make(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function amount(number, units, base) {
  let power = 0;
  while (power < units.length - 1 && number >= base) { number /= base; ++power; }
  return `${number < 9.995 ? number.toFixed(2) : number < 99.95 ? number.toFixed(1) : number.toFixed(0)} ${units[power]}`;
}
const size = (bytes) => (bytes < 1000 ? `${bytes} B` : amount(bytes / 1000, ["KB", "MB", "GB", "TB"], 1000));
const time = (seconds) => amount(seconds * 1e6, ["\u00b5s", "ms", "s"], 1000);

// Names with the most nodes have colours of their own.
function huesBy(key) {
  const counts = new Map();
  for (const node of NODES) counts.set(node[key], (counts.get(node[key]) || 0) + 1);
  const names = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name);
  return new Map(names.slice(0, HUES.length).map((name, i) => [name, HUES[i]]));
}
const BY_NAME = { op: huesBy("op"), provider: huesBy("provider") };
const MOST = {
  seconds: Math.max(1e-12, ...NODES.map((node) => node.seconds || 0)),
  bytes: Math.max(1, ...NODES.map((node) => node.bytes)),
};

function colour(node) {
  const hues = BY_NAME[view.mode];
  if (hues) {
    const hue = hues.get(node[view.mode]);
    return hue === undefined ? palette.other : `hsl(${hue} ${palette.vivid} ${palette.light})`;
  }
  const value = node[view.mode];
  if (!value) return palette.panel;
  // The square root keeps small ones apart.
  return `color-mix(in oklab, ${palette.peak} ${Math.round(8 + 92 * Math.sqrt(value / MOST[view.mode]))}%, ${palette.panel})`;
}

const left = (node) => node.x * STEP_X - WIDE / 2;
const top_ = (node) => node.y * STEP_Y;
const BOX = NODES.reduce((box, node) => ({
  left: Math.min(box.left, left(node)), right: Math.max(box.right, left(node) + WIDE),
  bottom: Math.max(box.bottom, top_(node) + HIGH),
}), { left: -WIDE / 2, right: WIDE / 2, bottom: HIGH });

function prepare() {
  const box = chart.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(box.width)), height = Math.max(1, Math.round(box.height));
  if (chart.width !== Math.round(width * ratio)) chart.width = Math.round(width * ratio);
  if (chart.height !== Math.round(height * ratio)) chart.height = Math.round(height * ratio);
  const pen = chart.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

function redraw() {
  const { pen, width, height } = prepare();
  pen.translate(width / 2, height / 2);
  pen.scale(view.scale, view.scale);
  pen.translate(-view.x, -view.y);
  const shown = {
    left: view.x - width / 2 / view.scale, right: view.x + width / 2 / view.scale,
    top: view.y - height / 2 / view.scale, bottom: view.y + height / 2 / view.scale,
  };
  drawEdges(pen, shown);
  for (const [i, node] of NODES.entries()) {
    const x = left(node), y = top_(node);
    if (x < shown.right && x + WIDE > shown.left && y < shown.bottom && y + HIGH > shown.top) drawNode(pen, node, i, x, y);
  }
}

function drawEdges(pen, shown) {
  pen.lineWidth = Math.max(1, 0.7 / view.scale);
  for (const [a, b, bends] of EDGES) {
    const from = NODES[a], to = NODES[b];
    if (top_(from) > shown.bottom || top_(to) < shown.top) continue;
    const touches = a === view.chosen || b === view.chosen;
    // Edges over many layers have no way of their own: they are drawn for the selected node.
    if (!touches && to.y - from.y > bends.length + 1) continue;
    pen.strokeStyle = touches ? palette.accent : palette.soft;
    pen.globalAlpha = touches ? 1 : 0.45;
    pen.beginPath();
    let x = from.x * STEP_X, y = top_(from) + HIGH;
    pen.moveTo(x, y);
    for (const [place, layer] of [...bends, [to.x, to.y]]) {
      const nextX = place * STEP_X, nextY = layer * STEP_Y, half = (y + nextY) / 2;
      pen.bezierCurveTo(x, half, nextX, half, nextX, nextY);
      if (layer !== to.y) pen.lineTo(nextX, nextY + HIGH);
      [x, y] = [nextX, layer === to.y ? nextY : nextY + HIGH];
    }
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function drawNode(pen, node, i, x, y) {
  pen.globalAlpha = view.found && !view.found.has(i) ? 0.15 : 1;
  pen.fillStyle = colour(node);
  pen.beginPath();
  pen.roundRect(x, y, WIDE, HIGH, 5);
  pen.fill();
  if (i === view.chosen) {
    pen.strokeStyle = palette.ink;
    pen.lineWidth = Math.max(2.5, 1.5 / view.scale);
    pen.stroke();
  }
  if (view.scale > 0.35) {
    pen.save();
    pen.clip();
    const isPlain = !BY_NAME[view.mode] && (node[view.mode] || 0) < 0.3 * MOST[view.mode];
    pen.fillStyle = isPlain ? palette.ink : "#ffffff";
    pen.font = "600 12px system-ui, sans-serif";
    pen.fillText(node.op.replace("sardonyx.", ""), x + 8, y + 14);
    pen.font = "10px system-ui, sans-serif";
    pen.fillText(detail(node), x + 8, y + 27);
    pen.restore();
  }
  pen.globalAlpha = 1;
}

function detail(node) {
  if (view.mode === "seconds") return node.seconds ? time(node.seconds) : "";
  if (view.mode === "bytes") return node.bytes ? size(node.bytes) : "";
  return view.mode === "provider" ? node.kernel || "view" : node.name;
}

function fillLegend() {
  const hues = BY_NAME[view.mode];
  const entries = hues
    ? [...hues].map(([name, hue]) => [`hsl(${hue} ${palette.vivid} ${palette.light})`, name || "no provider"])
    : [[palette.peak, view.mode === "bytes" ? `${size(MOST.bytes)} of outputs` : `${time(MOST.seconds)} in a step`], [palette.panel, "none"]];
  if (hues && hues.size === HUES.length) entries.push([palette.other, "others"]);
  element("legend").replaceChildren(...entries.map(([fill, text]) => {
    const entry = make("span", "", text), patch = make("i");
    patch.style.background = fill;
    entry.prepend(patch);
    return entry;
  }));
}

function whole() {
  const box = chart.getBoundingClientRect(), width = BOX.right - BOX.left;
  view.scale = Math.min(1, box.width / (width + 40), box.height / (BOX.bottom + 40));
  // A long graph is readable from its beginning; the whole of it would be a line.
  view.scale = Math.max(view.scale, Math.min(0.45, box.width / (width + 40)));
  const fits = width * view.scale <= box.width;
  const first = NODES.filter((node) => top_(node) < box.height / view.scale);
  const places = first.map((node) => node.x).sort((a, b) => a - b);
  view.x = fits ? (BOX.left + BOX.right) / 2 : (places[places.length >> 1] || 0) * STEP_X;
  view.y = Math.min(BOX.bottom / 2, box.height / 2 / view.scale - 20);
  redraw();
}

function zoom(factor, x = 0, y = 0) {
  const next = Math.min(3, Math.max(0.02, view.scale * factor));
  view.x += x / view.scale - x / next;
  view.y += y / view.scale - y / next;
  view.scale = next;
  redraw();
}

function choose(i, centres) {
  view.chosen = i;
  const node = NODES[i];
  element("node-title").textContent = node ? `${node.op}  ${node.name}` : "No node is selected";
  const rows = !node ? [] : [
    ["runs", [node.provider, node.kernel || "view, no kernel"].filter(Boolean).join(", ")],
    ["time", node.seconds ? time(node.seconds) : "in the step of another node, or not measured"],
    ["memory", node.bytes ? `${size(node.bytes)} of outputs` : "of unknown size"],
    ...node.inputs.map((text) => ["reads", text]), ...node.outputs.map((text) => ["makes", text]),
  ];
  element("node").tBodies[0].replaceChildren(...rows.map(([name, text]) => {
    const row = make("tr");
    row.append(make("td", "", name), make("td", "", text));
    return row;
  }));
  if (node && centres) {
    [view.x, view.y] = [node.x * STEP_X, top_(node)];
    view.scale = Math.max(view.scale, 0.7);
  }
  redraw();
}

function nodeAt(event) {
  const box = chart.getBoundingClientRect();
  const x = view.x + (event.clientX - box.left - box.width / 2) / view.scale;
  const y = view.y + (event.clientY - box.top - box.height / 2) / view.scale;
  return NODES.findIndex((n) => x >= left(n) && x <= left(n) + WIDE && y >= top_(n) && y <= top_(n) + HIGH);
}

function search() {
  const wanted = element("find").value.trim().toLowerCase();
  const texts = (n) => [n.name, n.op, ...n.inputs, ...n.outputs].join(" ").toLowerCase();
  view.found = !wanted ? null : new Set([...NODES.keys()].filter((i) => texts(NODES[i]).includes(wanted)));
  redraw();
}

function next() {
  const among = view.found ? [...view.found] : [...NODES.keys()];
  if (among.length) choose(among.find((i) => i > view.chosen) ?? among[0], true);
}

function move(x, y) {
  view.x += x / view.scale;
  view.y += y / view.scale;
  redraw();
}

const ACTIONS = { in: () => zoom(1.4), out: () => zoom(1 / 1.4), whole };
const KEYS = {
  ArrowLeft: () => move(-60, 0), ArrowRight: () => move(60, 0), ArrowUp: () => move(0, -60), ArrowDown: () => move(0, 60),
  "+": ACTIONS.in, "=": ACTIONS.in, "-": ACTIONS.out, 0: whole, Enter: next, Escape: () => choose(-1, false),
};

function listen() {
  let held = null;
  chart.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY, moved: false };
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (!held) {
      chart.style.cursor = nodeAt(event) < 0 ? "grab" : "pointer";
      return;
    }
    if (Math.hypot(event.clientX - held.x, event.clientY - held.y) > 4) held.moved = true;
    if (!held.moved) return;
    move(held.x - event.clientX, held.y - event.clientY);
    [held.x, held.y] = [event.clientX, event.clientY];
  });
  chart.addEventListener("pointerup", (event) => {
    if (held && !held.moved) choose(nodeAt(event), false);
    held = null;
  });
  chart.addEventListener("pointercancel", () => { held = null; });
  chart.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = chart.getBoundingClientRect();
    zoom(Math.exp(-Math.max(-100, Math.min(100, event.deltaY)) / 300),
      event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2);
  }, { passive: false });
  chart.addEventListener("keydown", (event) => {
    const action = KEYS[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    action();
    event.preventDefault();
  });
  element("find").addEventListener("input", search);
  element("find").addEventListener("keydown", (event) => { if (event.key === "Enter") next(); });
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", () => ACTIONS[button.dataset.do]());
  }
  for (const input of document.querySelectorAll("[name=mode]")) {
    input.addEventListener("change", () => {
      view.mode = input.value;
      fillLegend();
      redraw();
    });
  }
  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    palette = readPalette();
    fillLegend();
    redraw();
  });
}

function begin() {
  for (const input of document.querySelectorAll("[value=seconds]")) {
    input.disabled = !NODES.some((node) => node.seconds);
  }
  fillLegend();
  listen();
  whole();
  document.documentElement.dataset.ready = "1";
}

begin();
