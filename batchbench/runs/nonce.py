"""Pure: the name of a batch, which is in the id of each of its requests.

A nonce has ten random letters, six of a digest of the run's id, and six of a digest of its manifest and target. So the
provider's listing and results show which batches belong to a run, and which ask the same questions for another one.
"""

import hashlib
import secrets

from batchbench.runs.journal import RunState

RANDOM, TAG = 10, 6  # letters


def new_nonce(state: RunState) -> str:
    """A nonce that no batch of the run has."""
    while (nonce := secrets.token_hex(RANDOM // 2) + _run_tag(state.run) + _questions_tag(state)) in state.batches:
        pass
    return nonce


def of_run(nonce: str, state: RunState) -> bool:
    """Whether the run made this nonce, also if its journal does not have it; False for a nonce of older versions."""
    return bool(made_by(nonce, state.run)) and same_questions(nonce, state)


def made_by(nonce: str, run: str) -> bool | None:
    """Whether the run with this id made a nonce; None for a nonce of older versions, which does not tell."""
    return nonce[RANDOM:-TAG] == _run_tag(run) if len(nonce) == RANDOM + 2 * TAG else None


def same_questions(nonce: str, state: RunState) -> bool:
    """Whether a nonce was made by this run, or by another run of the same manifest and target."""
    return len(nonce) == RANDOM + 2 * TAG and nonce.endswith(_questions_tag(state))


def _run_tag(run: str) -> str:
    return hashlib.sha256(run.encode()).hexdigest()[:TAG]


def _questions_tag(state: RunState) -> str:
    return hashlib.sha256(f"{state.manifest}/{state.target}".encode()).hexdigest()[:TAG]
