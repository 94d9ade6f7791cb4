showReport(document.getElementById("report"), readData());
