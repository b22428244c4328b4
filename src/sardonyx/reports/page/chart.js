// Drawing: bands of tensors, small charts of orders, the overview.

const MARGIN = { left: 62, right: 10, top: 14, bottom: 22 };
const TINY = 1; // pixels: what is lower is drawn as part of one band

// A canvas at the screen's own resolution; its size in CSS pixels is what style sheets say.
function prepare(canvas) {
  const box = canvas.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(box.width)), height = Math.max(1, Math.round(box.height));
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "soft", "line", "accent", "peak", "other", "scratch", "light", "vivid"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// A colour by the op that makes a tensor; neighbours of one op differ a little.
function colour(palette, order, tensor, index) {
  if (tensor.kind === SCRATCH) return palette.scratch;
  const hue = OP_HUES.get(order.steps[tensor.made].op);
  if (hue === undefined) return palette.other;
  const shade = parseInt(palette.light, 10) + (index % 3) * 6 - 6;
  return `hsl(${hue} ${palette.vivid} ${shade}%)`;
}

// The map from steps and bytes to pixels, and back.
class Scale {
  constructor(width, height, from, to) {
    this.left = width < 500 ? 50 : MARGIN.left;
    this.right = width - MARGIN.right;
    this.top = MARGIN.top;
    this.bottom = height - MARGIN.bottom;
    this.from = from;
    this.to = to;
    this.perStep = (this.right - this.left) / (to - from);
    this.perByte = (this.bottom - this.top) / (TOP * 1.04);
  }

  x(step) { return this.left + (step - this.from) * this.perStep; }
  y(bytes) { return this.bottom - bytes * this.perByte; }
  step(x) { return Math.floor(this.from + (x - this.left) / this.perStep); }
  bytes(y) { return (this.bottom - y) / this.perByte; }
}

function drawChart(canvas, order, view, palette) {
  const { pen, width, height } = prepare(canvas);
  const scale = new Scale(width, height, view.from, view.to);
  drawAxes(pen, scale, order, palette);
  pen.save();
  pen.beginPath();
  pen.rect(scale.left, 0, scale.right - scale.left, scale.bottom);
  pen.clip();
  (view.mode === "place" ? drawPlaces : drawStack)(pen, scale, order, view, palette);
  drawNeeds(pen, scale, order, palette);
  drawMarks(pen, scale, order, view, palette);
  pen.restore();
  return scale;
}

function drawAxes(pen, scale, order, palette) {
  pen.font = "11px system-ui, sans-serif";
  pen.lineWidth = 1;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  const pitch = niceStep(TOP, 6);
  for (let bytes = 0; bytes <= TOP * 1.04; bytes += pitch) {
    const y = Math.round(scale.y(bytes)) + 0.5;
    pen.strokeStyle = palette.line;
    pen.beginPath();
    pen.moveTo(scale.left, y);
    pen.lineTo(scale.right, y);
    pen.stroke();
    pen.fillStyle = palette.soft;
    pen.fillText(bytes ? size(bytes) : "0", scale.left - 5, y);
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  const steps = Math.max(1, niceStep(scale.to - scale.from, Math.max(2, (scale.right - scale.left) / 90)));
  for (let number = Math.ceil((scale.from + 1) / steps) * steps; number <= scale.to; number += steps) {
    if (number > order.steps.length) break;
    const x = clamp(scale.x(number - 0.5), scale.left + 8, scale.right - 12);
    pen.fillText(String(number), x, scale.bottom + 6);
  }
}

// A round number that divides a range into about so many parts.
function niceStep(range, parts) {
  const rough = Math.max(1, range / parts), power = 10 ** Math.floor(Math.log10(rough));
  const found = [1, 2, 5, 10].find((factor) => factor * power >= rough);
  return found * power;
}

// A rectangle for each tensor, from its first to its last step, at its offset.
function drawPlaces(pen, scale, order, view, palette) {
  const tiny = new Path2D();
  order.tensors.forEach((tensor, index) => {
    if (tensor.drawn + 1 < scale.from || tensor.start > scale.to) return;
    const x = scale.x(tensor.start), width = Math.max(0.7, scale.x(tensor.drawn + 1) - x);
    const y = scale.y(tensor.height + tensor.bytes), height = tensor.bytes * scale.perByte;
    if (height < TINY) {
      tiny.rect(x, y, width, Math.max(height, 0.4));
      return;
    }
    paintBand(pen, { x, y, width, height }, tensor, colour(palette, order, tensor, index), view, palette);
  });
  pen.fillStyle = palette.other;
  pen.fill(tiny);
}

function paintBand(pen, box, tensor, fill, view, palette) {
  pen.globalAlpha = view.found && !view.found.has(tensor) ? 0.2 : tensor.kind === OUTPUT ? 0.55 : 1;
  pen.fillStyle = fill;
  pen.fillRect(box.x, box.y, box.width, box.height);
  pen.globalAlpha = 1;
  if (box.width > 3 && box.height > 3) {
    pen.strokeStyle = palette.paper;
    pen.lineWidth = 1;
    pen.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1);
  }
  if (box.width > 60 && box.height > 14) paintName(pen, box, tensor, palette);
}

function paintName(pen, box, tensor, palette) {
  const left = Math.max(box.x, 50) + 4, room = box.x + box.width - left - 6;
  if (room < 40) return;
  pen.save();
  pen.beginPath();
  pen.rect(left, box.y, room, box.height);
  pen.clip();
  pen.fillStyle = palette.paper;
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillText(`${tensor.name}  ${size(tensor.bytes)}`, left, box.y + box.height / 2);
  pen.restore();
}

// The bytes of each column on top of each other. A column stands for the step in it that needs most.
function columns(scale, order) {
  const found = [];
  const wide = Math.max(1, scale.perStep);
  for (let x = scale.left; x < scale.right; x += wide) {
    const first = clamp(scale.step(x + 0.01), 0, order.steps.length - 1);
    const last = clamp(scale.step(x + wide - 0.01), first, order.steps.length - 1);
    let step = first;
    for (let s = first + 1; s <= last; ++s) if (order.needs[s] > order.needs[step]) step = s;
    found.push({ x: wide > 1 ? scale.x(first) : x, width: wide, step });
  }
  return found;
}

function drawStack(pen, scale, order, view, palette) {
  const sorted = order.tensors.map((tensor, index) => ({ tensor, index }))
    .filter(({ tensor }) => tensor.kind !== PART)
    .sort((a, b) => a.tensor.start - b.tensor.start);
  let next = 0, alive = [];
  for (const { x, width, step } of columns(scale, order)) {
    while (next < sorted.length && sorted[next].tensor.start <= step) alive.push(sorted[next++]);
    alive = alive.filter(({ tensor }) => tensor.drawn >= step);
    const big = alive.filter(({ tensor }) => tensor.bytes * scale.perByte >= TINY);
    let height = 0;
    for (const { tensor } of alive) if (tensor.bytes * scale.perByte < TINY) height += tensor.bytes;
    pen.fillStyle = palette.other;
    pen.fillRect(x, scale.y(height), width + 0.5, height * scale.perByte);
    for (const { tensor, index } of big.sort((a, b) => byStack(a.tensor, b.tensor))) {
      height += tensor.bytes;
      pen.globalAlpha = view.found && !view.found.has(tensor) ? 0.2 : tensor.kind === OUTPUT ? 0.55 : 1;
      pen.fillStyle = colour(palette, order, tensor, index);
      pen.fillRect(x, scale.y(height), width + 0.5, tensor.bytes * scale.perByte - 0.5);
    }
    pen.globalAlpha = 1;
  }
}

// The line of bytes alive, as steps of a stair.
function drawNeeds(pen, scale, order, palette) {
  pen.strokeStyle = palette.ink;
  pen.lineWidth = 1.2;
  pen.beginPath();
  for (const { x, width, step } of columns(scale, order)) {
    const y = scale.y(order.needs[step]);
    pen.lineTo(x, y);
    pen.lineTo(x + width, y);
  }
  pen.stroke();
}

function drawMarks(pen, scale, order, view, palette) {
  if (!order.steps.length) return;
  const arena = Math.round(scale.y(order.peak)) + 0.5;
  pen.strokeStyle = palette.peak;
  pen.lineWidth = 1;
  pen.setLineDash([5, 4]);
  pen.beginPath();
  pen.moveTo(scale.left, arena);
  pen.lineTo(scale.right, arena);
  pen.stroke();
  pen.setLineDash([]);
  const at = scale.x(order.peakStep + 0.5), cursor = scale.x(view.cursor);
  pen.fillStyle = palette.peak;
  pen.beginPath();
  pen.moveTo(at - 5, 2);
  pen.lineTo(at + 5, 2);
  pen.lineTo(at, 11);
  pen.fill();
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "top";
  pen.textAlign = at > (scale.left + scale.right) / 2 ? "right" : "left";
  pen.fillText(`peak ${size(order.peak)}`, at + (pen.textAlign === "right" ? -9 : 9), 1);
  pen.strokeStyle = palette.accent;
  pen.lineWidth = 1.5;
  pen.strokeRect(cursor, scale.top, Math.max(1, scale.perStep), scale.bottom - scale.top);
}

// Bytes alive over all steps in a small canvas; `windowed` marks the part that is shown.
function drawSmall(canvas, order, palette, windowed) {
  const { pen, width, height } = prepare(canvas);
  const n = Math.max(1, order.steps.length);
  pen.fillStyle = palette.other;
  for (let x = 0; x < width; ++x) {
    const first = Math.floor((x * n) / width), last = Math.max(first + 1, Math.ceil(((x + 1) * n) / width));
    let most = 0;
    for (let s = first; s < last && s < n; ++s) most = Math.max(most, order.needs[s] || 0);
    const tall = (most / TOP) * (height - 4);
    pen.fillRect(x, height - tall, 1, tall);
  }
  pen.fillStyle = palette.peak;
  pen.fillRect(((order.peakStep + 0.5) / n) * width - 1, 0, 2, height);
  if (windowed) {
    pen.strokeStyle = palette.accent;
    pen.lineWidth = 2;
    const left = (windowed.from / n) * width, right = (windowed.to / n) * width;
    pen.strokeRect(left + 1, 1, Math.max(3, right - left - 2), height - 2);
  }
}
