"""Queries of Nexmark that join streams."""

from __future__ import annotations

import polars as pl

import weir
from weir.examples.nexmark_streams import Auction


def q3(auction: Auction) -> weir.Stream:
    """Who sells in some states: auctions of a category with their sellers, whichever comes first."""
    wanted = auction.auctions.filter("wanted", pl.col("category") == 10).select("auction", "id", "seller")
    near = auction.people.filter("near", pl.col("state").is_in(["OR", "ID", "CA"]))
    sellers = near.select("seller", "id", "name", "city", "state").key_by("id")
    joined = wanted.key_by("seller").join("sold", sellers)
    return joined.select("suggested", "name", "city", "state", "id")


def q20(auction: Auction) -> weir.Stream:
    """Bids with all that is known of their auction, of one category; both are kept, whichever comes first."""
    wanted = auction.auctions.filter("wanted", pl.col("category") == 10).key_by("id")
    return auction.bids.key_by("auction").join("expanded", wanted)
