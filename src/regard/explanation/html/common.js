/* Shared by every page: elements, sections, the embedded data, numbers, colors, and errors that are shown. */
"use strict";

window.addEventListener("error", (event) => {
  document.documentElement.dataset.error = event.message;
  const notice = document.createElement("p");
  notice.className = "page-error";
  notice.textContent = `This page could not be drawn: ${event.message}`;
  document.body.prepend(notice);
});

/* For each kind of page, a function of its root and its data. */
const PAGES = {};

const startPage = (kind) => PAGES[kind](document.getElementById("page"), JSON.parse(document.getElementById("page-data").textContent));

/* Text is always inserted as text: nothing that was embedded is ever parsed as HTML. */
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

const makeSection = (name, title, ...children) => make("section", { id: name },
  make("div", { class: "section-head" }, make("h2", {}, title)), ...children);

/* Sections of [name, title, whether there is something to show, function of section and data], and links to them. */
function addSections(root, sections, data) {
  const shown = sections.filter(([, , isThere]) => isThere);
  if (shown.length > 1) {
    root.querySelector("header").append(make("nav", { class: "contents" },
      ...shown.map(([name, title]) => make("a", { href: `#${name}` }, title))));
  }
  for (const [name, title, , show] of shown) {
    const section = makeSection(name, title);
    root.append(section);
    show(section, data);
  }
  openForPrint(root);
}

/* Details that are closed on the screen are opened on paper. */
function openForPrint(root) {
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...root.querySelectorAll("details:not([open])")];
    closed.forEach((details) => { details.open = true; });
  });
  window.addEventListener("afterprint", () => closed.forEach((details) => { details.open = false; }));
}

const makeNotes = (sentences) => make("ul", { class: "notes" }, ...sentences.map((sentence) => make("li", {}, sentence)));

const makeTiles = (facts) => make("dl", { class: "tiles" },
  ...facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))));

let choiceGroups = 0;

/* Radio buttons in a row; `options` are pairs of value and label. */
function makeChoices(legend, options, chosen, onChoose) {
  const group = `choice-${(choiceGroups += 1)}`;
  const labels = options.map(([value, text]) =>
    make("label", {},
      make("input", { type: "radio", name: group, checked: value === chosen, onchange: () => onChoose(value) }),
      make("span", {}, text)));
  return make("fieldset", { class: "choices" },
    legend ? make("legend", {}, legend) : null,
    make("div", { class: "options" }, ...labels));
}

/* A list that shows the first `count` items of the chosen group, and a button for the rest; `groups` maps names to items. */
function showGroups(section, list, groups, first, count, draw) {
  const more = make("button", { type: "button", class: "quiet-button more" });
  const show = (name, limit) => {
    list.replaceChildren(...groups[name].slice(0, limit).map(draw));
    more.hidden = groups[name].length <= limit;
    more.textContent = `Show all ${groups[name].length}`;
    more.onclick = () => show(name, Infinity);
  };
  const names = Object.keys(groups).filter((name) => groups[name].length);
  if (names.length > 1) {
    section.querySelector(".section-head").append(makeChoices("",
      names.map((name) => [name, `${name} ${groups[name].length}`]), first, (name) => show(name, count)));
  }
  section.append(list, more);
  show(first, count);
}

/* Copies the text of an element; where the browser forbids that, selects it. */
function copyButton(element) {
  const button = make("button", { type: "button", class: "quiet-button copy" }, "Copy");
  const confirm = (text) => {
    button.textContent = text;
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const select = () => {
    getSelection().selectAllChildren(element);
    confirm("Selected");
  };
  button.addEventListener("click", () => {
    if (navigator.clipboard) navigator.clipboard.writeText(element.textContent).then(() => confirm("Copied"), select);
    else select();
  });
  return button;
}

function makeSignature(line) {
  const code = make("code", {}, line);
  return make("div", { class: "signature" }, code, copyButton(code));
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/* Four digits at most, and no more than the number has. */
function formatNumber(value) {
  if (!isNumber(value)) return "not finite";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  if (size < 0.001) return value.toExponential(2).replace(/\.?0*e/, "e");
  return String(Number(value.toPrecision(4)));
}

/* A function that writes a score with the decimals of its metric, or else with three below 10 and two from there on;
   with more where these would hide the width of the interval. */
function scoreFormatter({ value, interval, digits }) {
  const usual = digits ?? (Math.abs(value) < 10 ? 3 : 2);
  const width = interval?.every(isNumber) ? interval[1] - interval[0] : 0;
  const decimals = width > 0 ? Math.min(6, Math.max(usual, Math.ceil(-Math.log10(width)))) : usual;
  return (number) => (isNumber(number) ? number.toFixed(decimals) : "not finite");
}

/* 256 colors from weight 0 to the largest weight, in the current color scheme. */
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
const shadeStyle = (color) => `background: ${asColor(color)}; color: ${isDark(color) ? "#fff" : "#14171f"}`;

/* Redraws when the color scheme changes, and for print, which is always light. */
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

/* Calls `redraw` soon, and again whenever the width of the element changes. */
function onWidthChange(element, redraw) {
  let width = 0;
  const check = () => {
    const now = element.clientWidth;
    if (!now || now === width) return;
    width = now;
    redraw();
  };
  /* In a frame of its own, since drawing inside the observer would trigger it again. */
  new ResizeObserver(() => requestAnimationFrame(check)).observe(element);
  /* Once without a frame: a page in the background may get none. */
  setTimeout(check);
}
