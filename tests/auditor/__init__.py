"""An outsider's proof that a run was paid for once, kept whole, and stayed within its budget.

    python -m tests.auditor --ledger LEDGER --run RUN_FOLDER --manifest MANIFEST_FOLDER [--budget MICRO] [--rebuys N]

Reads three things and believes none of them: what the emulated provider says it accepted and billed (the ledger), what
the client kept (the run's folder), and what there was to ask (the manifest). It shares no code with the client, so that
a misunderstanding of one is not repeated by the other. Every client batch in the ledger is taken to be of this run.

What excuses a client is taken from the ledger where the ledger knows it: a copy of a batch only if somebody else made
it, an answer that is missing only if it was not handed out, one that is damaged only as its fault damages it. That a
lost answer was to be bought again is known to whoever typed it, who has to say how often (--rebuys).

I11, that whatever the client said was kept is still there after a kill, is about what was said: a test listens.
"""
