"""Fixtures that all tests share: one Spark session, and a home of their own for each test."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from waterspout import faults

# In this order: a module that another one has imported is a plugin too late.
pytest_plugins = (
    "tests.services.fixtures",
    "tests.services.cassandra",
    "tests.services.zookeeper",
    "tests.services.rabbitmq",
)

# Whatever else the machine is doing: a slow example is not a wrong one.
settings.register_profile(
    "waterspout", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("waterspout")


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

    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    # Cancelled tasks are left alone: they are the zombies that some tests need.
    settings = {"spark.python.task.killTimeout": "60s"}
    session = embedded_session(tmp_path_factory.mktemp("spark") / "spark.log", settings)
    yield session
    session.stop()
