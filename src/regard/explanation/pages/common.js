/* Shared by every page: making elements, reading the embedded data, colours, and saying aloud what goes wrong. */
"use strict";

window.addEventListener("error", (event) => {
  document.documentElement.dataset.error = event.message;
  const notice = document.createElement("p");
  notice.className = "page-error";
  notice.textContent = `This page could not be drawn: ${event.message}`;
  document.body.prepend(notice);
});

const readData = () => JSON.parse(document.getElementById("page-data").textContent);

/* Text always goes in as text: nothing that was embedded is ever read as HTML. */
function fillElement(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const make = (tag, attributes = {}, ...children) => fillElement(document.createElement(tag), attributes, children);
const makeSvg = (tag, attributes = {}, ...children) =>
  fillElement(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

let choiceGroups = 0;

/* A row of choices; `options` are pairs of value and words. */
function makeChoices(words, options, chosen, onChoose) {
  const group = `choice-${(choiceGroups += 1)}`;
  const labels = options.map(([value, text]) =>
    make("label", {},
      make("input", { type: "radio", name: group, checked: value === chosen, onchange: () => onChoose(value) }),
      make("span", {}, text)));
  return make("fieldset", { class: "choices" },
    words ? make("legend", {}, words) : null,
    make("div", { class: "options" }, ...labels));
}

/* 256 colours from no weight to the largest, in the scheme that holds now. */
function readRamp() {
  const style = getComputedStyle(document.documentElement);
  const stops = [0, 1, 2, 3, 4].map((stop) => {
    const number = parseInt(style.getPropertyValue(`--ramp-${stop}`).trim().slice(1), 16);
    return [number >> 16, (number >> 8) & 255, number & 255];
  });
  return Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (stops.length - 1);
    const first = Math.min(Math.floor(place), stops.length - 2);
    return stops[first].map((low, channel) => Math.round(low + (stops[first + 1][channel] - low) * (place - first)));
  });
}

const asColor = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
const isDark = ([red, green, blue]) => 0.299 * red + 0.587 * green + 0.114 * blue < 140;

/* Draw again whenever the colours change: by day and night, and on paper, which is always light. */
function onColorsChange(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printing");
    redraw();
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    redraw();
  });
}

/* Call `redraw` soon, and again whenever the width of the element changes. */
function onWidthChange(element, redraw) {
  let width = 0;
  const look = () => {
    const now = element.clientWidth;
    if (!now || now === width) return;
    width = now;
    redraw();
  };
  /* In a frame of its own, since drawing inside the observer would make it observe itself. */
  new ResizeObserver(() => requestAnimationFrame(look)).observe(element);
  /* Once without a frame: a page that nobody sees yet may get none. */
  setTimeout(look);
}
