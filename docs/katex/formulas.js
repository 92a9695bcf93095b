// Draws the formulas of a page; without it they can be read as they were written.
"use strict";

for (const formula of document.querySelectorAll(".arithmatex")) {
  const written = formula.textContent.trim();
  katex.render(written.slice(2, -2), formula, { displayMode: written.startsWith("\\["), throwOnError: false });
}
