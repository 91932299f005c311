// In a page around the page of live blocks, which is in a frame: runs every block, then with each fault
// that the element "faults" of this page names, and says each verdict.
"use strict";
addEventListener("load", async () => {
  const frame = document.getElementById("page"), inside = frame.contentWindow;
  const page = frame.contentDocument, said = [];
  inside.addEventListener("error", event => said.push("error: " + event.message));
  const wait = () => new Promise(done => setTimeout(done, 20));
  const change = (control, value) => {
    control.value = value;
    control.dispatchEvent(new inside.Event("change"));
  };
  async function run(root) {
    [...root.querySelectorAll("button")].find(button => button.textContent === "Run").click();
    for (let i = 0; i < 1000 && root.querySelector("button:nth-child(2)").textContent === "Pause"; i++) await wait();
    const verdict = root.querySelector(".live-verdict");
    return `${verdict.dataset.is}: ${verdict.textContent}`;
  }
  const overflows = () => Math.max(0, page.documentElement.scrollWidth - inside.innerWidth);
  for (const root of page.querySelectorAll(".live")) {
    const name = root.dataset.block, [stalls, fault, stuck] = root.querySelectorAll("select");
    for (const { value } of stalls.options) {
      change(stalls, value);
      said.push(`${name} ${value} ${await run(root)}`);
    }
    change(stalls, "none");
    for (const [register, bit, one] of FAULTS[name] ?? []) {
      change(fault, [...fault.options].find(option => option.textContent.startsWith(register + ",")).value);
      change(root.querySelector("input"), bit);
      change(stuck, one);
      said.push(`${name} ${register} ${bit} ${one} ${await run(root)}`);
    }
    said.push(`${name} overflows ${overflows()}`);
  }
  document.getElementById("said").textContent = said.concat("end").join("\n");
});
