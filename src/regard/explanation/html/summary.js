/* Findings, a figure and tables of a result, and the command that gives it. */
"use strict";

PAGES.summary = (root, data) => {
  root.querySelector("header").append(make("p", { class: "claim" }, data.claim));
  root.append(
    make("ul", { class: "findings" }, ...data.findings.map((finding) => make("li", {}, finding))),
    makePicture(data));
  if (data.tables.length) root.append(makeSection("numbers", "Numbers", ...data.tables.map(makeTable)));
  if (data.settings.length) root.append(makeSection("settings", "Settings", makeTiles(data.settings)));
  root.append(make("section", { class: "again" },
    make("p", {}, `Computed in ${data.time} by regard ${data.version}. To reproduce:`), make("pre", {}, data.command)));
  onColorsChange(() => {}); /* The style sheet chooses the drawing. */
};

/* One drawing for a light page and for print, one for a dark page. */
const makePicture = ({ title, light, dark }) => make("figure", { class: "picture" },
  make("img", { class: "light", src: light, alt: `${title}: a figure of the numbers in the tables below` }),
  make("img", { class: "dark", src: dark, alt: "" }));

/* `left` are the columns of texts; where it is not given, those in which no cell begins like a number. */
function makeTable({ name, columns, rows, note, left = null, bold = [] }) {
  const isText = columns.map((_, i) => left?.includes(i) ?? rows.every((row) => !/^[\d.\u221e+-]/.test(row[i])));
  const cells = (tag, row) => row.map((cell, i) => make(tag, { class: isText[i] ? "text" : null }, cell));
  return make("div", { class: "numbers" },
    name ? make("h3", {}, name) : null,
    make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...cells("th", columns))),
      make("tbody", {}, ...rows.map((row, i) => make("tr", { class: bold.includes(i) ? "bold" : null }, ...cells("td", row)))))),
    note ? make("p", { class: "note" }, note) : null);
}
