"""Pure: the fixed shuffle."""

import polars as pl


def hashed(index: pl.Expr) -> pl.Expr:
    """A 64-bit hash of each index by splitmix64; sorting by it is a fixed shuffle.

    The hash is a bijection, so there are no ties. It is written out here, so the order does not depend on a library's
    random numbers. Polars' integers wrap on overflow, as splitmix64 needs.
    """
    golden = pl.lit(0x9E3779B97F4A7C15, pl.UInt64)
    z = (index.cast(pl.UInt64) + pl.lit(1, pl.UInt64)) * golden
    z = (z ^ _shifted(z, 30)) * pl.lit(0xBF58476D1CE4E5B9, pl.UInt64)
    z = (z ^ _shifted(z, 27)) * pl.lit(0x94D049BB133111EB, pl.UInt64)
    return z ^ _shifted(z, 31)


def _shifted(z: pl.Expr, bits: int) -> pl.Expr:
    return z // pl.lit(1 << bits, pl.UInt64)
