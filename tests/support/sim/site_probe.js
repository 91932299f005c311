// In a page around a page of the site, which is in a frame: says how far it sticks out of the frame,
// which of its elements do that are in no box that scrolls, and what is broken or without a name.
"use strict";
addEventListener("load", () => {
  const frame = document.getElementById("page"), inside = frame.contentWindow;
  const page = frame.contentDocument, wide = inside.innerWidth, said = [];
  said.push("overflows " + Math.max(0, page.documentElement.scrollWidth - wide));
  const scrolls = one => ["auto", "scroll", "hidden"].includes(inside.getComputedStyle(one).overflowX);
  for (const one of page.querySelectorAll(".md-content *")) {
    let around = one.parentElement;
    while (around && !scrolls(around)) around = around.parentElement;
    const box = one.getBoundingClientRect();
    if (!around && box.width && box.right > wide + 0.5) said.push(`CUT ${one.tagName} ${Math.round(box.right)}`);
  }
  for (const image of page.images) {
    if (!image.complete || !image.naturalWidth) said.push("BROKEN " + image.src);
    if (!image.alt) said.push("NO TEXT " + image.src);
  }
  for (const link of page.querySelectorAll(".md-content a[href]:not(.headerlink)")) {
    if (!link.textContent.trim() && !link.querySelector("img")) said.push("NO NAME " + link.href);
  }
  said.push("headings " + page.querySelectorAll(".md-content h1").length);
  document.getElementById("said").textContent = said.join("\n");
});
