showHighlights(document.getElementById("highlights"), readData());
