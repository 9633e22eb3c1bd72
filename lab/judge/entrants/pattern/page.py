"""The SQL of docs/pattern.md, word for word, in the relay of ../python: what people copy from the page is judged.
With the argument `set-up` it creates the page's tables."""
import json
import os
import pathlib
import re
import sys
import psycopg

sys.path.insert(0, "../python")
from relay import Relay, run  # noqa: E402

PAGE = pathlib.Path("../../../../docs/pattern.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def statements(beginning):
    """The statements of the block that has this beginning of one, with `:name` as psycopg writes it."""
    block = next(block for block in BLOCKS if beginning in block)
    without_comments = re.sub(r"--.*$", "", block, flags=re.MULTILINE)
    return [re.sub(r":(\w+)", r"%(\1)s", statement) for statement in without_comments.split(";") if statement.strip()]


class PageRelay(Relay):
    _, try_lock, claim_sql = statements("pg_try_advisory_xact_lock")
    published, refused, _ = statements("update outbox set published_at")

    def lock(self):
        return self.database.execute(self.try_lock, {"relay": 1}).fetchone()[0]

    def claim(self):
        return [(*event, json.dumps(payload)) for *event, payload in self.database.execute(self.claim_sql)]

    def mark(self, seq):
        self.database.execute(self.published, {"confirmed": [seq]})

    def refuse(self, seqs):
        self.database.execute(self.refused, {"refused": seqs, "longest_wait": 30, "limit": 13})


if __name__ == "__main__":
    if sys.argv[1:] == ["set-up"]:
        with psycopg.connect(os.environ["DATABASE_URL"]) as database:
            for statement in statements("create table outbox") + statements("create table processed_events"):
                database.execute(statement)
    else:
        run(PageRelay())
