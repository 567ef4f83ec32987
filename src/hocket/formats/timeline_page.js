"use strict";
// What the page shows: `data` is written by timeline_page.py, whose docstrings say what is in it.
const data = JSON.parse(document.getElementById("data").textContent);
const element = (id) => document.getElementById(id);
const canvas = element("lanes"), scroller = element("scroll"), gutter = element("gutter"), details = element("details");
const context = canvas.getContext("2d");

const AXIS = 24; // height of the axis, as that of #corner
const MOST_ARROWS = 1500; // transfers in view that are drawn, besides those of the chosen step
const LOWEST = 5, HIGHEST = 60; // of a lane, in pixels

// ---- The timelines: spans of each lane in order of time, and messages of each span.

for (const [number, timeline] of data.timelines.entries()) {
  timeline.number = number;
  timeline.lanes = data.schedules[timeline.schedule].lanes;
  timeline.of = timeline.lanes.map(() => []);
  timeline.arriving = new Map();
  timeline.leaving = new Map();
  const { lane, begin } = timeline.spans;
  lane.forEach((at, span) => timeline.of[at].push(span));
  for (const spans of timeline.of) spans.sort((a, b) => begin[a] - begin[b] || a - b);
  const { sent, received } = timeline.messages;
  sent.forEach((span, message) => {
    put(timeline.leaving, span, message);
    put(timeline.arriving, received[message], message);
  });
}

function put(map, key, value) {
  if (map.has(key)) map.get(key).push(value);
  else map.set(key, [value]);
}

const first = Math.min(0, ...data.timelines.map((t) => t.spans.begin.reduce((a, b) => Math.min(a, b), 0)));
const last = Math.max(...data.timelines.map((t) => t.spans.end.reduce((a, b) => Math.max(a, b), t.total))) || 1;

function stepOf(timeline, span) {
  return timeline.lanes[timeline.spans.lane[span]].steps[timeline.spans.step[span]];
}

// ---- What is looked at.

const view = { from: first, to: last, chosen: null, under: null, height: 0, leaving: false };
let rows = [];

function whole() {
  const margin = (last - first) * 0.01;
  view.from = first - margin;
  view.to = last + margin;
}

function zoom(factor, at = (view.from + view.to) / 2) {
  const least = (last - first) * 1e-6, most = (last - first) * 1.1;
  const wide = Math.min(most, Math.max(least, (view.to - view.from) / factor));
  const part = (at - view.from) / (view.to - view.from);
  view.from = at - part * wide;
  view.to = view.from + wide;
  pan(0);
}

function pan(by) {
  const wide = view.to - view.from, margin = Math.max(0.05 * (last - first), 0.5 * wide);
  const from = Math.min(last + margin - wide, Math.max(first - margin, view.from + by));
  view.from = wide > last - first ? Math.min(first, Math.max(last - wide, view.from + by)) : from;
  view.to = view.from + wide;
  refresh();
}

function higher(factor) {
  view.height = Math.min(HIGHEST, Math.max(LOWEST, view.height * factor));
  lay();
}

// ---- Rows: titles, lanes and links, with labels in the gutter.

function lay() {
  const paired = element("paired").checked;
  rows = [];
  gutter.replaceChildren(element("corner"));
  const groups = paired ? [data.timelines] : data.timelines.map((timeline) => [timeline]);
  for (const timelines of groups) {
    const title = timelines.map((t) => t.title).join(" / ");
    const totals = timelines.map((t) => time(t.total)).join(" / ");
    row("section", 28, totals, { title }).setAttribute("aria-label", `${title}: ${totals}`);
    const lanes = timelines.flatMap((t) => t.lanes.map((lane, number) => ({ t, lane, number })));
    if (paired) lanes.sort((a, b) => a.lane.rank - b.lane.rank || a.t.number - b.t.number);
    let before = null;
    for (const { t, lane, number } of lanes) {
      const same = before && before.t === t && before.lane.rank === lane.rank;
      if (!same) gap(before && before.lane.rank === lane.rank ? 1 : Math.min(6, view.height / 3));
      laneRow(t, lane, number, !same, paired);
      before = { t, lane };
    }
    for (const t of timelines) linkRows(t);
  }
  refresh();
}

function row(kind, height, text, more = {}) {
  const label = document.createElement("div");
  const top = rows.length ? rows[rows.length - 1].top + rows[rows.length - 1].height : AXIS;
  label.className = `row ${kind}`;
  label.style.height = `${height}px`;
  label.textContent = text;
  label.setAttribute("role", kind === "gap" ? "presentation" : "listitem");
  gutter.append(label);
  rows.push({ kind, top, height, label, ...more });
  return label;
}

function gap(height) {
  row("gap", height, "");
}

function laneRow(timeline, lane, number, firstOfRank, paired) {
  const label = row("lane", view.height, "", { timeline, lane: number });
  const size = Math.min(12, Math.max(9, view.height - 1));
  label.style.fontSize = `${size}px`;
  label.setAttribute("aria-label", `${timeline.title}, rank ${lane.rank}, thread block ${lane.block}: ${lane.label}`);
  label.dataset.rank = lane.rank;
  label.dataset.block = lane.block;
  const name = document.createElement("b");
  if (firstOfRank && view.height >= 9) name.textContent = `rank ${lane.rank}` + (paired ? ` ${word(timeline)}` : "");
  const rest = document.createElement("span");
  if (view.height >= 10) rest.textContent = lane.label;
  label.append(name, rest);
}

function word(timeline) {
  // What tells a timeline from the others.
  const first = ({ title }) => title.split(/[:,]/)[0];
  return data.timelines.filter((t) => first(t) === first(timeline)).length > 1 ? timeline.title : first(timeline);
}

function linkRows(timeline) {
  if (!timeline.links.length) return;
  row("links", 26, "links: share of their bandwidth");
  const used = ({ use }) => use.reduce((sum, [begin, end, share]) => sum + (end - begin) * share, 0);
  for (const link of timeline.links) {
    const label = row("link", 20, "", { timeline, link });
    label.style.fontSize = "11px";
    const name = document.createElement("span"), share = document.createElement("span");
    name.textContent = link.name;
    share.textContent = `${((100 * used(link)) / (timeline.total || 1)).toFixed(0)} %`;
    label.setAttribute("aria-label", `${timeline.title}, link ${link.name}, on average ${share.textContent} used`);
    label.append(name, share);
  }
}

// ---- Drawing.

let colours = {}, hatch = null, pending = false;

function theme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "band", "ink", "faint", "rule", "wait", "arrow", "link", "focus", "edge"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = colours.wait;
  pen.lineWidth = 1;
  pen.globalAlpha = 0.7;
  for (const x of [-6, 0, 6]) {
    pen.moveTo(x, 6);
    pen.lineTo(x + 6, 0);
  }
  pen.stroke();
  hatch = context.createPattern(tile, "repeat");
}

function refresh() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    draw();
  });
}

function size() {
  return { wide: canvas.clientWidth, tall: canvas.clientHeight };
}

function fit() {
  canvas.style.height = `${scroller.clientHeight}px`;
  const { wide, tall } = size(), scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(wide * scale);
  canvas.height = Math.round(tall * scale);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  refresh();
}

const x = (at) => ((at - view.from) / (view.to - view.from)) * size().wide;
const when = (at) => view.from + (at / size().wide) * (view.to - view.from);

function draw() {
  const { wide, tall } = size(), scrolled = scroller.scrollTop;
  const scale = wide / (view.to - view.from);
  const across = (at) => (at - view.from) * scale;
  context.fillStyle = colours.ground;
  context.fillRect(0, 0, wide, tall);
  const ticks = axisTicks(wide);
  const seen = rows.filter((r) => r.top + r.height > scrolled + AXIS && r.top < scrolled + tall);
  for (const r of seen) {
    r.y = r.top - scrolled;
    if (r.kind === "lane") fill(colours.band, 0, r.y, wide, r.height);
  }
  for (const { at } of ticks) fill(colours.rule, Math.round(across(at)), AXIS, 1, tall);
  for (const r of seen) {
    if (r.kind === "lane") drawLane(r, across, wide);
    else if (r.kind === "link") drawLink(r, across, wide);
    else if (r.kind === "section") writeTitle(r);
  }
  for (const t of data.timelines) {
    const edge = across(t.total);
    for (const r of seen) if (r.timeline === t) fill(colours.faint, edge, r.y, 1, r.height);
  }
  const hidden = drawArrows(across, scrolled, wide, tall);
  drawChosen(across, scrolled);
  drawAxis(ticks, across, wide);
  canvas.dataset.from = view.from;
  canvas.dataset.to = view.to;
  element("status").textContent = hidden
    ? `${hidden} transfers in view: zoom in, or choose a step, to see them` : "";
}

function fill(colour, left, top, wide, tall) {
  context.fillStyle = colour;
  context.fillRect(left, top, wide, tall);
}

function lowest(spans, begin, at) {
  // The number of spans, in order, that begin before a time.
  let low = 0, high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (begin[spans[middle]] < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawLane(r, across, wide) {
  const { begin, end, waited } = r.timeline.spans, spans = r.timeline.of[r.lane];
  const pad = r.height > 14 ? 2 : r.height > 7 ? 1 : 0.5, top = r.y + pad, tall = r.height - 2 * pad;
  let drawn = -1;
  context.font = `${Math.min(11, tall - 1)}px "DejaVu Sans", Verdana, Arial, sans-serif`;
  context.textBaseline = "middle";
  for (let i = Math.max(0, lowest(spans, begin, view.from) - 1); i < spans.length; i++) {
    const span = spans[i], left = across(begin[span]), right = across(end[span]);
    const waits = across(begin[span] - waited[span]);
    if (waits > wide) break;
    if (left - waits > 1.5) fill(hatch, waits, r.y + r.height * 0.35, left - waits, r.height * 0.3);
    if (right < 0 || (right < drawn && left < drawn)) continue;
    const step = stepOf(r.timeline, span), opcode = data.opcodes[step.opcode];
    const long = Math.max(1, right - left - (right - left > 4 ? 0.75 : 0));
    context.globalAlpha = step.moves ? 1 : 0.45;
    fill(opcode.colour, left, top, long, tall);
    context.globalAlpha = 1;
    drawn = Math.max(left + 0.7, right - 0.3);
    if (long > 26 && tall >= 9) writeStep(step, opcode, left, long, top + tall / 2 + 0.5);
  }
}

function writeStep(step, opcode, left, long, middle) {
  const from = Math.max(left, 0), room = left + long - from - 6;
  const text = [step.text, opcode.name].find((words) => context.measureText(words).width <= room);
  if (text === undefined) return;
  context.fillStyle = step.moves ? opcode.ink : colours.ink;
  context.fillText(text, from + 3, middle);
}

function writeTitle(r) {
  context.font = 'bold 13px "DejaVu Sans", Verdana, Arial, sans-serif';
  context.textBaseline = "middle";
  context.fillStyle = colours.ink;
  context.fillText(r.title, 8, r.y + r.height / 2);
}

function drawLink(r, across, wide) {
  // The mean share in each column of pixels.
  const columns = new Float32Array(Math.ceil(wide) + 1);
  for (const [begin, end, share] of r.link.use) {
    const left = Math.max(0, across(begin)), right = Math.min(wide, across(end));
    for (let c = Math.floor(left); c < right; c++) columns[c] += share * (Math.min(right, c + 1) - Math.max(left, c));
  }
  const top = r.y + 2, tall = r.height - 4;
  fill(colours.band, 0, top, wide, tall);
  context.fillStyle = colours.link;
  columns.forEach((share, c) => {
    const high = tall * Math.min(1, share);
    if (high > 0) context.fillRect(c, top + tall - high, 1, high);
  });
}

function middles() {
  // The middle of each lane, of each timeline, from the top of all rows.
  const found = data.timelines.map(() => []);
  for (const r of rows) if (r.kind === "lane") found[r.timeline.number][r.lane] = r.top + r.height / 2;
  return found;
}

function drawArrows(across, scrolled, wide, tall) {
  // Returns how many in view are not drawn.
  if (!element("arrows").checked) return 0;
  const at = middles(), found = [];
  let many = 0;
  for (const t of data.timelines) {
    const { lane, begin, end } = t.spans, { sent, received } = t.messages;
    for (let m = 0; m < sent.length; m++) {
      const left = across(end[sent[m]]), right = across(begin[received[m]]);
      if (Math.max(left, right) < 0 || Math.min(left, right) > wide) continue;
      const from = at[t.number][lane[sent[m]]] - scrolled, to = at[t.number][lane[received[m]]] - scrolled;
      if (Math.max(from, to) < AXIS || Math.min(from, to) > tall) continue;
      if (++many <= MOST_ARROWS) found.push([left, from, right, to]);
    }
  }
  if (many > MOST_ARROWS) return many;
  context.globalAlpha = many < 150 ? 0.75 : many < 500 ? 0.45 : 0.25;
  for (const ends of found) drawArrow(...ends, colours.arrow, 1);
  context.globalAlpha = 1;
  return 0;
}

function drawArrow(left, from, right, to, colour, wide) {
  const bend = Math.max(6, Math.min(40, Math.abs(right - left) / 2));
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = wide;
  context.beginPath();
  context.moveTo(left, from);
  context.bezierCurveTo(left + bend, from, right - bend, to, right - 4, to);
  context.stroke();
  context.beginPath();
  context.moveTo(right, to);
  context.lineTo(right - 6, to - 3);
  context.lineTo(right - 6, to + 3);
  context.fill();
}

function drawChosen(across, scrolled) {
  const at = middles();
  for (const [mark, wide] of [[view.under, 1.5], [view.chosen, 2.5]]) {
    if (!mark) continue;
    const { timeline: t, span } = mark, height = view.height - 1;
    const frame = (s, dash) => {
      const left = across(t.spans.begin[s]), long = Math.max(3, across(t.spans.end[s]) - left);
      context.strokeStyle = colours.focus;
      context.lineWidth = wide;
      context.setLineDash(dash);
      context.strokeRect(left - 1, at[t.number][t.spans.lane[s]] - scrolled - height / 2, long + 2, height);
      context.setLineDash([]);
    };
    frame(span, []);
    if (mark === view.chosen) for (const other of waitsOf(t, span)) frame(other, [3, 2]);
    for (const m of [...(t.arriving.get(span) ?? []), ...(t.leaving.get(span) ?? [])]) {
      const sent = t.messages.sent[m], received = t.messages.received[m];
      const from = at[t.number][t.spans.lane[sent]] - scrolled, to = at[t.number][t.spans.lane[received]] - scrolled;
      drawArrow(across(t.spans.end[sent]), from, across(t.spans.begin[received]), to, colours.focus, wide);
    }
  }
}

function axisTicks(wide) {
  const least = ((view.to - view.from) / wide) * 90, power = 10 ** Math.floor(Math.log10(least));
  const every = power * [1, 2, 5, 10].find((n) => n * power >= least);
  const thousands = Math.max(Math.abs(view.from), Math.abs(view.to)) >= 10000 && every >= 1;
  const digits = Math.max(0, -Math.floor(Math.log10(every / (thousands ? 1000 : 1)) + 1e-9));
  const marks = [];
  for (let n = Math.ceil(view.from / every); n * every <= view.to; n++) {
    const text = ((n * every) / (thousands ? 1000 : 1)).toFixed(digits);
    marks.push({ at: n * every, text: `${text} ${thousands ? "ms" : "\u00b5s"}` });
  }
  return marks;
}

function drawAxis(ticks, across, wide) {
  fill(colours.ground, 0, 0, wide, AXIS - 1);
  fill(colours.rule, 0, AXIS - 1, wide, 1);
  context.font = '11px "DejaVu Sans", Verdana, Arial, sans-serif';
  context.textBaseline = "middle";
  context.fillStyle = colours.faint;
  for (const { at, text } of ticks) {
    context.fillRect(Math.round(across(at)), AXIS - 6, 1, 5);
    const left = Math.round(across(at)) + 4;
    if (left + context.measureText(text).width < wide) context.fillText(text, left, AXIS / 2);
  }
}

// ---- Words.

function time(us) {
  const size = Math.abs(us);
  if (size >= 1e6) return `${digits(us / 1e6)} s`;
  if (size >= 1e4) return `${digits(us / 1e3)} ms`;
  return `${size < 1e-3 ? "0" : digits(us)} \u00b5s`;
}

function digits(number) {
  return Math.abs(number) >= 1000 ? number.toFixed(0) : Number(number.toPrecision(4)).toString();
}

function bytes(number) {
  if (number >= 1 << 20) return `${digits(number / (1 << 20))} MB`;
  return number >= 1 << 10 ? `${digits(number / (1 << 10))} KB` : `${number} B`;
}

function place(timeline, span) {
  const lane = timeline.lanes[timeline.spans.lane[span]];
  return `rank ${lane.rank}, thread block ${lane.block}, step ${timeline.spans.step[span]}`;
}

function tiles(timeline) {
  timeline.tiles ??= 1 + timeline.spans.tile.reduce((a, b) => Math.max(a, b), 0);
  return timeline.tiles;
}

// ---- The step that is chosen.

function spanOf(timeline, rank, block, step, tile) {
  const lane = timeline.lanes.findIndex((l) => l.rank === rank && l.block === block), s = timeline.spans;
  return lane < 0 ? undefined : timeline.of[lane].find((span) => s.step[span] === step && s.tile[span] === tile);
}

function waitsOf(timeline, span) {
  const { rank } = timeline.lanes[timeline.spans.lane[span]];
  const tile = timeline.spans.tile[span], { waits } = stepOf(timeline, span);
  const found = waits.map(([block, step]) => spanOf(timeline, rank, block, step, tile));
  return found.filter((other) => other !== undefined);
}

function choose(timeline, span, show = false) {
  view.leaving = false;
  view.chosen = timeline ? { timeline, span } : null;
  if (timeline) {
    canvas.dataset.chosen = `${timeline.number}:${span}`;
    if (show) bringIntoView(timeline, span);
    describe(timeline, span);
  } else {
    delete canvas.dataset.chosen;
    summarize();
  }
  refresh();
}

function bringIntoView(timeline, span) {
  const { begin, end, lane } = timeline.spans, wide = view.to - view.from;
  if (begin[span] < view.from || end[span] > view.to) pan((begin[span] + end[span]) / 2 - wide / 2 - view.from);
  const r = rows.find((one) => one.timeline === timeline && one.lane === lane[span]);
  if (r.top < scroller.scrollTop + AXIS) scroller.scrollTop = r.top - AXIS;
  else if (r.top + r.height > scroller.scrollTop + scroller.clientHeight) {
    scroller.scrollTop = r.top + r.height - scroller.clientHeight;
  }
}

function node(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function leap(text, timeline, span) {
  const button = node("button", text);
  button.addEventListener("click", () => {
    choose(timeline, span, true);
    canvas.focus();
  });
  return node("li", "", button);
}

function list(title, items) {
  return items.length ? [node("h3", title), node("ul", "", ...items)] : [];
}

function describe(timeline, span) {
  const { spans, messages } = timeline, step = stepOf(timeline, span), opcode = data.opcodes[step.opcode];
  const facts = node("dl");
  const say = (name, value) => facts.append(node("dt", name), node("dd", value));
  say("where", `${place(timeline, span)}`);
  if (tiles(timeline) > 1) say("tile", `${spans.tile[span]}, of 0 to ${tiles(timeline) - 1}`);
  facts.append(node("dt", "step"), node("dd", "", node("code", step.text)));
  say("begins", time(spans.begin[span]));
  say("ends", time(spans.end[span]));
  say("takes", time(spans.end[span] - spans.begin[span]));
  say("waited", time(spans.waited[span]));
  const message = (m, other, direction) => {
    const over = messages.over[m].map((link) => timeline.names[link]).join(", ");
    const text = `${direction} ${place(timeline, other)}: ${bytes(messages.bytes[m])}${over ? `, over ${over}` : ""}`;
    return leap(text, timeline, other);
  };
  const lines = step.where.flatMap((number) => {
    const [where, source] = data.lines[number];
    return [node("div", "", node("code", where)), ...(source ? [node("pre", source)] : [])];
  });
  const others = data.timelines.filter((t) => t !== timeline).flatMap((t) => {
    const lane = timeline.lanes[spans.lane[span]];
    const same = spanOf(t, lane.rank, lane.block, spans.step[span], spans.tile[span]);
    if (same === undefined || stepOf(t, same).text !== step.text) return [];
    const begin = t.spans.begin[same];
    return [leap(`${word(t)}: begins ${time(begin)}, takes ${time(t.spans.end[same] - begin)}`, t, same)];
  });
  details.replaceChildren(
    node("h2", opcode.meaning + (step.moves ? "" : " (moves nothing)")), facts,
    ...list("it waits for", waitsOf(timeline, span).map((other) => leap(place(timeline, other), timeline, other))),
    ...list("it receives", (timeline.arriving.get(span) ?? []).map((m) => message(m, messages.sent[m], "from"))),
    ...list("it sends", (timeline.leaving.get(span) ?? []).map((m) => message(m, messages.received[m], "to"))),
    ...list("the same step", others),
    ...(lines.length ? [node("h3", "line of the program"), ...lines] : []),
  );
}

function summarize() {
  const parts = [node("p", "Click a step, or go into the lanes and press Tab.")];
  for (const t of data.timelines) {
    const heads = ["opcode", "times", "all", "mean"].map((head) => node("th", head));
    const table = node("table", "", node("tr", "", ...heads));
    const many = new Map();
    t.spans.lane.forEach((_, span) => {
      const sum = many.get(stepOf(t, span).opcode) ?? [0, 0];
      many.set(stepOf(t, span).opcode, [sum[0] + 1, sum[1] + t.spans.end[span] - t.spans.begin[span]]);
    });
    const line = (...cells) => table.append(node("tr", "", ...cells.map((cell) => node("td", cell))));
    for (const [opcode, [times, all]] of [...many].sort((a, b) => b[1][1] - a[1][1])) {
      line(data.opcodes[opcode].name, String(times), time(all), time(all / times));
    }
    const waited = t.spans.waited.reduce((a, b) => a + b, 0);
    line("waited", "", time(waited), time(waited / (t.spans.waited.length || 1)));
    table.prepend(node("caption", "summed over all thread blocks"));
    parts.push(node("h2", `${t.title}: ${time(t.total)}`), table);
  }
  details.replaceChildren(...parts);
}

// ---- Mouse.

function spanAt(event) {
  const box = canvas.getBoundingClientRect(), down = event.clientY - box.top;
  if (down < AXIS) return null;
  const y = down + scroller.scrollTop, r = rows.find((one) => one.top <= y && y < one.top + one.height);
  if (!r || r.kind !== "lane") return r ? { row: r } : null;
  const { begin, end } = r.timeline.spans, spans = r.timeline.of[r.lane], at = event.clientX - box.left;
  const next = lowest(spans, begin, when(at));
  const distance = (span) => Math.max(0, x(begin[span]) - at, at - x(end[span]));
  const near = [next - 2, next - 1, next, next + 1].filter((i) => i >= 0 && i < spans.length).map((i) => spans[i]);
  near.sort((a, b) => distance(a) - distance(b));
  return near.length && distance(near[0]) <= 3 ? { row: r, timeline: r.timeline, span: near[0] } : { row: r };
}

function hover(event) {
  const found = spanAt(event), tip = element("tip"), at = when(event.clientX - canvas.getBoundingClientRect().left);
  view.under = found?.timeline ? found : null;
  let text = "";
  if (view.under) {
    const { begin, end } = found.timeline.spans, span = found.span;
    text = `${stepOf(found.timeline, span).text} \u00b7 ${time(end[span] - begin[span])}`;
  } else if (found?.row.kind === "link") {
    const now = found.row.link.use.find(([begin, end]) => begin <= at && at < end);
    text = `${found.row.link.name}: ${(100 * (now ? now[2] : 0)).toFixed(0)} % at ${time(at)}`;
  }
  tip.hidden = !text;
  tip.textContent = text;
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 4)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 4)}px`;
  refresh();
}

let held = null;
canvas.addEventListener("pointerdown", (event) => {
  if (event.button) return;
  held = { x: event.clientX, y: event.clientY, from: view.from, top: scroller.scrollTop, moved: false };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (!held) return hover(event);
  const right = event.clientX - held.x, down = event.clientY - held.y;
  held.moved ||= Math.hypot(right, down) > 4;
  if (!held.moved) return undefined;
  element("tip").hidden = true;
  pan(held.from - (right / size().wide) * (view.to - view.from) - view.from);
  scroller.scrollTop = held.top - down;
  return undefined;
});
canvas.addEventListener("pointerup", (event) => {
  if (held && !held.moved) {
    const found = spanAt(event);
    choose(found?.timeline ?? null, found?.span);
  }
  held = null;
});
canvas.addEventListener("pointercancel", () => (held = null));
canvas.addEventListener("pointerleave", () => {
  view.under = null;
  element("tip").hidden = true;
  refresh();
});
canvas.addEventListener("dblclick", (event) => zoom(2, when(event.clientX - canvas.getBoundingClientRect().left)));
canvas.addEventListener("wheel", (event) => {
  const sideways = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
  if (event.ctrlKey || event.metaKey) {
    zoom(Math.exp(-event.deltaY / 200), when(event.clientX - canvas.getBoundingClientRect().left));
  } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
    pan((sideways / size().wide) * (view.to - view.from));
  } else return;
  event.preventDefault();
}, { passive: false });

// ---- Keyboard.

function next(by) {
  // Chooses the step after the chosen one, or before it; false at the end.
  const lanes = rows.filter((r) => r.kind === "lane" && r.timeline.of[r.lane].length);
  if (!lanes.length) return false;
  let row = lanes.findIndex((r) => view.chosen && r.timeline === view.chosen.timeline
    && r.lane === r.timeline.spans.lane[view.chosen.span]);
  let number;
  if (row < 0) {
    row = Math.max(0, lanes.findIndex((r) => r.top >= scroller.scrollTop + AXIS));
    number = by > 0 ? 0 : lanes[row].timeline.of[lanes[row].lane].length - 1;
  } else {
    number = lanes[row].timeline.of[lanes[row].lane].indexOf(view.chosen.span) + by;
    if (number < 0 || number >= lanes[row].timeline.of[lanes[row].lane].length) {
      row += by;
      if (row < 0 || row >= lanes.length) return false;
      number = by > 0 ? 0 : lanes[row].timeline.of[lanes[row].lane].length - 1;
    }
  }
  choose(lanes[row].timeline, lanes[row].timeline.of[lanes[row].lane][number], true);
  return true;
}

const about = () => {
  const { chosen } = view;
  if (!chosen) return undefined;
  const at = (chosen.timeline.spans.begin[chosen.span] + chosen.timeline.spans.end[chosen.span]) / 2;
  return view.from <= at && at <= view.to ? at : undefined;
};
const KEYS = {
  ArrowLeft: () => pan((view.from - view.to) / 8),
  ArrowRight: () => pan((view.to - view.from) / 8),
  ArrowUp: () => (scroller.scrollTop -= 60),
  ArrowDown: () => (scroller.scrollTop += 60),
  "+": () => zoom(1.5, about()),
  "=": () => zoom(1.5, about()),
  "-": () => zoom(1 / 1.5, about()),
  "[": () => higher(1 / 1.25),
  "]": () => higher(1.25),
  Home: () => {
    whole();
    scroller.scrollTop = 0;
    refresh();
  },
  Enter: () => view.chosen && details.focus(),
  Escape: () => {
    choose(null);
    view.leaving = true;
    canvas.focus();
  },
};
canvas.addEventListener("blur", () => (view.leaving = false));
document.addEventListener("keydown", (event) => {
  const inLanes = document.activeElement === canvas;
  const typed = "[]".includes(event.key) && !event.metaKey; // by AltGr or Option on many keyboards
  if ((event.ctrlKey || event.metaKey || event.altKey) && !typed) return;
  if (event.key === "Tab") {
    if (inLanes && !view.leaving && next(event.shiftKey ? -1 : 1)) event.preventDefault();
    return;
  }
  if (!Object.hasOwn(KEYS, event.key)) return;
  if (event.target.closest("button, input, summary") && event.key !== "Escape") return;
  if (details.contains(event.target) && event.key.startsWith("Arrow")) return;
  if (event.key === "Enter" && !inLanes) return;
  KEYS[event.key]();
  event.preventDefault();
});

// ---- The page.

function legend() {
  const entry = (kind, text, colour) => {
    const box = node("i"), item = node("li", "", box, text);
    item.className = kind;
    if (colour) box.style.background = colour;
    element("legend").append(item);
  };
  for (const { meaning, colour } of data.opcodes) entry("opcode", meaning, colour);
  const steps = data.schedules.flatMap((s) => s.lanes.flatMap((lane) => lane.steps));
  if (steps.some((step) => !step.moves)) entry("quiet", "pale: moves nothing");
  entry("wait", "waits");
  if (data.timelines.some((t) => t.messages.sent.length)) entry("transfer", "transfer");
  if (data.timelines.some((t) => t.links.length)) entry("link", "use of a link");
}

element("in").addEventListener("click", () => zoom(1.5, about()));
element("out").addEventListener("click", () => zoom(1 / 1.5, about()));
element("all").addEventListener("click", KEYS.Home);
element("lower").addEventListener("click", KEYS["["]);
element("higher").addEventListener("click", KEYS["]"]);
element("arrows").addEventListener("change", refresh);
element("paired").addEventListener("change", lay);
element("pairing").hidden = data.timelines.length < 2;
scroller.addEventListener("scroll", refresh);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  theme();
  refresh();
});
new ResizeObserver(fit).observe(scroller);
new ResizeObserver(fit).observe(gutter);

theme();
legend();
const laneCount = data.timelines.reduce((sum, t) => sum + t.lanes.length, 0);
view.height = Math.min(30, Math.max(11, (scroller.clientHeight - AXIS - 60) / Math.max(1, laneCount) - 2));
whole();
lay();
fit();
summarize();
