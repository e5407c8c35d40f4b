"""Events of an online auction: people, auctions and bids, made from their numbers.

The streams of the Nexmark benchmark (Tucker et al., "NEXMark: A Benchmark for Queries over Data Streams", 2002) with
the proportions, hot keys and value distributions of its later implementations (Apache Beam, nexmark-flink).
"""
