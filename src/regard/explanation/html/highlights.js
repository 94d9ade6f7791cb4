/* Texts whose words are shaded by their weights, once for each aspect. */
"use strict";

PAGES.highlights = (root, examples) => {
  root.querySelector("header").append(make("p", { class: "lead" }, HIGHLIGHTS_LEAD));
  const section = make("section");
  root.append(section);
  showHighlights(section, examples);
};

const HIGHLIGHTS_LEAD = "Each word is shaded by its attention weight in the prediction for the aspect. Attention weights show what the model reads from, not why it makes a prediction.";

function showHighlights(root, examples) {
  const list = make("div", { class: "highlights" });
  root.append(list);
  const draw = () => {
    const ramp = readRamp();
    list.replaceChildren(...examples.map(({ attributions }) =>
      make("article", { class: "highlight-text" }, ...attributions.map((each) => makeAttribution(each, ramp)))));
  };
  draw();
  onColorsChange(draw);
}

function makeAttribution({ aspect, label, target, probabilities, pieces, peak }, ramp) {
  const kind = typeof target !== "string" ? "" : target === label ? " right" : " wrong";
  return make("div", { class: "attribution" },
    make("div", { class: "attribution-head" }, make("h3", {}, aspect), make("span", { class: `predicted${kind}` }, label),
      kind === " wrong" ? make("span", { class: "expected" }, `expected ${target}`) : null, makeProbabilities(probabilities, label)),
    make("p", { class: "shaded", dir: "auto" }, ...pieces.flatMap(([before, word, weight]) => [before, make("span", {
      style: weight / peak > 0.02 ? shadeStyle(ramp[Math.round((255 * weight) / peak)]) : null, title: `${word}: ${weight.toFixed(3)}`,
    }, word)])));
}

/* The probability of each label, largest first. */
function makeProbabilities(probabilities, label) {
  const names = Object.keys(probabilities).sort((a, b) => probabilities[b] - probabilities[a]);
  return make("div", { class: "probabilities", role: "img",
    "aria-label": names.map((name) => `${name} ${probabilities[name].toFixed(2)}`).join(", ") },
    ...names.map((name) => make("span", { class: name === label ? "chosen" : null,
      style: `flex-grow: ${Math.max(probabilities[name], 0.0001)}`, title: `${name}: ${probabilities[name].toFixed(3)}` },
      probabilities[name] > 0.28 ? `${name} ${probabilities[name].toFixed(2)}` : "")));
}
