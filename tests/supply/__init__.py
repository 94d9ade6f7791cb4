"""The lock file and the list of components, and the script that remakes both: `python -m tests.supply.remake`."""
