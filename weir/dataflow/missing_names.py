"""What Weir calls that which other engines call otherwise, told where a job's author uses their name. Inert."""

from __future__ import annotations

from collections.abc import Iterable

from weir.errors import GraphError
from weir.spelling import did_you_mean


class MissingNameError(GraphError, AttributeError):
    """A stream has no such method: ``hasattr`` says False."""


_KEY = 'key_by("column")'
_RESULT = (
    'the rows of a step are in weir.run(flow, collect="name")["name"], or go to sink("out", weir.Print())'
)
_ORDER = 'a stream has no end to sort at; key_by("column").top("name", by="x", rows=10) keeps the first ones'
#: Names of pandas, Polars, Spark, Flink and Bytewax, in lower case and without ``_``, and what to write.
_OTHERS = (
    ("groupby partitionby by keyon", _KEY),
    (
        "agg sum min max mean avg median std stddev var nunique quantile valuecounts cumsum len size reduce fold "
        "statefulmap foldfinal reducefinal",
        f'{_KEY}.aggregate("name", total=weir.sum("x")), with .window(weir.tumbling("60s")) before it',
    ),
    (
        "collect show head tail take first last limit sample print display inspect describe glimpse topandas topolars "
        "todicts toarrow fetch execute compute iterrows rows executeandcollect",
        _RESULT,
    ),
    ("sort sortvalues sortby orderby nlargest nsmallest topk", _ORDER),
    ("where query filterrows remove", 'filter("name", pl.col("x") > 0)'),
    ("withcolumn assign mutate hstack", 'with_columns("name", total=pl.col("x") * 2)'),
    ("withcolumnrenamed renamecolumns", 'rename("name", {"old": "new"})'),
    ("dropcolumns dropcolumn", 'drop("name", "column")'),
    (
        "write writestream tocsv tojson toparquet writecsv writeparquet writendjson addsink sinkto output sinkparquet "
        "sinkndjson foreachbatch saveastable insertinto",
        'sink("out", weir.JsonLinesSink("directory"))',
    ),
    ("foreach applymap maprows mapelements", 'map("name", function)'),
    ("mappartitions mapinarrow mapinpandas mapbatch pipe transform", 'map_batches("name", function)'),
    ("distinct unique dropduplicates", f'{_KEY}.deduplicate("name")'),
    ("merge connect cogroup intervaljoin", f'{_KEY}.join("name", other.key_by("column"))'),
    ("concat vstack unionall extend append", 'union("name", other)'),
    (
        "rolling resample groupbydynamic timewindow tumble hop ewm",
        f'{_KEY}.window(weir.tumbling("60s")), or window_all(...) without a key',
    ),
    ("repartition shuffle rescale coalesce redistribute", "rebalance(), and parallelism= of the next step"),
    ("withwatermark assigntimestampsandwatermarks assigntimestamps", 'assign_event_time("name", "column")'),
    ("flatten", 'explode("name", "column")'),
    ("split branch getsideoutput", 'filter("name", ...) once for each part, or side_output("name")'),
    ("processfunction transformwithstate", f'{_KEY}.process("name", MyProcess)'),
    ("columns dtypes printschema", "schema"),
)
#: For other modules.
_NOT_CALLED = frozenset(
    {
        *("added_step", "keyed_step", "partitioned", "new_name", "add", "line_of", "build_local"),
        *("stream_of", "keyed_stream_of", "of"),
    }
)
_MENDS = {name: mend for names, mend in _OTHERS for name in names.split()}


def missing_name(whose: str, name: str, known: Iterable[str]) -> MissingNameError:
    """The error to raise in ``__getattr__``; called for names that do not begin with ``_``.

    Args:
        whose: of whom it was asked, such as ``step 'orders': a stream``.
        name: what is not there.
        known: names that are.
    """
    names = sorted(known)
    plain = name.replace("_", "").lower()
    same = [each for each in names if each.replace("_", "") == plain]
    if same:
        return MissingNameError(f"{whose} has no {name!r}; did you mean {same[0]!r}?")
    mend = _MENDS.get(plain)
    told = did_you_mean(name, names) if mend is None else f"; did you mean {mend}?"
    if mend in (_RESULT, _ORDER):
        told = f": {mend}"
    return MissingNameError(f"{whose} has no {name!r}{told}")


def methods_of(kind: type) -> list[str]:
    """What an author may call."""
    return [name for name in dir(kind) if not name.startswith("_") and name not in _NOT_CALLED]
