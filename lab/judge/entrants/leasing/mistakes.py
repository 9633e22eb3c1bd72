"""The leasing relay with one mistake, which its argument names: the judge must notice each."""

import signal
import sys

from relay import Relay, run


class NeverLapses(Relay):
    """Keeps the lease of a relay that is gone."""
    lease = 10 ** 7


class RowsOnly(Relay):
    """Leases rows, whoever has a lease on others of their stream."""
    claim_sql = Relay.claim_sql.replace("or older.leased_until > clock_timestamp()", "").replace("limit 100", "limit 7")


class SentAtClaim(Relay):
    """Takes what it has leased for published."""
    claim_sql = Relay.claim_sql.replace("update events set", "update events set sent_at = clock_timestamp(),")


class LapseCounts(Relay):
    """Gives an event up whose lease has lapsed, as if it had ended its relay."""
    claim_sql = Relay.claim_sql.replace("update events set", "update events set failures = failures + 1,").replace(
        "where sent_at is null and", "where sent_at is null and failures = 0 and")


class PastRefused(Relay):
    """Publishes a stream's later events although an older one was refused."""
    claim_sql = Relay.claim_sql.replace("older.due > clock_timestamp() or older.failures > event.failures\n                      or ", "")


class NoDeadline(Relay):
    """Waits without end for an answer."""

    def parameters(self):
        parameters = super().parameters()
        parameters.heartbeat = 0
        return parameters

    def step(self):
        signal.alarm(0)
        return super().step()


MISTAKES = {
    "never-lapses": NeverLapses, "rows-only": RowsOnly, "sent-at-claim": SentAtClaim, "lapse-counts": LapseCounts,
    "past-refused": PastRefused, "no-deadline": NoDeadline,
}
run(MISTAKES[sys.argv[1]]())
