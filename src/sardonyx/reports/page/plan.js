// The page: its controls, what is under the pointer, the table of a step.

const ROWS = 200; // of the table
const view = { order: 0, mode: "place", from: 0, to: 1, cursor: 0, found: null, chosen: null };
let palette = readPalette(), scale = null, waiting = false;

const current = () => ORDERS[view.order];
const count = () => Math.max(1, current().steps.length);

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    scale = drawChart(element("chart"), current(), view, palette);
    drawSmall(element("overview"), current(), palette, view);
    document.querySelectorAll(".order canvas").forEach((canvas, i) => drawSmall(canvas, ORDERS[i], palette));
  });
}

function show(from, to) {
  const span = clamp(to - from, Math.min(4, count()), count());
  view.from = clamp(from, 0, count() - span);
  view.to = view.from + span;
  redraw();
}

function zoom(factor, around) {
  const middle = around === undefined ? view.cursor + 0.5 : around;
  show(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
}

function moveTo(step) {
  view.cursor = clamp(step, 0, count() - 1);
  const span = view.to - view.from;
  if (view.cursor < view.from) show(view.cursor, view.cursor + span);
  else if (view.cursor + 1 > view.to) show(view.cursor + 1 - span, view.cursor + 1);
  fillTable();
  redraw();
}

function chooseOrder(index) {
  view.order = index;
  view.chosen = null;
  view.cursor = current().peakStep;
  search();
  show(0, count());
  fillTable();
}

function buildOrders() {
  ORDERS.forEach((order, index) => {
    const label = make("label", "order"), input = make("input");
    input.type = "radio";
    input.name = "order";
    input.value = order.name;
    input.checked = index === 0;
    input.addEventListener("change", () => chooseOrder(index));
    const best = Math.min(...ORDERS.map((o) => o.peak));
    const more = best && order.peak > best ? `, +${((order.peak / best - 1) * 100).toFixed(1)} %` : "";
    const note = order.name === DATA.default ? " (default)" : "";
    label.append(
      input,
      make("span", "name", order.name + note),
      make("b", "", size(order.peak) + more),
      make("span", "", `${size(order.bound)} alive, ${size(order.outputs)} outputs, ` +
        `${size(order.scratch)} scratch, ${order.steps.length} steps`),
      make("canvas"),
    );
    element("orders").append(label);
  });
}

function fillTable() {
  const order = current(), body = element("alive").tBodies[0], step = order.steps[view.cursor];
  body.replaceChildren();
  if (!step) {
    element("step-title").textContent = "No step is left to run";
    return;
  }
  const isPeak = view.cursor === order.peakStep ? ", the peak" : "";
  element("step-title").textContent =
    `Step ${view.cursor + 1} of ${order.steps.length}${isPeak}: ${step.name}, ${size(order.needs[view.cursor])} alive`;
  element("step-note").textContent = `${step.op}, run by ${step.kernel}`;
  const alive = order.tensors.filter((t) => t.start <= view.cursor && view.cursor <= t.end)
    .sort((a, b) => b.bytes - a.bytes || a.start - b.start);
  for (const tensor of alive.slice(0, ROWS)) body.append(rowOf(order, tensor));
  if (alive.length > ROWS) {
    const rest = alive.slice(ROWS), row = make("tr"), cell = make("td", "", `${rest.length} more`);
    cell.colSpan = 5;
    row.append(make("td", "number", size(rest.reduce((sum, t) => sum + t.bytes, 0))), cell);
    body.append(row);
  }
}

function rowOf(order, tensor) {
  const row = make("tr", tensor === view.chosen ? "chosen" : "");
  const kind = tensor.kind > SCRATCH ? ` (${KINDS[tensor.kind]})` : "";
  row.append(
    make("td", "number", size(tensor.bytes)),
    make("td", "", tensor.name + kind),
    make("td", "", tensor.type),
    make("td", "", tensor.maker),
    make("td", "number", `${tensor.start + 1}\u2013${tensor.end + 1}`),
    make("td", "number", String(tensor.idle)),
  );
  row.cells[0].style.borderLeftColor = colour(palette, order, tensor, order.tensors.indexOf(tensor));
  for (const cell of row.cells) cell.title = cell.textContent;
  row.tabIndex = 0;
  row.addEventListener("click", () => choose(row, tensor));
  row.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(row, tensor);
  });
  return row;
}

// Marks the band of one tensor; a second time, none.
function choose(row, tensor) {
  const isNew = view.chosen !== tensor || !view.found;
  for (const other of element("alive").tBodies[0].rows) other.classList.remove("chosen");
  row.classList.toggle("chosen", isNew);
  element("find").value = "";
  view.chosen = isNew ? tensor : null;
  view.found = isNew ? new Set([tensor]) : null;
  redraw();
}

function fillLegend() {
  const entries = [...OP_HUES].map(([op, hue]) => [`hsl(${hue} ${palette.vivid} ${palette.light})`, `made by ${op}`]);
  entries.push([palette.scratch, "scratch"], [palette.other, "other and tiny"]);
  element("legend").replaceChildren(...entries.map(([fill, text]) => {
    const entry = make("span", "", text), patch = make("i");
    patch.style.background = fill;
    entry.prepend(patch);
    return entry;
  }));
}

// The tensor under a point of the chart.
function tensorAt(x, y) {
  if (x < scale.left || x > scale.right || y > scale.bottom) return null;
  const step = scale.step(x), bytes = scale.bytes(y);
  if (view.mode === "place") {
    const here = current().tensors.filter((t) =>
      t.start <= step && step <= t.drawn && t.height <= bytes && bytes < t.height + t.bytes);
    return here[here.length - 1] || null;
  }
  const alive = aliveAt(current(), step);
  const isTiny = (t) => t.bytes * scale.perByte < TINY;
  let height = alive.filter(isTiny).reduce((sum, t) => sum + t.bytes, 0);
  for (const tensor of alive) {
    if (isTiny(tensor)) continue;
    if (height <= bytes && bytes < height + tensor.bytes) return tensor;
    height += tensor.bytes;
  }
  return null;
}

function showTip(event) {
  const tip = element("tip"), box = element("chart").getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  const tensor = scale && tensorAt(x, y), order = current();
  const step = scale && scale.step(x), at = step === null ? undefined : order.steps[step];
  tip.hidden = !at || x < scale.left;
  if (tip.hidden) return;
  const lines = tensor
    ? [tensor.name, `${tensor.type}${tensor.kind ? `, ${KINDS[tensor.kind]}` : ""}`, `${size(tensor.bytes)} (${tensor.bytes} bytes)`,
      `made by ${tensor.maker} in step ${tensor.made + 1}`,
      tensor.start < tensor.made ? `held from step ${tensor.start + 1}, where its first part is made` : "",
      `held until step ${tensor.end + 1}, ${order.steps[tensor.end].name}`,
      tensor.idle ? `idle for up to ${tensor.idle} steps` : ""]
    : [`step ${step + 1}: ${at.name}`, at.op, `${size(order.needs[step])} alive`];
  tip.replaceChildren(...lines.filter(Boolean).map((text, i) => make(i ? "div" : "b", "", text)));
  tip.style.left = `${clamp(x + 14, 0, Math.max(0, box.width - tip.offsetWidth - 4))}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > box.height ? Math.max(0, y - tip.offsetHeight - 10) : y + 18}px`;
}

// Marks tensors whose name or maker holds the text; what else is there fades.
function search() {
  const wanted = element("find").value.trim().toLowerCase();
  view.found = !wanted ? null : new Set(current().tensors.filter((t) =>
    t.name.toLowerCase().includes(wanted) || t.maker.toLowerCase().includes(wanted)));
  redraw();
}

const ACTIONS = {
  in: () => zoom(0.5),
  out: () => zoom(2),
  whole: () => show(0, count()),
  peak: () => {
    moveTo(current().peakStep);
    const span = Math.min(view.to - view.from, 60);
    show(view.cursor - span / 2, view.cursor + span / 2);
  },
};

const KEYS = {
  ArrowLeft: (jump) => moveTo(view.cursor - jump),
  ArrowRight: (jump) => moveTo(view.cursor + jump),
  Home: () => moveTo(0),
  End: () => moveTo(count() - 1),
  "+": ACTIONS.in, "=": ACTIONS.in, "-": ACTIONS.out, 0: ACTIONS.whole, p: ACTIONS.peak, P: ACTIONS.peak,
};

function listenToChart() {
  const chart = element("chart");
  chart.addEventListener("keydown", (event) => {
    const action = KEYS[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    action(event.shiftKey ? 10 : 1);
    event.preventDefault();
  });
  chart.addEventListener("pointerleave", () => { element("tip").hidden = true; });
  chart.addEventListener("wheel", turnWheel, { passive: false });
  listenToDrags(chart);
}

// With Ctrl, or by a pinch, the wheel zooms; sideways it moves. Otherwise it is the page's.
function turnWheel(event) {
  const zooms = event.ctrlKey || event.metaKey;
  if (!scale || !(zooms || Math.abs(event.deltaX) > Math.abs(event.deltaY))) return;
  event.preventDefault();
  if (zooms) {
    const x = event.clientX - event.currentTarget.getBoundingClientRect().left;
    const around = view.from + (x - scale.left) / scale.perStep;
    zoom(Math.exp(clamp(event.deltaY, -100, 100) / 200), clamp(around, view.from, view.to));
  } else {
    show(view.from + event.deltaX / scale.perStep, view.to + event.deltaX / scale.perStep);
  }
}

// A drag moves the steps that are shown, a click goes to one.
function listenToDrags(chart) {
  let held = null;
  chart.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, from: view.from, to: view.to, moved: false };
    chart.setPointerCapture(event.pointerId);
  });
  chart.addEventListener("pointermove", (event) => {
    if (!held) return showTip(event);
    if (Math.abs(event.clientX - held.x) > 4) held.moved = true;
    if (held.moved && scale) {
      const steps = (event.clientX - held.x) / scale.perStep;
      element("tip").hidden = true;
      show(held.from - steps, held.to - steps);
    }
  });
  chart.addEventListener("pointerup", (event) => {
    if (held && !held.moved && scale) {
      const box = chart.getBoundingClientRect();
      view.chosen = tensorAt(event.clientX - box.left, event.clientY - box.top);
      moveTo(scale.step(event.clientX - box.left));
    }
    held = null;
  });
  chart.addEventListener("pointercancel", () => { held = null; });
}

function listenToOverview() {
  const overview = element("overview");
  const go = (event) => {
    if (!(event.buttons & 1)) return;
    const box = overview.getBoundingClientRect(), span = view.to - view.from;
    const middle = ((event.clientX - box.left) / box.width) * count();
    show(middle - span / 2, middle + span / 2);
  };
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    go(event);
  });
  overview.addEventListener("pointermove", go);
}

function listen() {
  listenToChart();
  listenToOverview();
  element("find").addEventListener("input", search);
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", () => ACTIONS[button.dataset.do]());
  }
  for (const input of document.querySelectorAll("[name=mode]")) {
    input.addEventListener("change", () => {
      view.mode = input.value;
      redraw();
    });
  }
  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    palette = readPalette();
    fillLegend();
    fillTable();
    redraw();
  });
}

function begin() {
  element("shapes").textContent = DATA.shapes;
  buildOrders();
  element("advice").append(...(DATA.advice.length ? DATA.advice : ["Nothing stands out."]).map((text) => make("li", "", text)));
  fillLegend();
  listen();
  chooseOrder(0);
  document.documentElement.dataset.ready = "1";
}

begin();
