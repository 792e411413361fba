"""An independent proof that a run was paid for once, lost nothing, and stayed within its budget.

    python -m tests.auditor --ledger LEDGER --run RUN_FOLDER --manifest MANIFEST_FOLDER [--budget MICRO] [--rebuys N]

Reads three sources and trusts none of them alone: what the emulated provider accepted and billed (the ledger), what the
client kept (the run's folder), and what there was to ask (the manifest). It shares no code with the client, so both
cannot have the same bug. It takes every batch in the ledger that the client owns for a batch of this run.

The ledger, where it can, decides what excuses the client: a second copy of a batch only if a fault made it, a missing
answer only if the provider did not hand it out, a damaged answer only as its fault damages it. The ledger cannot know
how often the user typed --rebuy-missing, so the caller says it (--rebuys).

One promise is not checked here: an answer that the client has reported as kept survives a kill. Tests read the report.
"""
