"""What a transactional topology says of itself before it runs."""

from __future__ import annotations

import pytest

from tests.transactional.spark_components import a_b_c_d, build
from waterspout import Config
from waterspout.coordination.transactions import explain
from waterspout.transactional import (
    BatchBolt,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)

ROWS = [[("a", 1)]]


def test_stages_and_phases_are_shown(tmp_path):
    topology, _ = build("phases", tmp_path, a_b_c_d, ROWS, 1)

    lines = explain(topology, Config(max_spout_pending=3), 2).splitlines()

    assert lines[0] == "phases: a transactional topology"
    start = lines.index("in flight at once: 3 at most; in commit: one")
    assert lines[start + 1 : start + 9] == [
        "processing: 1 job, 3 stages",
        "  stage 1 (2 shards): rows, a",
        "  stage 2 (2 shards): one, c",
        "  stage 3 (2 shards): two",
        "commit: 1 job, none where little is left to do, 2 stages; these finish then:",
        "  one (committer)",
        "  c, behind a committer",
        "  two (committer)",
    ]


@pytest.mark.parametrize(("where", "said"), [("tasks", "1 job"), ("driver", "in the driver")])
def test_where_a_commit_runs_can_be_said(tmp_path, where, said):
    topology, _ = build("phases", tmp_path, a_b_c_d, ROWS, 1)

    text = explain(topology, Config(commit_in=where), 2)

    assert f"commit: {said}, 2 stages; these finish then:" in text.splitlines()


def test_what_each_committer_has_to_do_depends_on_the_spout(tmp_path):
    transactional = explain(build("t", tmp_path, a_b_c_d, ROWS, 1)[0], Config(), 2)
    opaque = explain(build("t", tmp_path, a_b_c_d, ROWS, 1, opaque_seed=1)[0], Config(), 2)

    assert "the spout is transactional: exactly-once if each committer\n  keeps the txid" in (
        transactional
    )
    assert "the spout is opaque: exactly-once if each committer\n  keeps (txid, attempt," in opaque
    for text in (transactional, opaque):
        assert text.endswith("what it writes is fenced only if its store checks that")


def test_a_topology_without_committers_has_nothing_to_commit():
    class Nothing(BatchBolt):
        def execute(self, tuple):
            pass

    spout = MemoryTransactionalSpout([["a"]], "word", 1)
    builder = TransactionalTopologyBuilder("t", "spout", spout)
    builder.set_bolt("b", Nothing()).shuffle_grouping("spout")

    assert "commit: nothing to do, there is no committer" in explain(
        builder.build_topology(), Config(), 2
    )
