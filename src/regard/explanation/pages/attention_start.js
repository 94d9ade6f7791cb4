{
  const examples = readData();
  const title = document.getElementById("page-title");
  if (examples.length > 1) title.textContent = `Attention in ${examples.length} examples`;
  else title.append(make("bdi", {}, examples[0].source), " \u2192 ", make("bdi", {}, examples[0].prediction));
  new AttentionViewer(document.getElementById("attention"), examples);
}
