"""Running totals of accounts in two currencies, exact to the cent.

waterspout run examples/account_totals.py --until-idle
sqlite3 accounts.db 'SELECT account, payments, eur, usd FROM totals'
sqlite3 accounts.db 'SELECT account, payments, eur_after, usd_after FROM statements'

Amounts are decimals: nothing is rounded, and the sum does not depend on the order. The state is
opaque, so a payment is added once even if a broken batch is replayed with other payments in it.
The new values of each batch become lines of a statement.
"""

from decimal import Decimal

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum, TridentTopology

PAYMENTS = [
    ("lighthouse", "EUR", Decimal("120.10")),
    ("ferry", "EUR", Decimal("0.10")),
    ("lighthouse", "USD", Decimal("-15.75")),
    ("ferry", "EUR", Decimal("0.20")),
    ("lighthouse", "EUR", Decimal("79.90")),
    ("ferry", "USD", Decimal("1000000000000.01")),
]
NOTHING = Decimal(0)
DATABASE = "accounts.db"


def by_currency(currency, amount):
    """Put the amount into the column of its currency; another currency is an error."""
    return {"EUR": (amount, NOTHING), "USD": (NOTHING, amount)}[currency]


topology = TridentTopology("account_totals")
fields = "account string, currency string, amount decimal(18,2)"
totals = (
    topology.new_stream("payments", FixedBatchSpout(fields, 3, PAYMENTS))
    .each(["currency", "amount"], by_currency, "eur decimal(18,2), usd decimal(18,2)")
    .group_by("account")
    .persistent_aggregate(
        SQLiteState.opaque(DATABASE, "totals"),
        Columns(payments=Count(), eur=("eur", Sum()), usd=("usd", Sum())),
    )
)
statements = (
    totals.new_values_stream()
    .group_by(["account", "payments"])
    .persistent_aggregate(
        SQLiteState.opaque(DATABASE, "statements"),
        Columns(eur_after=("eur", Sum()), usd_after=("usd", Sum())),
    )
)

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    for account in ("lighthouse", "ferry"):
        print(account, *totals.get(account))
