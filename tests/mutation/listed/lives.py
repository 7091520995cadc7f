"""Session locks: a lock as long as the process lives, and its effect on claims."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_OWNERS = "timeoutmgr/database/session_locks.py"
_TESTS = "tests/database/test_owners.py"

MUTANTS = (
    Mutant(
        name="the file of an owner is not locked",
        behaviour=48,
        promise="A living owner keeps what it holds.",
        file=_OWNERS,
        before="        fcntl.flock(self._descriptor, fcntl.LOCK_EX)\n",
        after="",
        tests=(f"{_TESTS}::test_a_living_owner_is_not_dead[sqlite_url]",),
    ),
    Mutant(
        name="the lock of an owner ends with its statement",
        behaviour=48,
        promise="A living owner keeps what it holds.",
        file="timeoutmgr/database/session_locks.py",
        before="pg_try_advisory_lock(",
        after="pg_try_advisory_xact_lock(",
        tests=(f"{_TESTS}::test_a_living_owner_is_not_dead[postgres_url]",),
    ),
    Mutant(
        name="the lock of an owner is on a connection of the pool",
        promise="A life may begin in a transaction that has the pool's last connection.",
        file=_OWNERS,
        before="database.apart.connect()",
        after="database.engine.connect()",
        tests=(f"{_TESTS}::test_a_session_lock_does_not_wait_for_the_pool[postgres_url]",),
    ),
    Mutant(
        name="a lost life is not taken up again",
        promise="An owner whose connection broke lives on.",
        file=_OWNERS,
        before="        return lock is not None and lock.holds(owner)\n",
        after="        return lock is not None\n",
        tests=(
            "tests/transport/sql/test_leases.py::test_an_owner_acquires_its_lost_session_lock_again",
        ),
    ),
    Mutant(
        name="the death of an owner is not looked at",
        promise="What a killed process had claimed is free at once.",
        file="persistence/sql/claim/claimer.py",
        before="            over = claim.claimed_until <= locked.now or claim.owner in dead\n",
        after="            over = claim.claimed_until <= locked.now\n",
        tests=(
            "tests/persistence/test_owners.py::test_a_closed_persistence_lets_its_claims_go[sqlite]",
        ),
    ),
)
