"""State that operators declare: tables with one life cycle, cached above a store. See ``weir.state.tables.table``."""
