from dataclasses import replace

import pytest

from weir.config.stores import CassandraConfig
from weir.errors import ConfigError
from weir.state.cassandra.schema import (
    NAME_CHARACTERS_MAX,
    StateTable,
    changed_buckets,
    misfit,
    state_tables,
    statements_of,
    table_name,
    table_statement,
)
from weir.state.cassandra.settings import StateSettings, parse_states


def test_a_table_is_named_after_job_step_and_state() -> None:
    assert table_name("TEXT3.word", "count2") == "text3_word_count2_weir_store"
    assert table_name("9lives", "a/b") == "t_9lives_a_b_weir_store"


def test_a_long_name_is_cut_and_stays_its_own() -> None:
    names = {table_name("job" * 20, f"state{number}") for number in range(20)}
    assert len(names) == 20
    assert all(len(name) <= NAME_CHARACTERS_MAX for name in names)


def test_two_states_never_share_a_table() -> None:
    with pytest.raises(ConfigError, match="'a-b' and 'a_b' of job j would share table j_a_b_weir_store"):
        state_tables("j", {"a-b": 1, "a_b": 2}, CassandraConfig())


def test_a_setting_of_a_state_that_is_none_is_refused_with_those_that_are() -> None:
    settings = CassandraConfig(states=("cuont.counts=true",))
    with pytest.raises(
        ConfigError, match=r"states names 'cuont', which is no state of job j; its states: count"
    ):
        state_tables("j", {"count": 1}, settings)


def test_a_state_that_is_read_in_order_is_refused_the_layout_without_it_before_there_is_a_table() -> None:
    settings = CassandraConfig(states=("prices/by_time.layout=global",))
    ids = {"prices/by_time": 1, "prices/last": 2}
    with pytest.raises(ConfigError, match=r"'prices/by_time' of job j has the layout global .* partitioned"):
        state_tables("j", ids, settings, ordered=["prices/by_time"])
    assert state_tables("j", ids, settings, ordered=["prices/last"])[1].layout == "global"


def test_a_state_is_named_in_settings_as_in_questions_too() -> None:
    asked = ["count/words", "count/lines", "table/name"]
    ids = {"count": 1, "table/name": 2}
    for name in ("count", "count/words"):
        made = CassandraConfig(states=(f"{name}.counts=true", f"{name}.table=own"))
        tables = state_tables("j", ids, made, asked)
        assert (tables[1].name, tables[1].counts, tables[2].counts) == ("weir.own", True, False)
        assert "set count.counts=true in" in tables[1].not_counted
    with pytest.raises(
        ConfigError, match="names 'count/pages', which is no state of job j; its states: count, t"
    ):
        state_tables("j", ids, CassandraConfig(states=("count/pages.counts=true",)), asked)
    both = ("count/words.buckets=2", "count/lines.buckets=3")
    with pytest.raises(
        ConfigError, match="'count/words' and 'count/lines', which are one state of job j: keep"
    ):
        state_tables("j", ids, CassandraConfig(states=both), asked)


def test_a_name_that_is_none_is_refused() -> None:
    settings = CassandraConfig(states=("count.table=drop table",))
    with pytest.raises(ConfigError, match="is 'drop table'; a table has a name of a-z"):
        state_tables("j", {"count": 1}, settings)


def test_what_a_state_does_not_say_the_section_says() -> None:
    settings = CassandraConfig(
        buckets=4,
        time_to_live_s=60,
        table_options="comment = 'WITH care'",
        states=("b.table=own", "b.time_to_live_s=0", "b.buckets=2", "b.table_options="),
    )
    tables = state_tables("j", {"a": 1, "b": 2}, settings)
    assert (tables[1].buckets, tables[1].time_to_live_s) == (4, 60)
    # The text after WITH stays as it is, whatever it has.
    assert table_statement(tables[1]).endswith(" WITH comment = 'WITH care'")
    assert (tables[2].name, tables[2].buckets, tables[2].time_to_live_s) == ("weir.own", 2, 0)
    assert "WITH" not in table_statement(tables[2])


def test_writes_carry_a_timestamp_and_a_time_to_live_where_there_is_one() -> None:
    forever, mortal = state_tables(
        "j", {"a": 1, "b": 2}, CassandraConfig(states=("b.time_to_live_s=5",))
    ).values()
    assert statements_of(forever).put.endswith("USING TIMESTAMP ?")
    assert statements_of(mortal).put.endswith("USING TIMESTAMP ? AND TTL ?")
    assert "USING TIMESTAMP ?" in statements_of(mortal).delete


def test_rows_of_the_global_layout_lie_each_for_itself() -> None:
    (table,) = state_tables("j", {"a": 1}, CassandraConfig(buckets=8, states=("a.layout=global",))).values()
    assert "PRIMARY KEY ((run, key_group, bucket, key))" in table_statement(table)
    assert table.buckets == 1


def test_a_table_that_is_there_is_that_of_the_state_or_not() -> None:
    own = StateTable("weir.count", "partitioned", 1, 0, "", counts=False)
    kinds = {
        "run": "partition_key",
        "key_group": "partition_key",
        "bucket": "partition_key",
        "value": "regular",
    }
    assert misfit(own, kinds | {"key": "clustering"}) == ""
    assert "weir.count was created with the layout global" in misfit(own, kinds | {"key": "partition_key"})
    assert misfit(replace(own, layout="global"), kinds | {"key": "partition_key"}) == ""
    assert "layout partitioned" in misfit(replace(own, layout="global"), kinds | {"key": "clustering"})
    assert "no table of Weir's: it has the columns bucket" in misfit(own, kinds)


def test_rows_in_another_number_of_buckets_are_refused_with_the_keys_to_mend_it():
    tables = state_tables("j", {"a/x": 1, "b": 2}, CassandraConfig(buckets=8)).values()
    names = [table.name for table in tables]
    assert changed_buckets(tables, {}) == changed_buckets(tables, dict.fromkeys(names, 8)) == ""
    told = changed_buckets(tables, {names[0]: 4, names[1]: 8})
    assert told.startswith(
        "weir.j_a_x_weir_store has the state in 4 buckets of each key group, and is to have 8 now"
    )
    assert (
        "set taskManager.cassandra.buckets back to 4, or a/x.buckets=4 in taskManager.cassandra.states"
        in told
    )


def test_settings_of_single_states_are_checked_and_the_message_names_the_mend() -> None:
    states = parse_states(["count/words.layout=global", "count/words.counts=true", "a.b.time_to_live_s=9"])
    assert states == {
        "count/words": StateSettings(layout="global", counts=True),
        "a.b": StateSettings(time_to_live_s=9),
    }
    for text, words in {
        "count": "must be STATE.SETTING=VALUE",
        "count.tabel=x": "there is no setting 'tabel'; there are table, layout",
        "count.buckets=many": "valid integer",
        "count.layout=local": "'partitioned' or 'global'",
        "count.buckets=0": "greater than or equal to 1",
        "count.time_to_live_s=-5": "greater than or equal to 0",
        "count.time_to_live_s=999999999999": "less than or equal to 630720000",
        "count.table=": "at least 1 character",
    }.items():
        with pytest.raises(ConfigError, match=words) as raised:
            parse_states([text])
        assert "taskManager.cassandra.states: " in str(raised.value)
