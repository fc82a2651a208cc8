"""`waterspout bench`: short, checked, and told to people and programs."""

from __future__ import annotations

import doctest
import json

import pytest

from waterspout.cli import bench as benching


def test_the_first_batches_warm_up():
    assert doctest.testmod(benching) == (0, 2)


@pytest.mark.parametrize("option", [("--sentences", "10"), ("--batches", "2")])
def test_too_little_to_measure_is_refused(cli, option):
    assert cli("bench", *option).code == 2


def test_a_wrong_count_fails_the_command_and_is_said(cli, monkeypatch):
    measured = [
        benching.Measured("one Spark job, no store", 400.0, True),
        benching.Measured("foreachBatch by hand", 100.0, True),
        benching.Measured("waterspout", 150.0, False),
    ]

    class Session:
        version = "4.1.0"

        def stop(self) -> None:
            pass

    monkeypatch.setattr("waterspout.spark.starting.open_session", lambda log: Session())
    monkeypatch.setattr(benching, "_measure", lambda *_: measured)

    for_people = cli("bench", "--sentences", "1000")
    for_programs = cli("bench", "--sentences", "1000", "--json")

    assert for_people.code == for_programs.code == 1
    assert [line.split()[-2:] for line in for_people.out.splitlines()[2:]] == [
        ["4.00", "exact"],
        ["1.00", "exact"],
        ["1.50", "WRONG"],
    ]
    told = json.loads(for_programs.out)
    assert (told["exact"], told["of_by_hand"], told["of_one_job"]) == (False, 1.5, 0.375)


@pytest.mark.soak
@pytest.mark.spark
def test_it_measures_all_three_and_their_counts_are_exact(shared_spark, cli):
    outcome = cli("bench", "--sentences", "2000", "--batches", "4", "--json")

    assert (outcome.code, outcome.err) == (0, "")
    told = json.loads(outcome.out)
    assert (told["exact"], told["sentences"], told["batches"]) == (True, 2000, 4)
    rates = told["sentences_per_s"]
    assert rates.keys() == {"one Spark job, no store", "foreachBatch by hand", "waterspout"}
    assert all(rate > 0 for rate in rates.values())
    assert told["of_by_hand"] == pytest.approx(
        rates["waterspout"] / rates["foreachBatch by hand"], rel=0.02
    )
