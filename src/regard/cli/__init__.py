"""The command line: one file for each command, which parses the options, calls the library and prints the result.

`main` has the list of commands, `options` and `few_shot` the options that several commands share, `output` how results
and errors are printed. Library code is imported inside the commands, so that `regard --help` imports no torch.
"""

__all__: list[str] = []
