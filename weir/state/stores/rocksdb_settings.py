"""How RocksDB is set up: what follows from section ``taskManager.rocksdb`` of config.json."""

from __future__ import annotations

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DataBlockIndexType,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    ReadOptions,
    WriteBufferManager,
    WriteOptions,
)

from weir.config.stores import RocksDbConfig

_COMPRESSIONS = {
    "none": DBCompressionType.none,
    "snappy": DBCompressionType.snappy,
    "lz4": DBCompressionType.lz4,
    "zstd": DBCompressionType.zstd,
}
_COMPACTIONS = {"level": DBCompactionStyle.level, "universal": DBCompactionStyle.universal}
#: Files are small so that the index and filter of each fit well in one shard of the block cache.
_TABLE_FILE_BYTES = 8 << 20
#: RocksDB begins another manifest then: each image has a copy.
MANIFEST_BYTES_MAX = 1 << 20
#: Share of a memory table for a Bloom filter over its keys: saves most reads a walk through every skip list.
_MEMORY_TABLE_FILTER_SHARE = 0.05
_LOG_FILE_BYTES = 4 << 20


class StoreMemory:
    """The memory that one store may use: memory tables are charged to the block cache."""

    def __init__(self, settings: RocksDbConfig) -> None:
        # The clock cache takes no lock on a hit; entry charge 0: it adapts to the sizes it meets.
        self.cache = Cache.new_hyper_clock_cache(memory_bytes_max(settings), 0)
        self.write_buffers = WriteBufferManager.new_write_buffer_manager_with_cache(
            settings.write_buffer_total_bytes, False, self.cache
        )


def memory_bytes_max(settings: RocksDbConfig) -> int:
    """Bound of the memory of all stores that share a :class:`StoreMemory`."""
    return settings.block_cache_bytes + settings.write_buffer_total_bytes


def maps_tables(settings: RocksDbConfig) -> bool:
    """Whether table files are mapped: compressed blocks have to be copied anyway, and those of direct reads are."""
    return settings.mmap_reads and settings.compression == "none" and not settings.direct_io


def store_options(settings: RocksDbConfig, memory: StoreMemory) -> Options:
    """RocksDB's options for a store of many small entries that are read and rewritten one by one."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    if settings.statistics:
        options.enable_statistics()
    options.set_block_based_table_factory(_table_options(settings, memory.cache))
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_write_buffer_size(settings.write_buffer_bytes)
    options.set_max_write_buffer_number(settings.write_buffer_count)
    options.set_compression_type(_COMPRESSIONS[settings.compression]())
    options.set_compaction_style(_COMPACTIONS[settings.compaction]())
    options.set_target_file_size_base(_TABLE_FILE_BYTES)
    options.set_level_zero_file_num_compaction_trigger(settings.level_0_runs)
    options.set_level_zero_slowdown_writes_trigger(3 * settings.level_0_runs)
    options.set_level_zero_stop_writes_trigger(4 * settings.level_0_runs)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(_MEMORY_TABLE_FILTER_SHARE)
    options.set_max_background_jobs(settings.background_threads)
    options.set_max_open_files(settings.max_open_files)
    # One list of open tables, not 64 that are each bounded by chance: those used last stay open.
    options.set_table_cache_num_shard_bits(0)
    options.set_allow_mmap_reads(maps_tables(settings))
    options.set_use_direct_reads(settings.direct_io)
    options.set_use_direct_io_for_flush_and_compaction(settings.direct_io)
    options.set_max_log_file_size(_LOG_FILE_BYTES)
    options.set_keep_log_file_num(2)
    options.set_max_manifest_file_size(MANIFEST_BYTES_MAX)
    options.set_stats_dump_period_sec(0)
    # Whoever drops the last reader of tables that a merge has replaced would delete them, 4 ms each: a background
    # thread does it.
    options.set_avoid_unnecessary_blocking_io(True)
    return options


def _table_options(settings: RocksDbConfig, cache: Cache) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(settings.block_bytes)
    table.set_format_version(6)
    table.set_checksum_type(ChecksumType.xxh3())
    table.set_index_type(BlockBasedIndexType.binary_search())
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if settings.bloom_bits_per_key > 0:
        table.set_bloom_filter(settings.bloom_bits_per_key, False)
    return table


def read_options(settings: RocksDbConfig) -> ReadOptions:
    """Options of point reads. Mapped blocks are not verified at every read; compaction verifies all it reads."""
    options = ReadOptions()
    options.set_verify_checksums(not maps_tables(settings))
    options.set_background_purge_on_iterator_cleanup(True)
    return options


def write_options() -> WriteOptions:
    """No log; RocksDB refuses what would have to wait; sorted batches insert next to their last key."""
    options = WriteOptions()
    # A property: the stub of rocksdict is wrong.
    options.disable_wal = True  # type: ignore[assignment,method-assign]
    options.no_slowdown = True
    options.memtable_insert_hint_per_batch = True
    return options
