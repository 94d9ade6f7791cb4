"""`python -m regard` is `regard`."""

from regard.cli.main import main

main()
