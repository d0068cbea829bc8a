"""Rows of the table: VTAB's specialized tasks."""

from __future__ import annotations

from vitreous.data.datasets.arrays import prepare_camelyon, read_camelyon
from vitreous.data.datasets.entry import Dataset, File, Vtab
from vitreous.data.datasets.images import read_eurosat, read_resisc45, read_retinopathy

_CAMELYON = "https://zenodo.org/record/2546921/files/"


def _camelyon(part: str, size: int, sha256: str, unpacked: int) -> File:
    name = f"camelyonpatch_level_2_split_{part}.h5.gz"
    return File(name, (_CAMELYON + name,), size=size, sha256=sha256, kind="gzip", unpacked=unpacked)


CAMELYON = Dataset(
    name="camelyon",
    title="PatchCamelyon (PCam)",
    homepage="https://github.com/basveeling/pcam",
    licence="CC0",
    citation="Veeling et al., Rotation Equivariant CNNs for Digital Pathology, MICCAI 2018",
    files=(
        _camelyon(
            "train_x",
            6_421_353_462,
            "d619e741468a7ab35c7e4a75e6821b7e7e6c9411705d45708f2a0efc8960656c",
            8 * 10**9,
        ),
        _camelyon("train_y", 21_378, "b74126d2c01b20d3661f9b46765d29cf4e4fba6faba29c8e0d09d406331ab75a", 10**7),
        _camelyon(
            "valid_x",
            805_965_320,
            "f82ee1670d027b4ec388048d9eabc2186b77c009655dae76d624c0ecb053ccb2",
            10**9,
        ),
        _camelyon("valid_y", 3_038, "ce1ae30f08feb468447971cfd0472e7becd0ad96d877c64120c72571439ae48c", 10**6),
        _camelyon(
            "test_x",
            800_875_929,
            "79174c2201ad521602a5888be8f36ee10875f37403dd3f2086caf2182ef87245",
            10**9,
        ),
        _camelyon("test_y", 3_040, "0a522005fccc8bbd04c5a117bfaf81d8da2676f03a29d7499f71d0a0bd6068ef", 10**6),
    ),
    classes=2,
    splits={"train": 262_144, "val": 32_768, "test": 32_768},
    read=read_camelyon,
    prepare=prepare_camelyon,
    prepared=262_144 * 96 * 96 * 3,  # the train split as an array, before its HDF5 file is removed
    needs=("h5py",),
    vtab=Vtab("specialized"),
    notes=(
        "The files are HDF5, so `data get` needs the package h5py (pip install 'vitreous[hdf5]'); reading the result "
        "does not.",
    ),
)

_LISTS = "https://storage.googleapis.com/remote_sensing_representations/"
_NEUMANN = (
    "the lists of Neumann et al., In-domain Representation Learning for Remote Sensing; the same sizes as VTAB's, "
    "other images"
)

EUROSAT = Dataset(
    name="eurosat",
    title="EuroSAT, red, green and blue",
    homepage="https://github.com/phelber/EuroSAT",
    licence="MIT",
    citation="Helber et al., EuroSAT: A Novel Dataset and Deep Learning Benchmark, IEEE JSTARS 2019",
    files=(
        File(
            "EuroSAT.zip",
            (
                "https://huggingface.co/datasets/torchgeo/eurosat/resolve/c877bcd43f099cd0196738f714544e355477f3fd/"
                "EuroSAT.zip",
                "https://madm.dfki.de/files/sentinel/EuroSAT.zip",
            ),
            size=94_280_567,
            sha256="8ebea626349354c5328b142b96d0430e647051f26efc2dc974c843f25ecf70bd",
            md5="c8fa014336c82ac7804f0398fcb19387",
        ),
        File(
            "eurosat-train.txt",
            (_LISTS + "eurosat-train.txt",),
            sha256="1c1d2e855f95deee605a3d992f914d113fddbecf422ec61648057d029a37d695",
            md5="908f142e73d6acdf3f482c5e80d851b1",
            kind="plain",
        ),
        File(
            "eurosat-val.txt",
            (_LISTS + "eurosat-val.txt",),
            sha256="b385741f31daa9f1250cf1e1fe03adfab394e1172e0693df40141af004f60330",
            md5="95de90f2aa998f70a3b2416bfe0687b4",
            kind="plain",
        ),
        File(
            "eurosat-test.txt",
            (_LISTS + "eurosat-test.txt",),
            sha256="cf37948894c12bd953930ff54ee9b7abf0b31478abb8d25fd2c6c721db74c592",
            md5="7ae5ab94471417b6e315763121e67c5f",
            kind="plain",
        ),
    ),
    classes=10,
    splits={"train": 16_200, "val": 5_400, "test": 5_400},
    read=read_eurosat,
    vtab=Vtab("specialized"),
    split_by=_NEUMANN,
)

RESISC45 = Dataset(
    name="resisc45",
    title="NWPU-RESISC45",
    homepage="https://doi.org/10.1109/JPROC.2017.2675998",
    licence="none stated; for research",
    citation="Cheng et al., Remote Sensing Image Scene Classification, Proceedings of the IEEE 2017",
    files=(
        File(
            "NWPU-RESISC45",
            kind="folder",
            by_hand="the folder that NWPU-RESISC45.rar from https://1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs unpacks "
            "to, with a folder for each class in it",
        ),
        File(
            "resisc45-train.txt",
            (_LISTS + "resisc45-train.txt",),
            md5="b5a4c05a37de15e4ca886696a85c403e",
            kind="plain",
        ),
        File("resisc45-val.txt", (_LISTS + "resisc45-val.txt",), md5="a0770cee4c5ca20b8c32bbd61e114805", kind="plain"),
        File(
            "resisc45-test.txt", (_LISTS + "resisc45-test.txt",), md5="3dda9e4988b47eb1de9f07993653eb08", kind="plain"
        ),
    ),
    classes=45,
    splits={"train": 18_900, "val": 6_300, "test": 6_300},
    read=read_resisc45,
    vtab=Vtab("specialized"),
    split_by=_NEUMANN,
    notes=("The owners' archive is a .rar, which only other programs unpack.",),
)

_KAGGLE = "from https://www.kaggle.com/c/diabetic-retinopathy-detection/data, after signing in"

RETINOPATHY = Dataset(
    name="retinopathy",
    title="Diabetic Retinopathy Detection",
    homepage="https://www.kaggle.com/c/diabetic-retinopathy-detection",
    licence="the rules of the competition at Kaggle",
    citation="Kaggle and EyePACS, Diabetic Retinopathy Detection, 2015",
    files=(
        File("train", kind="folder", by_hand=f"the folder that train.zip.001 to .005 unpack to, {_KAGGLE}"),
        File("test", kind="folder", by_hand=f"the folder that test.zip.001 to .007 unpack to, {_KAGGLE}"),
        File("trainLabels.csv", kind="plain", by_hand=f"what trainLabels.csv.zip holds, {_KAGGLE}"),
        File(
            "retinopathy_solution.csv",
            ("https://storage.googleapis.com/kaggle-forum-message-attachments/90528/2877/retinopathy_solution.csv",),
            size=1_181_257,
            sha256="a6af3d66804e81887da89b9261bcfb7da4f5bacedb070f1b5db83fa879ab60c9",
            kind="plain",
        ),
    ),
    classes=5,
    splits={"train": 35_126, "val": 10_906, "test": 42_670},
    read=read_retinopathy,
    vtab=Vtab("specialized"),
    notes=(
        "VTAB scales these images to an eye of 300 pixels radius and subtracts the local mean first; here they are "
        "as they are.",
    ),
)

ROWS = (CAMELYON, EUROSAT, RESISC45, RETINOPATHY)
