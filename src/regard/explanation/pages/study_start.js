showStudy(document.getElementById("study"), readData());
