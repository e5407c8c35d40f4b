"""``python -m workload.verify``: compare what the soak job delivered with a batch computation by Spark.

Independent of the engine and of its tests: the expected rows come from the events alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.errors import InputError
from weir.spark.session import DEFAULT_MASTER, open_session, spark_path
from workload.entry import one_line_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EVENT = "id long, server string"
_ROW = "id long, server string, n long, odd long, m long, highest long"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Verdict:
    """Rows of each sort; the delivery is right if all but ``events`` and ``rows`` are 0."""

    events: int
    rows: int
    #: Events without a row.
    lost: int
    #: Rows beyond the first one of an event.
    duplicated: int
    #: Rows of events that there are not.
    invented: int
    #: Rows whose running count of their key is not the place of their event among those of the key.
    reordered: int
    #: Counts by key and parity that are not 1, 2, 3 and so on.
    miscounted: int

    @property
    def is_right(self) -> bool:
        """Exactly once, in order."""
        return not (self.lost or self.duplicated or self.invented or self.reordered or self.miscounted)


def verify(spark: SparkSession, events: Path, output: Path) -> Verdict:
    """Compute what the job must deliver, and count how what it delivered differs.

    Args:
        spark: a session.
        events: JSON lines with ``id`` and ``server``.
        output: the directory of the job's sink; only what it has committed counts.

    Raises:
        InputError: there is nothing to read.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    parts = sorted(output.glob("part-*.jsonl"))
    if not events.is_file() or not parts:
        raise InputError(f"{events if not events.is_file() else output}: nothing to verify; run a job first")
    wanted = _lines(spark, events, _EVENT).withColumn(
        "place", sf.row_number().over(Window.partitionBy("server").orderBy("id"))
    )
    found = _lines(spark, output / "part-*.jsonl", _ROW).cache()
    copies = found.groupBy("id", "server").agg(sf.count("*").alias("copies"))
    matched = wanted.select("id", "server").join(copies, ["id", "server"], "full_outer")
    known = wanted.select("id", "server", sf.lit(1).alias("known"))
    totals = matched.join(known, ["id", "server"], "left").agg(
        sf.count_if(sf.col("copies").isNull()).alias("lost"),
        sf.coalesce(sf.sum(sf.col("copies") - 1), sf.lit(0)).alias("duplicated"),
        sf.count_if(sf.col("known").isNull()).alias("invented"),
    )
    places = found.join(wanted, ["id", "server"]).where(sf.col("n") != sf.col("place"))
    by_parity = found.withColumn(
        "right", sf.row_number().over(Window.partitionBy("server", "odd").orderBy("m"))
    )
    counted = totals.first()
    assert counted is not None
    return Verdict(
        wanted.count(),
        found.count(),
        counted["lost"],
        counted["duplicated"],
        counted["invented"],
        places.count(),
        by_parity.where((sf.col("m") != sf.col("right")) | (sf.col("odd") != sf.col("id") % 2)).count(),
    )


def _lines(spark: SparkSession, path: Path, schema: str) -> DataFrame:
    """JSON lines; one that does not fit the schema fails the query."""
    return spark.read.schema(schema).option("mode", "FAILFAST").json(spark_path(path.absolute()))


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(help="Of a run: with events.jsonl and out/.")],
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the verdict here.")] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = DEFAULT_MASTER,
) -> None:
    """Count lost, duplicated and reordered rows of a chaos run with Spark; exit code 1 if there are any."""
    with one_line_errors("verify"), open_session("verify", master, short_run=True) as spark:
        verdict = verify(spark, directory / "events.jsonl", directory / "out")
    facts = asdict(verdict)
    if json_path is not None:
        json_path.write_text(json.dumps(facts, indent=1) + "\n")
    typer.echo("Spark: " + ", ".join(f"{value} {name}" for name, value in facts.items()))
    if not verdict.is_right:
        raise typer.Exit(1)


if __name__ == "__main__":
    app(prog_name="python -m workload.verify")
