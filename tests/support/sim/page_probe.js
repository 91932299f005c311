// In a page around the page to test, which is in a frame: chooses tokens, notes what is shown and
// what sticks out of the frame or of a drawing.
"use strict";
addEventListener("load", () => {
  const frame = document.getElementById("page"), inside = frame.contentWindow;
  const page = frame.contentDocument, wide = inside.innerWidth, cut = [], said = [];
  inside.addEventListener("error", event => said.push("error: " + event.message));
  function sees(name) {
    for (const one of page.querySelectorAll("body *")) {
      if (one.closest("svg") && one.tagName !== "svg") continue;
      const box = one.getBoundingClientRect();
      if (box.width && (box.right > wide + 0.5 || box.left < -0.5)) {
        cut.push(`${name} ${one.tagName} ${one.className} ${Math.round(box.right)}`);
      }
    }
    for (const one of page.querySelectorAll("#plot text, .tile text")) {
      const box = one.getBoundingClientRect(), around = one.closest("svg").getBoundingClientRect();
      if (box.right > around.right + 1 || box.left < around.left - 1) {
        cut.push(`${name} text ${one.textContent}`);
      }
    }
    said.push(name + " overflows " + Math.max(0, page.documentElement.scrollWidth - wide));
  }
  sees("first");
  for (const token of [0, 9, page.querySelectorAll(".token").length - 1]) {
    page.querySelectorAll(".token")[token].click();
    said.push("chose " + token + ": " + page.getElementById("said").textContent);
    sees("token" + token);
  }
  const layer = page.getElementById("layer");
  layer.value = layer.max;
  layer.dispatchEvent(new inside.Event("input"));
  page.querySelectorAll(".token")[9].focus();
  page.activeElement.dispatchEvent(new inside.KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  said.push("then " + page.querySelector(".token.chosen").dataset.token + " layer " + page.getElementById("layer-shown").textContent);
  said.push("bars " + page.querySelectorAll("#plot rect.kept").length + " out " + page.querySelectorAll("#plot rect.out").length);
  said.push("gone " + page.querySelectorAll(".token.gone").length);
  document.getElementById("said").textContent = said.concat(cut.map(one => "CUT " + one)).join("\n");
});
