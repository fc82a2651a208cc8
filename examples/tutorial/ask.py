"""The ferry with hours and harbours, and a function: what did these harbours take so far?"""

from harbours import harbours, topology

from waterspout.trident import Split

(
    topology.new_drpc_stream("taken")
    .each("args", Split(), "harbour")
    .join_static(harbours, on="harbour")  # as the batches that have committed left it
    .project(["harbour", "tickets", "income"])
)
