// Keeps a page fresh and lets sliders move; without it every page can still be read.
"use strict";

async function fill(target, address) {
  const answer = await fetch(address);
  if (answer.ok) target.innerHTML = await answer.text();
  reach();
}

// What scrolls sideways must be reached by keyboard, and what does not should not stop it.
function reach() {
  for (const wide of document.querySelectorAll("table, figure")) {
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
    else wide.removeAttribute("tabindex");
  }
}
reach();
addEventListener("resize", reach);

for (const live of document.querySelectorAll("[data-live]")) {
  const events = new EventSource(live.dataset.live);
  events.addEventListener("jobs", () => fill(live, live.dataset.from));
}

for (const slow of document.querySelectorAll("[data-every]")) {
  setInterval(() => document.hidden || fill(slow, slow.dataset.from), 1000 * slow.dataset.every);
}

const weights = document.querySelector("#weights");
if (weights) {
  let asked = 0;
  const weigh = async () => {
    for (const input of weights.querySelectorAll("input")) input.nextElementSibling.value = input.value;
    const mine = ++asked;
    const answer = await fetch(`${weights.dataset.from}?${new URLSearchParams(new FormData(weights))}`);
    if (answer.ok && mine === asked) document.querySelector("#weighed").innerHTML = await answer.text();
  };
  weights.addEventListener("input", weigh);
  weigh();
}
