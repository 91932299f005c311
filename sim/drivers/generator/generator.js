// The form of the generator: blocks, presets and parameters are in `globalThis.generator`; a click starts
// a thread that makes the Verilog. The address may name a block: generate.html?block=kllm.orizuru.
"use strict";
(() => {
  const SHOWN = 200_000; // characters of Verilog in the page; the file to download has all
  const { megabytes, blocks } = globalThis.generator;

  function element(tag, properties = {}, ...inside) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...inside);
    return made;
  }
  const options = names => names.map(name => element("option", { value: name }, name));

  function build(root) {
    const base = new URL("generator/", document.baseURI);
    const block = element("select", { name: "block" }, ...options(Object.keys(blocks)));
    const preset = element("select", { name: "preset" });
    const summary = element("p"), parameters = element("div", { className: "generator-parameters" });
    const go = element("button", { type: "submit" }, `Load ${megabytes} MB and generate`);
    const stop = element("button", { type: "button", disabled: true }, "Stop");
    const command = element("code"), status = element("p", { className: "generator-status" });
    const saves = element("p", { className: "generator-files" }), shown = element("code");
    const verilog = element("pre", { hidden: true, tabIndex: 0 }, shown);
    verilog.setAttribute("aria-label", "Verilog");
    status.setAttribute("role", "status");
    let worker = null, began = 0;

    // What differs from the preset, as the command line takes it.
    const settings = () => Object.entries(blocks[block.value].presets[preset.value])
      .map(([name, value]) => [name, String(value), form.elements[`set ${name}`].value.trim()])
      .filter(([, value, typed]) => value !== typed)
      .map(([name, , typed]) => `${name}=${typed}`);
    const quoted = word => /^[\w.=+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
    function describe() {
      const sets = settings().map(setting => ` --set ${quoted(setting)}`).join("");
      command.textContent = `python -m hw verilog ${block.value} --preset ${preset.value}${sets}`;
    }
    function fill() {
      const { presets, parameters: meanings } = blocks[block.value];
      parameters.replaceChildren(...Object.entries(presets[preset.value]).map(([name, value]) => {
        const yesNo = typeof value === "boolean";
        const input = yesNo
          ? element("select", {}, ...options(["true", "false"]))
          : element("input", { inputMode: typeof value === "number" ? "numeric" : "text", autocomplete: "off", spellcheck: false });
        Object.assign(input, { name: `set ${name}`, value: String(value), id: `generator-${name}` });
        input.setAttribute("aria-describedby", `${input.id}-is`);
        const label = element("label", { htmlFor: input.id }, element("code", {}, name));
        return element("div", {}, label, input, element("small", { id: `${input.id}-is` }, meanings[name]));
      }));
      describe();
    }
    function choose() {
      const { presets, preset: usual, summary: says, source } = blocks[block.value];
      preset.replaceChildren(...options(Object.keys(presets)));
      preset.value = usual;
      const page = element("a", { href: `blocks/${block.value}.html` }, "its page");
      summary.replaceChildren(`${says} (${source}); `, page, ".");
      fill();
    }
    function say(text, is = "") {
      status.textContent = text;
      status.dataset.is = is;
    }
    function end() {
      go.disabled = false;
      stop.disabled = true;
    }
    function drop() {
      worker?.terminate();
      worker = null;
      go.textContent = `Load ${megabytes} MB and generate`;
      end();
    }
    function show(files) {
      for (const link of saves.querySelectorAll("a")) URL.revokeObjectURL(link.href);
      saves.replaceChildren(...Object.entries(files).map(([name, text]) =>
        element("a", { href: URL.createObjectURL(new Blob([text])), download: name }, `Save ${name}`)));
      const [text] = Object.values(files), cut = text.length > SHOWN;
      shown.textContent = cut ? text.slice(0, text.lastIndexOf("\n", SHOWN) + 1) : text;
      verilog.hidden = false;
      const rest = cut ? " The page shows the first part." : "";
      const seconds = ((performance.now() - began) / 1000).toFixed(1);
      say(`${text.split("\n").length - 1} lines of Verilog in ${seconds} s.${rest}`, "done");
    }
    function answer({ data }) {
      if (data.begun) {
        began = performance.now();
        go.textContent = "Generate";
        say("Generating.");
      } else {
        end();
        if (data.files) show(data.files);
        else say(`${data.error}.`.replace(/\.\.$/, "."), "error");
      }
    }
    function generate(event) {
      event.preventDefault();
      go.disabled = true;
      stop.disabled = false;
      saves.replaceChildren();
      verilog.hidden = true;
      if (!worker) {
        say("Loading Python and Yosys.");
        worker = new Worker(new URL("worker.js", base), { type: "module" });
        worker.addEventListener("message", answer);
        worker.addEventListener("error", () => { drop(); say("The generator could not be loaded.", "error"); });
      }
      worker.postMessage({ block: block.value, preset: preset.value, settings: settings() });
    }

    const labelled = (text, control) => element("label", {}, `${text} `, control);
    const form = element("form", { noValidate: true },
      element("div", { className: "generator-row" }, labelled("Block", block), labelled("Preset", preset)),
      summary, parameters, element("div", { className: "generator-row" }, go, stop), element("p", {}, command));
    form.addEventListener("submit", generate);
    form.addEventListener("input", ({ target }) => { if (target === block) choose(); else if (target === preset) fill(); else describe(); });
    stop.addEventListener("click", () => { drop(); say("Stopped."); });
    const asked = new URLSearchParams(location.search).get("block");
    if (Object.hasOwn(blocks, asked ?? "")) block.value = asked;
    choose();
    root.replaceChildren(form, status, saves, verilog);
    if (location.protocol === "file:") {
      go.disabled = true;
      say("The generator needs a web server: run `python3 -m http.server -d build/site` and open http://localhost:8000/generate.html.", "error");
    }
  }

  for (const root of document.querySelectorAll(".generator")) build(root);
})();
