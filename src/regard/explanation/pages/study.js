/* A study: what was asked, what was found, the figure, the numbers, and how to see them again. */
"use strict";

function showStudy(root, data) {
  root.querySelector("header").append(make("p", { class: "claim" }, data.claim));
  root.append(
    make("ul", { class: "findings" }, ...data.findings.map((finding) => make("li", {}, finding))),
    showPicture(data),
    makeSection("numbers", "Numbers", ...data.tables.map(showTable)),
    makeSection("settings", "Settings", make("dl", { class: "tiles" },
      ...data.settings.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))))),
    make("section", { class: "again" },
      make("p", {}, `It took ${data.time} with regard ${data.version}. The same numbers again:`), make("pre", {}, data.command)));
  onColorsChange(() => {});
}

const makeSection = (name, words, ...children) => make("section", { id: name },
  make("div", { class: "section-head" }, make("h2", {}, words)), ...children);

/* One drawing for the day and for paper, one for the night. */
const showPicture = ({ title, light, dark }) => make("figure", { class: "picture" },
  make("img", { class: "light", src: light, alt: `${title}: what the tables below hold, drawn` }),
  make("img", { class: "dark", src: dark, alt: "" }));

function showTable({ name, columns, rows, note }) {
  const isWords = columns.map((_, i) => rows.every((row) => !/^[\d.\u221e-]/.test(row[i])));
  const cells = (tag, row) => make("tr", {}, ...row.map((cell, i) => make(tag, { class: isWords[i] ? "word" : null }, cell)));
  return make("div", { class: "numbers" },
    make("h3", {}, name),
    make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, cells("th", columns)), make("tbody", {}, ...rows.map((row) => cells("td", row))))),
    note ? make("p", { class: "note" }, note) : null);
}
