"""Fixtures that all tests share: one Spark session, and a home of their own for each test."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

from tests.spark.jvm import set_environment
from waterspout import faults

# In this order: a module that another one has imported is a plugin too late.
pytest_plugins = (
    "tests.services.fixtures",
    "tests.services.cassandra",
    "tests.services.zookeeper",
    "tests.services.rabbitmq",
    "tests.services.kafka",
    "tests.services.secured",
    "tests.budget",
)

set_environment()

# Files of tests in memory, where there is plenty of it: what a killed process has written stays,
# as on a disk, and nobody waits for fsync. Only a loss of power would tell the difference.
MEMORY = "/dev/shm"  # open to all users: PostgreSQL runs as another one
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 6 << 30:
    os.environ.setdefault("TMPDIR", MEMORY)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", os.environ["TMPDIR"])
    tempfile.tempdir = None  # to be looked up again

# Whatever else the machine is doing: a slow example is not a wrong one.
SLOW_IS_FINE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("test", max_examples=20, **SLOW_IS_FINE)
settings.register_profile("soak", max_examples=50, **SLOW_IS_FINE)
settings.load_profile(os.environ.get("WATERSPOUT_TEST_PROFILE", "test"))


# Thousands of tests are collected and stay: nothing of it is garbage, now or later.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Random tests are part of `make soak` too, with the many examples of its profile."""
    if os.environ.get("WATERSPOUT_TEST_PROFILE") == "soak":
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker(pytest.mark.soak)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A waterspout home for this test alone."""
    path = tmp_path / "home"
    monkeypatch.setenv("WATERSPOUT_HOME", str(path))
    return path


@pytest.fixture(autouse=True)
def _no_faults_left():
    yield
    faults.install(None)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The embedded session, started once for all tests."""
    from waterspout.spark.starting import embedded_session

    # Cancelled tasks are left alone: they are the zombies that some tests need.
    settings = {"spark.python.task.killTimeout": "60s"}
    session = embedded_session(tmp_path_factory.mktemp("spark") / "spark.log", settings)
    yield session
    session.stop()
