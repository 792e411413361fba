"""An outsider's proof that a run was paid for once, kept whole, and stayed within its budget.

    python -m tests.auditor --ledger LEDGER --run RUN_FOLDER --manifest MANIFEST_FOLDER [--budget MICRO] [--json]

Reads three things and believes none of them: what the emulated provider says it accepted and billed (the ledger), what
the client kept (the run's folder), and what there was to ask (the manifest). It shares no code with the client, so that
a misunderstanding of one is not repeated by the other. Every client batch in the ledger is taken to be of this run.

I1   every batch the provider accepted is named by exactly one `created`, or by a `duplicate` or an `unresolved`
I2   no batch is adopted twice, none of somebody else's is adopted, none of ours is called foreign
I3   a row is accepted again only after the batch before has ended without answering it
I4   no row is billed for two answers
I5   every billed answer is kept, with the same text; only lines that the provider itself damaged may be less
I6   every kept answer was billed by the batch that its nonce names; of a batch that was refused, the lines that were
     named have failed and nothing else is kept
I7   every answer belongs to its row's prompt (the `echo` persona answers with the prompt's digest)
I8   no row has two answers
I9   at every moment billed + the most that running batches can cost <= budget, and so says the journal; each reserve
     covers what its rows can cost; what was noted as spent is what was billed, or more where lines were damaged
I10  answered + again + missing are exactly the rows of each batch, and add up to what `status --json` says (--status);
     what was asked three times in vain is missing
I12  a batch goes through its states in order, and is accepted only after its intent and its `creating`
I13  since an earlier audit (--before), nothing but reads reached the provider and no byte of the run has changed
I14  the run's folder holds no file that nobody knows, nothing others may read, and not the key (--key)
I15  the journal's chain, the digests of sealed files and of shards hold, and the answers are what the raw lines say

I11, that whatever the client said was kept is still there after a kill, is about what was said: a test listens.
"""
