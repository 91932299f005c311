"use strict";
const story = JSON.parse(document.getElementById("data").textContent);
const tokens = [...document.querySelectorAll(".token")];
const steps = story.cycles.length;  // tokens that the model read; the last one made was not
const hasCache = story.kept !== undefined;
const pick = { token: steps - 1, layer: 0, head: 0 };
const byId = name => document.getElementById(name);
const grouped = number => number.toLocaleString("en");
const quoted = position => `“${story.pieces[position].trim() || "␣"}” (${position})`;

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}

function choose(token) {
  pick.token = token;
  show();
}

function show() {
  const step = Math.min(pick.token, steps - 1);
  const kept = hasCache ? story.kept[pick.layer][pick.head][step] : [];
  tokens.forEach((token, position) => {
    token.classList.toggle("chosen", position === pick.token);
    token.classList.toggle("later", position > pick.token);
    token.classList.toggle("gone", hasCache && position <= step && !kept.includes(position));
    token.tabIndex = position === pick.token ? 0 : -1;
    token.setAttribute("aria-current", position === pick.token);
  });
  byId("said").textContent = sentence(step, kept);
  if (hasCache) {
    byId("left").textContent = left(step);
    byId("layer-shown").textContent = pick.layer;
    draw(step, kept);
  }
}

function sentence(step, kept) {
  if (pick.token >= steps) return `${quoted(pick.token)} was made last and not read again.`;
  let said = `Token ${quoted(pick.token)}: ${grouped(story.cycles[step])} cycles`;
  if (!hasCache) return `${said}.`;
  said += ` in all layers, ${grouped(story.layer_cycles[pick.layer][step])} of attention in layer ${pick.layer}.`;
  if (story.product_cycles) {
    const names = ["q k v", "o", "gate up", "down"];
    said += ` Products: ${names.map((name, i) => `${name} ${grouped(story.product_cycles[step][i])}`).join(", ")} cycles.`;
  }
  const out = story.evicted[pick.layer][pick.head][step];
  const fate = out.length ? `${out.map(quoted).join(", ")} was voted out` : "nothing was evicted";
  return `${said} Afterwards its cache has ${kept.length} ${kept.length === 1 ? "row" : "rows"}; ${fate}.`;
}

// Positions that left in a step, each with the layers (and heads) in which they did.
function left(step) {
  const where = new Map();
  story.evicted.forEach((layer, index) => layer.forEach((head, number) => {
    const place = layer.length > 1 ? `${index}.${number}` : `${index}`;
    for (const position of head[step]) where.set(position, [...(where.get(position) || []), place]);
  }));
  if (!where.size) return "Nothing, in no layer.";
  const sorted = [...where].sort((a, b) => b[1].length - a[1].length);
  return sorted.map(([position, places]) => `${quoted(position)} in ${places.length > 1 ? "layers" : "layer"} ${places.join(", ")}`).join("; ") + ".";
}

// One picture: cycles above, the cache over time below, votes of the chosen step beside it.
function draw(step, kept) {
  const width = Math.max(300, byId("plot").clientWidth), narrow = width < 560;
  const label = narrow ? 62 : 104, votesWide = narrow ? 56 : 160, top = 58, gap = narrow ? 8 : 20;
  const row = Math.max(3, Math.min(13, 560 / steps)), height = top + row * steps + 34;
  const column = (width - label - votesWide - gap - 22) / steps;
  const x = token => label + token * column, y = position => top + position * row;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "rows of the cache over time" });
  svg.append(element("rect", { class: "column", x: x(step), y: 0, width: column, height: top + row * steps }));

  const most = Math.max(...story.cycles);
  story.cycles.forEach((cycles, token) => {
    const tall = 40 * cycles / most;
    svg.append(element("rect", { class: token === step ? "now" : "now dim", x: x(token) + 1, y: 50 - tall, width: Math.max(1, column - 2), height: tall }));
  });
  svg.append(element("text", { x: label - 6, y: 18, "text-anchor": "end" }, narrow ? grouped(most) : `${grouped(most)} cycles`));
  svg.append(element("line", { class: "axis", x1: label, x2: x(steps), y1: 50.5, y2: 50.5 }));

  const lives = story.kept[pick.layer][pick.head];
  for (let position = 0; position < steps; position++) {
    for (let from = 0; from < steps; from++) {
      if (!lives[from].includes(position)) continue;
      let to = from;
      while (to < steps && lives[to].includes(position)) to++;
      svg.append(element("rect", { class: position <= step ? "kept" : "kept dim", x: x(from), y: y(position) + 1, width: (to - from) * column, height: Math.max(1, row - 2), rx: 2 }));
      from = to;
    }
    if (row >= 9 || position % 10 === 0) {
      const text = story.pieces[position].trim() || "␣", room = narrow ? 7 : 12;
      svg.append(element("text", { x: label - 6, y: y(position) + row / 2 + 4, "text-anchor": "end" }, text.length > room ? `${text.slice(0, room - 1)}…` : text));
    }
  }
  story.evicted[pick.layer][pick.head].forEach((positions, token) => {
    for (const position of positions) svg.append(element("rect", { class: token <= step ? "out" : "out dim", x: x(token), y: y(position) + 1, width: Math.max(3, column - 1), height: Math.max(2, row - 2), rx: 2 }));
  });

  const votes = story.votes[pick.layer][pick.head][step], largest = Math.max(1, ...votes), start = x(steps) + gap;
  kept.forEach((position, index) => {
    const count = votes[index], long = votesWide * Math.max(0, count) / largest;
    svg.append(element("rect", { class: "kept", x: start, y: y(position) + 1, width: Math.max(1, long), height: Math.max(1, row - 2) }));
    if (count >= 0 && row >= 9) svg.append(element("text", { x: start + long + 3, y: y(position) + row / 2 + 4 }, count));
  });
  svg.append(element("line", { class: "axis", x1: start, x2: start, y1: top, y2: y(steps) }));
  svg.append(element("text", { x: label, y: y(steps) + 14 }, "time: tokens read →"));
  svg.append(element("text", { x: start, y: y(steps) + 14 }, narrow ? "votes" : `votes after token ${step}`));
  svg.addEventListener("pointerdown", event => follow(event, svg, x));
  svg.addEventListener("pointermove", event => event.buttons && follow(event, svg, x));
  byId("plot").replaceChildren(svg);
}

function follow(event, svg, x) {
  const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
  const token = Math.floor((at - x(0)) / (x(1) - x(0)));
  if (token >= 0 && token < steps) choose(token);
}

tokens.forEach((token, position) => {
  token.setAttribute("role", "button");
  token.addEventListener("mouseenter", () => choose(position));
  token.addEventListener("click", () => choose(position));
  token.addEventListener("focus", () => pick.token !== position && choose(position));
});
byId("text").addEventListener("keydown", event => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const next = by && tokens[pick.token + by];
  if (next) { event.preventDefault(); choose(pick.token + by); next.focus(); }
});
if (hasCache) {
  byId("cache").hidden = false;
  byId("layer").addEventListener("input", event => { pick.layer = Number(event.target.value); show(); });
  const heads = story.kept[0].length;
  byId("head-choice").hidden = heads < 2;
  for (let head = 0; head < heads; head++) byId("head").append(new Option(head, head));
  byId("head").addEventListener("change", event => { pick.head = Number(event.target.value); show(); });
  addEventListener("resize", show);
}
show();
