/* Predictions beside their targets, and words with their tags. */
"use strict";

function makeSample({ source, image, svg, target, prediction, right, kind }, tagKinds, names) {
  /* A continuation of a text is neither right nor wrong: nothing is marked. */
  const isContinuation = typeof target === "string" && right === undefined;
  const isCompared = typeof target === "string" && right === false;
  const isTags = kind === "tags";
  const [missed, added] = isCompared && !isTags ? differences(target, prediction) : [[[target ?? "", true]], [[prediction, true]]];
  const field = (name, runs) => make("dd", { class: `text ${name}`, dir: "auto" },
    ...(isTags ? [makeTagged(source.split(/\s+/).filter(Boolean), runs[0][0].split(" "), tagKinds)] : makeRuns(runs)));
  return make("dl", { class: `sample${right === true ? " is-right" : ""}` },
    ...(isTags ? [] : [make("dt", {}, names[0]), make("dd", { class: "text source", dir: "auto" }, ...makeSource(source, image, svg))]),
    ...(isCompared || isContinuation ? [make("dt", {}, names[1]), field("target", missed)] : []),
    make("dt", {}, names[2]), field("prediction", added));
}

/* An image, a drawing with the text that it shows, or the text alone. */
function makeSource(source, image, svg) {
  if (image) return [make("img", { src: image, alt: source, title: source })];
  const text = makeRuns([[source.replaceAll("\t", "\n"), true]]);
  if (!svg) return text;
  /* The JSON of a graph is long and says less than its drawing. */
  const shown = source.startsWith("{") ? make("details", {}, make("summary", {}, "JSON"), ...text) : make("span", {}, ...text);
  return [make("img", { class: "structure", src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`, alt: source }), shown];
}

/* Runs of [text, whether it is in the other as well]; what is not is marked. */
const makeRuns = (runs) => (runs.some(([run]) => run)
  ? runs.map(([run, isSame]) => (isSame ? run : make("mark", {}, visible(run)))) : [make("span", { class: "nothing" }, "empty")]);

/* White space that is marked, as its signs. */
const visible = (run) => (run.trim() ? run : run.replaceAll(" ", "\u2423").replaceAll("\n", "\u23ce"));

/* Tags of entities have a prefix that tells where one begins: B-PER, I-PER. The words of one entity are grouped. */
function makeTagged(words, tags, kinds) {
  const groups = [];
  words.forEach((word, place) => {
    const tag = tags[place] ?? "O";
    if (tag.startsWith("I-") && groups.at(-1)?.kind === tag.slice(2)) groups.at(-1).words.push(word);
    else groups.push({ kind: kindOfTag(tag), words: [word] });
  });
  const hue = (kind) => `--hue: ${Math.round((kinds.indexOf(kind) * 137.5) % 360)}`;
  return make("p", { class: "words", dir: "auto" }, ...groups.map(({ kind, words: together }) => (kind === "O"
    ? make("span", { class: "plain" }, together.join(" "))
    : make("span", { class: "tagged", style: hue(kind) }, together.join(" "), make("small", {}, kind)))));
}

const kindOfTag = (tag) => tag.replace(/^[BI]-/, "");
const kindsOfTags = (tags) => [...new Set(tags.map(kindOfTag))].filter((kind) => kind !== "O").sort();

const graphemes = (text) => (Intl.Segmenter
  ? Array.from(new Intl.Segmenter(undefined, { granularity: "grapheme" }).segment(text), ({ segment }) => segment)
  : Array.from(text));

/* Both texts as runs of [text, whether it is in the other as well]. */
function differences(expected, predicted) {
  const [a, b] = [graphemes(expected), graphemes(predicted)];
  if (a.length * b.length > 4e6) return [[[expected, false]], [[predicted, false]]];
  const blocks = joined(alignedBlocks(a, b));
  const numSame = blocks.reduce((sum, block) => sum + (block.isSame ? block.a.length : 0), 0);
  /* Of texts that differ in most places, such as two labels, single common parts mean nothing. */
  if (2 * numSame < Math.max(a.length, b.length)) return [[[expected, false]], [[predicted, false]]];
  return ["a", "b"].map((side) => blocks.filter((block) => block[side].length).map((block) => [block[side].join(""), block.isSame]));
}

/* Blocks of graphemes that are the same, or not, by the longest common subsequence. */
function alignedBlocks(a, b) {
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = a[i] === b[j]
        ? longest[(i + 1) * width + j + 1] + 1
        : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const blocks = [];
  const put = (fromA, fromB, isSame) => {
    if (blocks.at(-1)?.isSame !== isSame) blocks.push({ a: [], b: [], isSame });
    blocks.at(-1).a.push(...fromA);
    blocks.at(-1).b.push(...fromB);
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) put([a[i++]], [b[j++]], true);
    else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) put([a[i++]], [], false);
    else put([], [b[j++]], false);
  }
  return blocks;
}

/* A single grapheme in common, between longer differences, is a coincidence: it is merged with them. */
function joined(blocks) {
  const size = (block) => Math.max(block.a.length, block.b.length);
  return blocks.reduce((done, block, i) => {
    const isCoincidence = block.isSame && size(block) === 1 && i > 0 && i + 1 < blocks.length && size(blocks[i - 1]) + size(blocks[i + 1]) > 3;
    const isSame = block.isSame && !isCoincidence;
    const last = done.at(-1);
    if (last?.isSame !== isSame) return [...done, { a: [...block.a], b: [...block.b], isSame }];
    last.a.push(...block.a);
    last.b.push(...block.b);
    return done;
  }, []);
}
