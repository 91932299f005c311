// In a page around a page of the site, which is in a frame: runs axe-core, whose source is AXE, in
// the frame, and says which colours it saw and what breaks WCAG 2.1, levels A and AA, a line a rule
// with the first of its elements.
"use strict";
addEventListener("load", async () => {
  const inside = document.getElementById("page").contentWindow;
  inside.eval(AXE);
  const found = await inside.axe.run(inside.document, {
    resultTypes: ["violations"],
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
  });
  const lines = found.violations.map(
    rule => `${rule.id} (${rule.nodes.length}): ${rule.nodes[0].target.join(" ")}`);
  const said = [inside.document.body.dataset.mdColorScheme, ...lines, `rules ${found.passes.length > 5}`];
  document.getElementById("said").textContent = said.join("\n");
});
