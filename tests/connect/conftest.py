"""The session and the server of Spark Connect, as the tests of Spark have them."""

from __future__ import annotations

from tests.spark.conftest import client as client
from tests.spark.conftest import connect as connect
from tests.spark.conftest import spark as spark
