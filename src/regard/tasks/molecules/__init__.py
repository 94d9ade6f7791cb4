"""Properties of molecules.

task      the task
columns   which columns of a table are molecules and properties, and how rows are read
model     a network and a Gaussian process beside it
batches   spellings of molecules as batches
"""
