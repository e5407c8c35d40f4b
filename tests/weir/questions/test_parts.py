"""Parts of several task managers become one page: each key once, in order, and what is not known yet on the next."""

import pyarrow as pa
import pytest

from weir.protocol.queries import Question, read_continuation
from weir.questions.parts import Part, count_parts, lacking_groups, merge_parts, merged_places


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_have_all_keys_once_and_in_order(limit, reverse):
    held = [[f"{number:02x}" for number in range(0, 40, step)] for step in (7, 3)]
    held[1] = [key for key in held[1] if key not in held[0]]
    everything = sorted((key for keys in held for key in keys), reverse=reverse)
    found, after = [], None
    for _ in range(len(everything) + 1):
        keys, afters = [], []
        for each in held:
            left = sorted(
                (key for key in each if after is None or (key < after if reverse else key > after)),
                reverse=reverse,
            )
            # Parts have fewer rows than the limit, as if their bytes were used up.
            keys.append(left[: min(limit, 2)])
            afters.append(keys[-1][-1] if len(left) > len(keys[-1]) else None)
        places, after = merged_places(keys, afters, limit, reverse=reverse)
        assert len(places) <= limit
        found += [keys[part][index] for part, index in places]
        if after is None:
            break
    assert found == everything


def part(name, groups, rows, after=None, arrow=False):
    answer = {
        "groups": groups,
        "parts": [{"subtask": 0, "key_groups": len(groups), "watermark_ms": 5}],
        "count": len(rows),
        "keys": [key.encode().hex() for key, _ in rows],
        "order": "key",
        "after": after and after.encode().hex(),
    }
    if not arrow:
        return Part(name, answer | {"rows": [{"key": key, "value": value} for key, value in rows]})
    # Of a part without rows the type is not known.
    batch = pa.table({"key": pa.array([key for key, _ in rows], pa.string()), "value": [v for _, v in rows]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_table(batch)
    return Part(name, answer, bytes(sink.getvalue()))


@pytest.mark.parametrize("arrow", [False, True])
def test_rows_come_from_all_parts_which_say_their_positions(arrow):
    parts = [
        part("a:1", [0, 2], [("ann", 1), ("cyd", 3)], "cyd", arrow),
        part("b:1", [1], [("bob", 2), ("dan", 4)], None, arrow),
        part("c:1", [], [], None, arrow),
    ]
    assert lacking_groups(parts, 3) == []
    assert lacking_groups([*parts, part("d:1", [1], [])], 5) == [1, 3, 4]
    assert count_parts(parts, Question("s", "n", counts=True))["count"] == 4
    answer = merge_parts(parts, Question("s", "n", arrow=arrow))
    rows = answer["rows"]
    rows = pa.ipc.open_stream(rows).read_all().to_pylist() if arrow else rows
    assert [(row["key"], row["value"]) for row in rows] == [("ann", 1), ("bob", 2), ("cyd", 3)]
    assert read_continuation(answer["continuation"]) == (b"cyd".hex(), None)
    position = {"subtask": 0, "watermark_ms": 5}
    assert answer["parts"][0] == {"task_manager": "a:1", "key_groups": 2, **position}
