"""A storm: one run of many batches against a provider with many faults, with random kills of client and provider.

`python -m tests.storm --dialect anthropic --requests 100000 --kills 500 --seed 7` prints progress and result.
The seed decides the faults and the kills. The timing of the machine and the names of batches stay random, so the same
seed repeats the kind of storm, not its exact events.
"""
