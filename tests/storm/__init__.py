"""A storm: one run of many batches, through a provider full of faults, while client and provider are killed at random.

`python -m tests.storm --dialect anthropic --requests 100000 --kills 500 --seed 7` prints how it goes and how it ended.
The seed decides the faults and the kills. Chance is left in what the machine does meanwhile and in the names of
batches, so the same seed makes the same kind of weather, not the same drops.
"""
