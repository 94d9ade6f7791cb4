showComparison(document.getElementById("comparison"), readData());
