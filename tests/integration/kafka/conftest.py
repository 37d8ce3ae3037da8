"""The fixtures of the Spark tests."""

from tests.integration.spark.conftest import spark  # noqa: F401
