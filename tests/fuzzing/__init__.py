"""Fuzzing of every reader of files: random changes of small valid files, in process, from a seed.

    python -m tests.fuzzing --executions 1000000 --seed 0

A reader must return or raise a `RegardError` of one line. Another exception, the end of the process, a file that is
opened or changed outside the folder of the input, a started program, an import that the input names, and more time or
memory than a limit are findings.

    mutation.py   how an input is changed
    guard.py      what a reader must not do: an audit hook
    engine.py     one reader: corpus, limits, findings; in a process of its own
    readers.py    the readers, each with its corpus, which is generated
    files.py      the bytes of the corpus: models, workbooks, archives, images
"""
