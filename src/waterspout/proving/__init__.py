"""Proving a topology by killing it: trials, stand-ins for its stores, lives, comparing, a verdict.

`trials`, `comparing` and `verdicts` decide, without I/O; `stand_ins`, `sources` and `contents` know
the stores and spouts; `lives` starts and ends processes. The command is `waterspout.cli.prove`.
"""

__all__: list[str] = []
