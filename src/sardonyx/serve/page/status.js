"use strict";
// The status page: reads status.json every two seconds and draws it. Text is only ever set as text.

const PERIOD_MS = 2000;
const WIDTH = 360;
const HEIGHT = 104;
const BASE = 84; // of the bars
let token = "";
let before = null; // the previous answer, for rates

const byId = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function drawn(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function seconds(s) {
  if (s === null || !isFinite(s)) return "–";
  if (s < 1e-3) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${+(s * 1e3).toPrecision(3)} ms`;
  return `${+s.toPrecision(3)} s`;
}

function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (n >= 1000 && unit < 4) { n /= 1000; unit += 1; }
  return `${+n.toPrecision(3)} ${units[unit]}`;
}

function span(s) {
  if (s < 120) return `${Math.floor(s)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

function count(n) {
  return Math.round(n).toLocaleString("en");
}

function rate(n) {
  return n < 10 ? (+n.toFixed(1)).toString() : count(n);
}

// A cumulative Prometheus histogram as [upper bound, count] of each bucket, in order.
function buckets(histogram) {
  if (!histogram) return [];
  const rows = histogram.buckets.map(([le, n]) => [Number(le.replace("+Inf", "Infinity")), n]);
  rows.sort((a, b) => a[0] - b[0]);
  return rows.map(([le, n], i) => [le, n - (i ? rows[i - 1][1] : 0)]);
}

// Interpolated within its bucket, as Prometheus does.
function quantile(rows, q) {
  const total = rows.reduce((sum, row) => sum + row[1], 0);
  if (!total) return null;
  let rank = q * total, low = 0;
  for (const [high, n] of rows) {
    if (n >= rank) return isFinite(high) ? low + (high - low) * (rank / n) : low;
    rank -= n;
    low = high;
  }
  return low;
}

function chart(title, rows, format, summary) {
  const figure = element("figure");
  const caption = element("figcaption");
  caption.append(element("b", title), ` ${summary}`);
  figure.append(caption);
  const used = rows.map((row, i) => (row[1] ? i : -1)).filter((i) => i >= 0);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
                             preserveAspectRatio: "xMinYMid",
                             "aria-label": `${title}: ${summary}` });
  svg.append(drawn("line", { class: "axis", x1: 0, x2: WIDTH, y1: BASE + 0.5, y2: BASE + 0.5 }));
  const first = Math.max(0, used[0] - 1), last = Math.min(rows.length - 1, used.at(-1) + 1);
  const shown = rows.slice(first, last + 1);
  const most = Math.max(...shown.map((row) => row[1]));
  const total = rows.reduce((sum, row) => sum + row[1], 0);
  const width = WIDTH / shown.length;
  const every = Math.ceil(shown.length / 8);
  let below = rows.slice(0, first).reduce((sum, row) => sum + row[1], 0);
  shown.forEach(([le, n], i) => {
    const height = n ? Math.max(2, (n / most) * (BASE - 14)) : 0;
    const isMid = below <= total / 2 && below + n > total / 2;
    below += n;
    const bar = drawn("rect", { class: isMid ? "bar mid" : "bar", x: i * width + 1,
                                y: BASE - height, width: Math.max(1, width - 2), height, rx: 2 });
    bar.append(drawn("title", {}, `${count(n)} up to ${isFinite(le) ? format(le) : "more"}`));
    svg.append(bar);
    if (i % every === 0) {
      const label = isFinite(le) ? format(le) : "more";
      const isWide = !i && width < 40; // the first label would begin outside of the drawing
      svg.append(drawn("text", { x: isWide ? 0 : (i + 0.5) * width, y: HEIGHT - 6,
                                 "text-anchor": isWide ? "start" : "middle" }, label));
    }
  });
  figure.append(svg);
  return figure;
}

function facts(pairs) {
  const list = element("dl");
  for (const [name, value, className] of pairs) {
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value, className));
    list.append(pair);
  }
  return list;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function requestsOf(model) {
  return sum(Object.values(model.codes ?? {}));
}

function perSecond(now, read) {
  if (!before || now.now <= before.now) return null;
  return Math.max(0, (read(now) - read(before)) / (now.now - before.now));
}

function tiles(status) {
  const total = (s) => sum(s.models.map(requestsOf));
  const perS = perSecond(status, total);
  const items = [
    [perS === null ? "–" : rate(perS), "requests per second"],
    [count(total(status)), "requests"],
    [count(status.active), "being answered"],
    [bytes(status.memory_bytes), status.workers > 1 ? "memory of this worker" : "memory"],
    [span(status.uptime_s), "since the start"],
  ];
  if (status.workers > 1) items.push([count(status.workers), "workers"]);
  return items.map(([value, name]) => {
    const tile = element("div", undefined, "tile");
    tile.append(element("b", value), element("small", name));
    return tile;
  });
}

function tensors(model) {
  const details = element("details");
  details.dataset.key = `${model.name}/${model.version}`;
  details.append(element("summary", "Inputs and outputs"));
  const table = element("table");
  for (const [kind, specs] of [["in", model.inputs], ["out", model.outputs]]) {
    for (const spec of specs) {
      const row = element("tr");
      const shape = spec.shape.map((d) => (d < 0 ? "?" : d)).join(" × ");
      row.append(element("td", spec.name), element("td", spec.datatype),
                 element("td", shape || "scalar"), element("td", kind));
      table.append(row);
    }
  }
  details.append(table);
  return details;
}

function card(model, status) {
  const article = element("article");
  const head = element("div");
  const title = element("h2", `${model.name} `);
  title.append(element("span", `version ${model.version}`));
  const tone = { READY: "good", LOADING: "wait" }[model.state] ?? "bad";
  head.append(title, element("p", model.state.toLowerCase(), `badge ${tone}`));
  article.append(head);
  if (model.reason) article.append(element("p", model.reason, "note"));
  if (model.state !== "READY") return article;
  const same = (s) => s.models.find((m) => m.name === model.name && m.version === model.version);
  const perS = perSecond(status, (s) => requestsOf(same(s) ?? {}));
  const histograms = model.histograms ?? {};
  const latency = buckets(histograms.request_seconds), rows = buckets(histograms.batch_rows);
  const failed = requestsOf(model) - (model.codes?.OK ?? 0);
  const runs = histograms.run_seconds;
  article.append(facts([
    ["requests", count(requestsOf(model))],
    ["per second", perS === null ? "–" : rate(perS)],
    ["refused or failed", count(failed), failed ? "bad" : ""],
    ["queued", count(model.queued ?? 0)],
    ["mean run", runs?.count ? seconds(runs.sum / runs.count) : "–"],
    ["batching", model.batching],
    ["weights", bytes(model.bytes)],
    ["loaded in", seconds(model.load_s)],
  ]));
  if (!latency.some((row) => row[1])) {
    article.append(tensors(model));
    return article;
  }
  const charts = element("div", undefined, "charts");
  const marks = [0.5, 0.95, 0.99].map((q) => `p${q * 100} ${seconds(quantile(latency, q))}`);
  const batch = histograms.batch_rows;
  const mean = batch?.count ? `mean ${+(batch.sum / batch.count).toPrecision(3)}` : "";
  charts.append(chart("Latency", latency, seconds, marks.join(" · ")),
                chart("Rows of a run", rows, String, mean));
  article.append(charts, tensors(model));
  return article;
}

function show(status) {
  const open = new Set([...document.querySelectorAll("details[open]")].map((d) => d.dataset.key));
  const tone = { ready: "good", starting: "wait" }[status.state] ?? "bad";
  byId("version").textContent = status.version;
  byId("state").textContent = status.state;
  byId("state").className = `badge ${tone}`;
  byId("tiles").replaceChildren(...tiles(status));
  byId("models").replaceChildren(...status.models.map((model) => card(model, status)));
  for (const details of document.querySelectorAll("details")) {
    details.open = open.has(details.dataset.key);
  }
  before = status;
  document.documentElement.dataset.ready = "1";
}

async function refresh() {
  try {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const response = await fetch("status.json", { headers, cache: "no-store" });
    byId("login").hidden = response.status !== 401;
    if (response.ok) show(await response.json());
    else byId("state").textContent = response.status === 401 ? "locked" : `error ${response.status}`;
  } catch {
    byId("state").textContent = "no answer";
    byId("state").className = "badge bad";
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  refresh();
});
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, PERIOD_MS);
