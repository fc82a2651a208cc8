"""The commands of the tutorial, in the order of its pages, as a reader types them."""

from __future__ import annotations

import pytest

from tests.docs.console import SKIPPED, Shell, matches, steps
from tests.docs.pages import DOCS
from tests.services.spark import StandaloneCluster

PAGES = ("count", "kill", "explain", "windows", "join", "ask", "kafka", "cluster")
MASTER = "spark://127.0.0.1:7077"


@pytest.mark.tutorial
@pytest.mark.timeout(1800)
def test_the_commands_of_the_tutorial_print_what_its_pages_say(tmp_path, kafka):
    shell = Shell(tmp_path / "copy")
    shell.env["KAFKA"] = kafka.bootstrap
    wrong = []
    with StandaloneCluster() as cluster:
        for page in PAGES:
            wrong += told_wrongly(shell, page, cluster.url)

    assert not wrong, "\n".join(wrong)


def told_wrongly(shell, page, master):
    wrong = []
    try:
        for step in steps(DOCS / "tutorial" / f"{page}.md"):
            if not step.command.startswith(SKIPPED):
                found = shell.run(step.command.replace(MASTER, master))
                if not matches(step.wanted, found):
                    wrong.append(f"{page}: $ {step.command}\n{found}")
    finally:
        shell.close()
    return wrong


def test_the_first_exact_count_takes_two_commands():
    first, second, *_ = steps(DOCS / "tutorial" / "count.md")

    assert first.command == "make venv"
    assert " run examples/tutorial/ferry.py " in second.command


def test_what_a_command_prints_is_compared():
    assert matches("a ... c\n", "a b b c\n")
    assert not matches("6|54\n", "6|55\n")
    assert matches("", "anything\n")
