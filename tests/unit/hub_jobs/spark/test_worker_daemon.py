"""Where the process that forks Spark's Python workers takes PySpark from."""

from pathlib import Path

import pyspark

from hub_jobs.spark.worker_daemon import without_archives

HOME = Path(pyspark.__file__).parent
ARCHIVES = [str(path) for path in sorted((HOME / "python" / "lib").glob("*.zip"))]


def test_pyspark_is_taken_from_where_it_is_installed_not_from_its_archive() -> None:
    assert len(ARCHIVES) == 2
    assert without_archives([*ARCHIVES, "/jobs.zip", str(HOME.parent)]) == ["/jobs.zip", str(HOME.parent)]


def test_the_archives_are_kept_where_no_pyspark_is_installed() -> None:
    assert without_archives([*ARCHIVES, "/elsewhere"]) == [*ARCHIVES, "/elsewhere"]
