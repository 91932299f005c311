// Runs the blocks of a page: each element of class "live" gets buttons, streams and registers of the
// design that its data-block names. A block's file has put description and WebAssembly in liveBlocks.
"use strict";
(() => {
  const SHOWN = 32; // cycles of a strip
  const EXTRA = 16; // beats too many after which a run ends
  const SLOW = 1 / 3; // a slow side's chance to offer or take a beat in a cycle
  const FRAMES = 90, FRAME_MS = 16, CHUNK = 4000;
  const STALLS = { none: "no stalls", source: "slow source", sink: "slow sink" };
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  // A compiled design: its ports, registers and memories by name, and steps.
  class Design {
    constructor(module) {
      const system = {};
      for (const { module: from, name } of WebAssembly.Module.imports(module)) {
        // What the C++ library asks of an operating system; a design asks nothing.
        (system[from] ??= {})[name] = () => { if (name === "proc_exit") throw new Error("the design has ended"); return 0; };
      }
      this.code = new WebAssembly.Instance(module, system).exports;
      this.code._initialize?.();
      this.ports = new Map();
      this.state = []; // registers, and each row of a memory
      for (let i = 0, count = this.code.list(); i < count; i++) {
        const width = this.code.width(i), words = Math.ceil(width / 32), depth = this.code.depth(i);
        const name = this.text(this.code.name(i)).replaceAll(" ", "."), next = this.code.next(i);
        const at = row => ({ width, words, current: this.code.current(i) + 4 * words * row, next: next && next + 4 * words * row });
        if (this.code.port(i)) this.ports.set(name, at(0));
        else for (let row = 0; row < depth; row++) this.state.push({ name: depth > 1 ? `${name}[${row}]` : name, ...at(row) });
      }
      this.state.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    }
    text(at) {
      const bytes = new Uint8Array(this.code.memory.buffer, at);
      return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
    }
    get(item) {
      const words = new Uint32Array(this.code.memory.buffer, item.current, item.words);
      return words.reduceRight((value, word) => (value << 32n) | BigInt(word), 0n);
    }
    set(item, value, at = item.next || item.current) {
      const words = new Uint32Array(this.code.memory.buffer, at, item.words);
      for (let i = 0; i < item.words; i++) words[i] = Number((value >> BigInt(32 * i)) & 0xffffffffn);
    }
    // A bit of a register that is stuck: forced in the register and in what it would be next.
    force({ item, bit, one }) {
      const mask = 1n << BigInt(bit), value = this.get(item);
      const forced = one ? value | mask : value & ~mask;
      this.set(item, forced, item.current);
      if (item.next) this.set(item, forced, item.next);
    }
    edge(level) {
      this.set(this.ports.get("clk"), BigInt(level));
      this.code.step();
    }
  }

  // The same pseudo-random numbers from 0 to 1 in each run.
  function drawing(seed) {
    let state = seed;
    return () => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      return state / 2 ** 32;
    };
  }

  // One run of a block from reset, cycle by cycle.
  class Run {
    constructor(about, module, stalls, fault) {
      Object.assign(this, { about, stalls, cycle: 0, last: -1, complete: false, end: null, wrong: null, equal: 0 });
      this.design = new Design(module);
      this.fault = fault && { ...fault, item: this.design.state[fault.number] };
      const random = drawing(1);
      this.streams = about.streams.map(stream => ({
        ...stream, random, moved: 0, offers: false, seen: null, history: [],
        ...Object.fromEntries(["valid", "ready", "payload"].map(flag => [flag, this.design.ports.get(`${stream.name}__${flag}`)])),
      }));
      this.outputs = this.streams.filter(stream => stream.direction === "output");
      this.expected = this.outputs.reduce((sum, stream) => sum + stream.beats.length, 0);
      const reset = this.design.ports.get("rst");
      for (const level of [1n, 1n, 0n]) {
        this.design.set(reset, level);
        this.design.edge(0);
        if (level) this.clock();
      }
    }
    clock() {
      this.design.edge(1);
      if (this.fault) this.design.force(this.fault);
    }
    step() {
      if (this.end) return;
      const { design } = this;
      for (const stream of this.streams) {
        if (stream.direction === "input") {
          const left = stream.moved < stream.beats.length;
          // What is offered stays until it is taken.
          stream.offers = left && (stream.offers || this.stalls !== "source" || stream.random() < SLOW);
          design.set(stream.valid, BigInt(stream.offers));
          design.set(stream.payload, stream.offers ? BigInt(`0x${stream.beats[stream.moved]}`) : 0n);
        } else design.set(stream.ready, BigInt(this.stalls !== "sink" || stream.random() < SLOW));
      }
      design.edge(0); // what depends on inputs alone settles
      for (const stream of this.streams) this.watch(stream);
      this.clock();
      this.cycle++;
      this.finish();
    }
    watch(stream) {
      const valid = this.design.get(stream.valid), moves = valid && this.design.get(stream.ready);
      // The cycles that follow the last beat, in which none too many may come, would empty the strips.
      if (!this.complete || moves) stream.history.push(moves ? "beat" : valid ? "wait" : "idle");
      if (stream.history.length > SHOWN) stream.history.shift();
      if (!moves) return;
      stream.seen = this.design.get(stream.payload);
      if (stream.direction === "output") this.compare(stream);
      stream.moved++;
      stream.offers = false;
      this.last = this.cycle;
    }
    compare(stream) {
      const beat = stream.moved, where = `stream ${stream.name}, beat ${beat}, cycle ${this.cycle}`;
      if (beat >= stream.beats.length) return void (this.wrong ??= `${where}: a beat too many`);
      const expected = BigInt(`0x${stream.beats[beat]}`);
      if (stream.seen === expected) return void this.equal++;
      const pairs = decoded(stream, expected).map((field, at) => [field, decoded(stream, stream.seen)[at]]);
      const [want, got] = pairs.find(([one, other]) => one.bits !== other.bits);
      this.wrong ??= `${where}: ${want.name} is ${got.text}, not ${want.text}`;
    }
    finish() {
      const silent = this.cycle - 1 - this.last;
      this.complete = this.outputs.every(stream => stream.moved >= stream.beats.length);
      const flood = this.outputs.some(stream => stream.moved >= stream.beats.length + EXTRA);
      if (flood || (this.complete && silent >= this.about.drain)) this.end = "done";
      else if (silent >= this.about.timeout) this.end = "hangs";
    }
    get passed() { return this.end === "done" && !this.wrong && this.equal === this.expected && !this.late; }
    // Whether a run that nothing disturbs took another number of cycles than the block's formula says.
    get late() { return this.end === "done" && !this.fault && this.stalls === "none" && this.last + 1 !== this.about.cycles; }
    get verdict() {
      const beats = `${this.equal} of ${this.expected} beats equal the golden model`;
      if (this.end === "hangs") return `Hangs: no beat moved in ${this.about.timeout} cycles. ${beats}.${this.wrong ? ` The first that differs: ${this.wrong}.` : ""}`;
      if (this.wrong) return `${beats}. The first that differs: ${this.wrong}.`;
      if (!this.end) return `${beats} so far.`;
      const formula = this.late ? `; the formula says ${this.about.cycles}` : "";
      return `${beats}, in ${this.last + 1} cycles${formula}.`;
    }
  }

  // Leaf fields of a payload, of an array one for all elements: name, bits and text.
  function decoded(stream, value) {
    return stream.fields.map(field => {
      let offsets = [field.offset];
      for (const { count, stride } of field.arrays ?? []) {
        offsets = offsets.flatMap(offset => Array.from({ length: count }, (_, i) => offset + stride * i));
      }
      const bits = offsets.map(offset => BigInt.asUintN(field.width, value >> BigInt(offset)));
      const texts = bits.map(one => number(one, field));
      const name = field.name.replaceAll("[]", "") || stream.name;
      return { name, bits: bits.join(), text: field.arrays ? `[${texts.join(", ")}]` : texts[0] };
    });
  }

  // A field's value as its number format says; see hw/layout.py.
  function number(bits, { width, signed, format, fraction_bits: fraction, values }) {
    const integer = signed ? BigInt.asIntN(width, bits) : bits;
    if (format === "fp16") return float(Number(bits), 5, 10);
    if (format === "bf16") return float(Number(bits), 8, 7);
    if (format === "fixed") return `${Number((Number(integer) / 2 ** fraction).toPrecision(6))}`;
    if (format === "mask" || format === "one_hot") return `0b${bits.toString(2).padStart(width, "0")}`;
    const named = Object.entries(values ?? {}).find(([, one]) => BigInt(one) === bits);
    return named ? named[0] : `${integer}`;
  }

  function float(bits, exponents, fractions) {
    const sign = bits >> (exponents + fractions) ? "-" : "", most = 2 ** exponents - 1;
    const exponent = (bits >> fractions) & most, fraction = bits & (2 ** fractions - 1);
    if (exponent === most) return fraction ? "NaN" : `${sign}inf`;
    const value = (fraction / 2 ** fractions + (exponent ? 1 : 0)) * 2 ** ((exponent || 1) - (most >> 1));
    return sign + Number(value.toPrecision(5));
  }

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  // Shows runs of one block in an element.
  class View {
    constructor(root, about) {
      this.about = about;
      this.module = new WebAssembly.Module(Uint8Array.from(atob(about.wasm), letter => letter.charCodeAt(0)));
      this.timer = 0;
      this.steps = make("button", { type: "button" }, "Step");
      this.runs = make("button", { type: "button" }, "Run");
      this.resets = make("button", { type: "button" }, "Reset");
      this.stalls = make("select", {}, ...Object.entries(STALLS).map(([value, text]) => make("option", { value }, text)));
      this.fault = make("select", {}, make("option", { value: "" }, "no fault"));
      this.bit = make("input", { type: "number", min: 0, max: 0, value: 0 });
      this.stuck = make("select", {}, make("option", { value: 0 }, "0"), make("option", { value: 1 }, "1"));
      this.clock = make("span", { class: "live-clock" });
      this.verdict = make("p", { class: "live-verdict", role: "status", "aria-live": "polite" });
      this.lanes = about.streams.map(stream => this.lane(stream));
      this.table = make("tbody");
      this.restart();
      this.rows = this.run.design.state.map((item, at) => {
        this.fault.append(make("option", { value: at }, `${item.name}, ${item.width} bit${item.width > 1 ? "s" : ""}`));
        const value = make("td");
        this.table.append(make("tr", {}, make("th", { scope: "row" }, item.name), value));
        return { value, seen: null };
      });
      root.replaceChildren(this.controls(), this.verdict, ...this.lanes.map(lane => lane.root), this.registers());
      root.setAttribute("role", "group");
      root.setAttribute("aria-label", `${about.block}, live`);
      this.steps.onclick = () => { this.pause(); this.run.step(); this.draw(true); };
      this.runs.onclick = () => (this.timer ? this.pause() : this.go());
      this.resets.onclick = () => { this.restart(); this.draw(true); };
      for (const control of [this.stalls, this.fault, this.bit, this.stuck]) {
        control.onchange = () => { this.restart(); this.draw(true); };
      }
      this.draw(true);
    }
    controls() {
      const named = (text, control) => make("label", {}, `${text} `, control);
      return make("div", { class: "live-controls" }, this.steps, this.runs, this.resets, this.clock,
        named("Stalls", this.stalls), named("Fault", this.fault), named("bit", this.bit), named("stuck at", this.stuck));
    }
    lane(stream) {
      const cells = Array.from({ length: SHOWN }, () => make("i"));
      const strip = make("span", { class: "live-strip", role: "img" }, ...cells);
      const count = make("span", { class: "live-count" }), last = make("span", { class: "live-last" });
      const name = make("b", { title: stream.description }, stream.direction === "input" ? `→ ${stream.name}` : `${stream.name} →`);
      return { root: make("div", { class: "live-stream" }, name, strip, count, last), cells, strip, count, last };
    }
    registers() {
      const head = make("tr", {}, make("th", { scope: "col" }, "register"), make("th", { scope: "col" }, "value"));
      const table = make("table", { class: "live-registers" }, make("thead", {}, head), this.table);
      const box = make("div", { class: "live-scroll", tabindex: 0, role: "region", "aria-label": `registers of ${this.about.block}` }, table);
      return make("details", { open: "" }, make("summary", {}, `${this.rows.length} registers and rows of memories`), box);
    }
    restart() {
      this.pause();
      const number = this.fault.value;
      if (number !== "") {
        const most = this.run.design.state[number].width - 1;
        this.bit.max = most;
        this.bit.value = Math.max(0, Math.min(most, Math.trunc(Number(this.bit.value))));
      }
      this.bit.disabled = this.stuck.disabled = number === "";
      const fault = number === "" ? null : { number: Number(number), bit: Number(this.bit.value), one: this.stuck.value === "1" };
      this.run = new Run(this.about, this.module, this.stalls.value, fault);
    }
    pause() {
      clearTimeout(this.timer);
      this.timer = 0;
      this.runs.textContent = "Run";
    }
    go() {
      if (this.run.end) this.restart();
      this.runs.textContent = "Pause";
      const usual = Math.ceil(this.about.cycles / FRAMES);
      const frame = () => {
        // A silent block is watched in larger steps, and without motion a run is only shown as it ends.
        const silent = this.run.cycle - this.run.last > 4 * SHOWN;
        const steps = calm.matches ? CHUNK : silent ? 16 * usual : usual;
        for (let i = 0; i < steps && !this.run.end; i++) this.run.step();
        this.timer = this.run.end ? 0 : setTimeout(frame, FRAME_MS);
        if (!this.timer) this.pause();
        if (!calm.matches || !this.timer) this.draw(!this.timer);
      };
      frame();
    }
    // What changed since the last picture. `speak`: also the verdict, which a screen reader reads out.
    draw(speak) {
      const { run } = this;
      this.clock.textContent = `cycle ${run.cycle}`;
      run.streams.forEach((stream, at) => {
        const lane = this.lanes[at], idle = SHOWN - stream.history.length;
        lane.cells.forEach((cell, i) => (cell.className = stream.history[i - idle] ?? "none"));
        const counts = ["beat", "wait"].map(kind => stream.history.filter(one => one === kind).length);
        lane.strip.setAttribute("aria-label", `last ${stream.history.length} cycles: a beat in ${counts[0]}, waiting in ${counts[1]}`);
        lane.count.textContent = `${stream.moved} of ${stream.beats.length} beats`;
        const fields = stream.seen === null ? [] : decoded(stream, stream.seen).map(field => `${field.name} ${field.text}`);
        lane.last.textContent = fields.join(" · ") || "no beat yet";
      });
      this.rows.forEach((row, at) => {
        const item = run.design.state[at], value = run.design.get(item);
        row.value.className = row.seen !== null && row.seen !== value ? "live-changed" : "";
        if (row.seen !== value) row.value.textContent = item.width > 8 ? `0x${value.toString(16)}` : `${value}`;
        row.seen = value;
      });
      if (speak || run.wrong) {
        const text = run.verdict;
        if (this.verdict.textContent !== text) this.verdict.textContent = text;
      }
      this.verdict.dataset.is = run.passed ? "pass" : run.wrong || run.end ? "fail" : "open";
    }
  }

  for (const root of document.querySelectorAll(".live")) {
    const about = globalThis.liveBlocks?.[root.dataset.block];
    if (about) new View(root, about);
  }
})();
