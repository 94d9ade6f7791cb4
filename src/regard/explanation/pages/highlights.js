/* Texts whose words are shaded by their weights, once for each aspect. */
"use strict";

function showHighlights(root, examples) {
  const list = make("div", { class: "highlights" });
  root.append(list);
  const draw = () => {
    const ramp = readRamp();
    list.replaceChildren(...examples.map((example) =>
      make("article", { class: "highlight-text" }, ...example.judgements.map((each) => showJudgement(each, ramp)))));
  };
  draw();
  onColorsChange(draw);
}

function showJudgement({ aspect, label, wanted, probabilities, pieces, peak }, ramp) {
  const isWrong = typeof wanted === "string" && wanted !== label;
  const isRight = typeof wanted === "string" && wanted === label;
  const said = make("span", { class: `said${isWrong ? " wrong" : isRight ? " right" : ""}` }, label);
  const head = make("div", { class: "judgement-head" }, make("h3", {}, aspect), said,
    isWrong ? make("span", { class: "wanted" }, `expected ${wanted}`) : null, showProbabilities(probabilities, label));
  return make("div", { class: "judgement" }, head, make("p", { class: "words", dir: "auto" }, ...showWords(pieces, peak, ramp)));
}

function showWords(pieces, peak, ramp) {
  return pieces.flatMap(([before, word, weight]) => {
    const color = ramp[Math.round((255 * weight) / peak)];
    const style = weight / peak > 0.02
      ? `background: ${asColor(color)}; color: ${isDark(color) ? "#fff" : "#1b1f27"}` : null;
    return [before, make("span", { style, title: `${word}: ${weight.toFixed(3)}` }, word)];
  });
}

/* How probable each label is, the one that was said first. */
function showProbabilities(probabilities, label) {
  const names = Object.keys(probabilities).sort((a, b) => probabilities[b] - probabilities[a]);
  return make("div", { class: "chances", role: "img",
    "aria-label": names.map((name) => `${name} ${probabilities[name].toFixed(2)}`).join(", ") },
    ...names.map((name) => make("span", { class: name === label ? "chosen" : null,
      style: `flex-grow: ${Math.max(probabilities[name], 0.0001)}`, title: `${name}: ${probabilities[name].toFixed(3)}` },
      probabilities[name] > 0.28 ? `${name} ${probabilities[name].toFixed(2)}` : "")));
}
