"""What TAB offers: commands, the topologies of a home, and the names of options."""

from __future__ import annotations

import pytest

from waterspout.cli import main

ASKED = ("show", "kill", "activate", "deactivate", "rebalance")
LETTERS = tuple(f"dead-letters {verb}" for verb in ("list", "show", "replay", "drop"))


@pytest.fixture
def tab(place, capsys, monkeypatch):
    """Return what bash is offered behind a line."""

    def complete(line: str, how: str = "complete_bash") -> list[str]:
        words = f"waterspout {line}".split(" ")
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_WATERSPOUT_COMPLETE", how)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([])
        assert ended.value.code == 0
        out, err = capsys.readouterr()
        assert err == ""
        return [line for line in out.splitlines() if line]

    return complete


@pytest.fixture
def homes(place):
    """Two homes with topologies, and something else beside them."""
    for folder in ("home/words", "home/worms", "home/other", "elsewhere/sales"):
        (place / folder).mkdir(parents=True)
        (place / folder / "coordination.db").touch()
    (place / "home" / "work").mkdir()


@pytest.mark.parametrize("command", [*ASKED, *LETTERS])
def test_the_topologies_of_the_home_are_offered(tab, homes, command):
    assert tab(f"{command} wo") == ["words", "worms"]


def test_the_home_that_was_named_is_the_one_that_is_looked_at(tab, homes):
    assert tab("show ") == ["other", "words", "worms"]
    assert tab("show --home elsewhere ") == ["sales"]
    assert tab("show -c home=elsewhere s") == ["sales"]


@pytest.mark.parametrize(
    "line",
    [
        "show --home nowhere ",
        "show -c nonsense=1 ",
        "show --config none.yaml ",
        "show x",
    ],
)
def test_what_cannot_be_looked_at_offers_nothing_and_says_nothing(tab, homes, line):
    assert tab(line) == []


def test_zookeeper_is_not_asked_while_somebody_types(tab, homes, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "waterspout.cli.completing.known_topologies", lambda conf: asked.append(conf) or ["words"]
    )

    offered = tab("show -c transactional.zookeeper.servers=[10.255.255.1] ")

    assert (offered, asked) == ([], [])


def test_options_and_commands_are_offered_by_name(tab):
    assert tab("run -c max_spout") == ["max_spout_pending="]
    assert tab("s") == ["show", "state"]
    assert tab("state e") == ["explain"]
    assert tab("show --js") == ["--json"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(tab, shell):
    script = "\n".join(tab("", f"source_{shell}"))

    assert f"_WATERSPOUT_COMPLETE=complete_{shell}" in script
