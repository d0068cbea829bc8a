"""Rows of the table: VTAB's specialized tasks, and its structured ones, whose classes follow from annotations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from vitreous.data.datasets.annotations import read_clevr_count, read_clevr_distance, read_kitti
from vitreous.data.datasets.arrays import (
    AZIMUTH,
    ELEVATION,
    LOCATION,
    NORB_FILES,
    ORIENTATION,
    prepare_camelyon,
    read_camelyon,
    read_dsprites,
    read_smallnorb,
)
from vitreous.data.datasets.dataset import Dataset, File, Vtab, files_at
from vitreous.data.datasets.images import read_prefixed, read_retinopathy
from vitreous.data.datasets.tfrecord import prepare_dmlab
from vitreous.data.folder import open_folder

_CAMELYON = "https://zenodo.org/record/2546921/files/"
_CAMELYON_BYTES = {  # unpacked
    "train_x": 8 * 10**9,
    "train_y": 10**7,
    "valid_x": 10**9,
    "valid_y": 10**6,
    "test_x": 10**9,
    "test_y": 10**6,
}
_LISTS = "https://storage.googleapis.com/remote_sensing_representations/"
_NEUMANN = (
    "the lists of Neumann et al., In-domain Representation Learning for Remote Sensing; the same sizes as VTAB's, "
    "other images"
)
_EUROSAT = "https://huggingface.co/datasets/torchgeo/eurosat/resolve/c877bcd43f099cd0196738f714544e355477f3fd/"
_KAGGLE = "from https://www.kaggle.com/c/diabetic-retinopathy-detection/data, after signing in"
_SOLUTION = "https://storage.googleapis.com/kaggle-forum-message-attachments/90528/2877/"
_DSPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
_NORB = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
_NORB_BYTES = {"dat": 450_000_000, "info": 400_000}  # unpacked
_DMLAB = "https://storage.googleapis.com/dmlab-vtab/"
_KITTI = "https://s3.eu-central-1.amazonaws.com/avg-kitti/"


def _split_lists(dataset: str) -> tuple[File, ...]:
    return files_at(_LISTS, *(f"{dataset}-{split}.txt" for split in ("train", "val", "test")), kind="plain")


CLEVR_COUNT = Dataset(
    name="clevr-count",
    title="CLEVR: how many objects",
    homepage="https://cs.stanford.edu/people/jcjohns/clevr/",
    licence="CC BY 4.0",
    citation="Johnson et al., CLEVR: A Diagnostic Dataset for Compositional Language, CVPR 2017",
    files=(
        File(
            "CLEVR_v1.0.zip",
            ("https://dl.fbaipublicfiles.com/clevr/CLEVR_v1.0.zip",),
            only=("CLEVR_v1.0/images/train/", "CLEVR_v1.0/images/val/", "CLEVR_v1.0/scenes/"),
        ),
    ),
    classes=8,
    splits={"train": 70_000, "test": 15_000},
    read=read_clevr_count,
    store="clevr",
    vtab=Vtab("structured", train_percent=90),
    split_by="the owners' val images are the test split, as in VTAB: those of their test have no annotations",
)

DSPRITES_LOCATION = Dataset(
    name="dsprites-location",
    title="dSprites: where the shape is, from left to right",
    homepage="https://github.com/google-deepmind/dsprites-dataset",
    licence="Apache-2.0",
    citation="Matthey et al., dSprites: Disentanglement Testing Sprites Dataset, 2017",
    files=(
        File(
            _DSPRITES,
            (f"https://github.com/google-deepmind/dsprites-dataset/raw/master/{_DSPRITES}",),
            only=("imgs.npy", "latents_classes.npy"),
            unpacked=3_100_000_000,
        ),
    ),
    classes=16,
    splits={"train": 589_824, "val": 73_728, "test": 73_728},
    read=partial(read_dsprites, column=LOCATION, values=32),
    store="dsprites",
    vtab=Vtab("structured"),
    split_by="80, 10 and 10 % as in VTAB; which ones, by a hash of the numbers",
    notes=("Classes are 16 bins of two places each, as in VTAB.",),
)

NORB_AZIMUTH = Dataset(
    name="smallnorb-azimuth",
    title="smallNORB: from which side the toy is seen",
    homepage=_NORB,
    licence="for research; it may not be sold",
    citation="LeCun et al., Learning Methods for Generic Object Recognition, CVPR 2004",
    files=tuple(
        File(f"{name}-{kind}.mat.gz", (f"{_NORB}{name}-{kind}.mat.gz",), kind="gzip", unpacked=size)
        for name in NORB_FILES.values()
        for kind, size in _NORB_BYTES.items()
    ),
    classes=18,
    splits={"train": 24_300, "val": 12_150, "test": 12_150},
    read=partial(read_smallnorb, column=AZIMUTH, classes=[str(20 * step) for step in range(18)]),
    store="smallnorb",
    vtab=Vtab("structured"),
    split_by="half of the owners' test images are for validation, as in VTAB; which ones, by a hash of the numbers",
    notes=("Images of the left camera, 18 classes of 20 degrees.",),
)

ROWS = (
    Dataset(
        name="camelyon",
        title="PatchCamelyon (PCam)",
        homepage="https://github.com/basveeling/pcam",
        licence="CC0",
        citation="Veeling et al., Rotation Equivariant CNNs for Digital Pathology, MICCAI 2018",
        files=tuple(
            File(name, (_CAMELYON + name,), kind="gzip", unpacked=size)
            for array, size in _CAMELYON_BYTES.items()
            for name in [f"camelyonpatch_level_2_split_{array}.h5.gz"]
        ),
        classes=2,
        splits={"train": 262_144, "val": 32_768, "test": 32_768},
        read=read_camelyon,
        prepare=prepare_camelyon,
        prepared=262_144 * 96 * 96 * 3,  # the train split as an array, before its HDF5 file is removed
        needs=("h5py",),
        vtab=Vtab("specialized"),
        notes=(
            "The files are HDF5, so `data get` needs the package h5py (pip install 'vitreous[hdf5]'); reading the "
            "result does not.",
        ),
    ),
    Dataset(
        name="eurosat",
        title="EuroSAT, red, green and blue",
        homepage="https://github.com/phelber/EuroSAT",
        licence="MIT",
        citation="Helber et al., EuroSAT: A Novel Dataset and Deep Learning Benchmark, IEEE JSTARS 2019",
        files=(
            File(
                "EuroSAT.zip",
                (_EUROSAT + "EuroSAT.zip", "https://madm.dfki.de/files/sentinel/EuroSAT.zip"),
            ),
            *_split_lists("eurosat"),
        ),
        classes=10,
        splits={"train": 16_200, "val": 5_400, "test": 5_400},
        read=partial(read_prefixed, folder="2750", lists="eurosat"),
        vtab=Vtab("specialized"),
        split_by=_NEUMANN,
    ),
    Dataset(
        name="resisc45",
        title="NWPU-RESISC45",
        homepage="https://doi.org/10.1109/JPROC.2017.2675998",
        licence="none stated; for research",
        citation="Cheng et al., Remote Sensing Image Scene Classification, Proceedings of the IEEE 2017",
        files=(
            File(
                "NWPU-RESISC45",
                kind="folder",
                by_hand="the folder that NWPU-RESISC45.rar from https://1drv.ms/u/s!AmgKYzARBl5ca3HNaHIlzp_IXjs "
                "unpacks to, with a folder for each class in it",
            ),
            *_split_lists("resisc45"),
        ),
        classes=45,
        splits={"train": 18_900, "val": 6_300, "test": 6_300},
        read=partial(read_prefixed, folder="NWPU-RESISC45", lists="resisc45"),
        vtab=Vtab("specialized"),
        split_by=_NEUMANN,
        notes=("The owners' archive is a .rar, which only other programs unpack.",),
    ),
    Dataset(
        name="retinopathy",
        title="Diabetic Retinopathy Detection",
        homepage="https://www.kaggle.com/c/diabetic-retinopathy-detection",
        licence="the rules of the competition at Kaggle",
        citation="Kaggle and EyePACS, Diabetic Retinopathy Detection, 2015",
        files=(
            File("train", kind="folder", by_hand=f"the folder that train.zip.001 to .005 unpack to, {_KAGGLE}"),
            File("test", kind="folder", by_hand=f"the folder that test.zip.001 to .007 unpack to, {_KAGGLE}"),
            File("trainLabels.csv", kind="plain", by_hand=f"what trainLabels.csv.zip holds, {_KAGGLE}"),
            *files_at(_SOLUTION, "retinopathy_solution.csv", kind="plain"),
        ),
        classes=5,
        splits={"train": 35_126, "val": 10_906, "test": 42_670},
        read=read_retinopathy,
        vtab=Vtab("specialized"),
        notes=(
            "VTAB scales these images to an eye of 300 pixels radius and subtracts the local mean first; here they are "
            "as they are.",
        ),
    ),
    CLEVR_COUNT,
    replace(
        CLEVR_COUNT,
        name="clevr-distance",
        title="CLEVR: how far the nearest object is",
        classes=6,
        read=read_clevr_distance,
        notes=("Classes are bins that start at 0, 8, 8.5, 9, 9.5 and 10, as in VTAB.",),
    ),
    DSPRITES_LOCATION,
    replace(
        DSPRITES_LOCATION,
        name="dsprites-orientation",
        title="dSprites: how the shape is turned",
        read=partial(read_dsprites, column=ORIENTATION, values=40),
        notes=("Classes are 16 bins of 2.5 of the 40 steps each, as in VTAB.",),
    ),
    NORB_AZIMUTH,
    replace(
        NORB_AZIMUTH,
        name="smallnorb-elevation",
        title="smallNORB: from how high the toy is seen",
        classes=9,
        read=partial(read_smallnorb, column=ELEVATION, classes=[str(30 + 5 * step) for step in range(9)]),
        notes=("Images of the left camera, 9 classes of 5 degrees.",),
    ),
    Dataset(
        name="dmlab",
        title="DeepMind Lab: how far things are",
        homepage="https://github.com/google-research/task_adaptation",
        licence="none stated for the images; VTAB is Apache-2.0",
        citation="Zhai et al., The Visual Task Adaptation Benchmark, 2019; Beattie et al., DeepMind Lab, 2016",
        files=files_at(_DMLAB, "dmlab.tar.gz"),
        classes=6,
        splits={"train": 65_550, "val": 22_628, "test": 22_735},
        read=open_folder,
        prepare=prepare_dmlab,
        prepared=2 * 10**9,  # the images of the train split, before its record file is removed
        vtab=Vtab("structured"),
        notes=("Classes are close, far or very far from something of positive or negative reward; called 0 to 5.",),
    ),
    Dataset(
        name="kitti-distance",
        title="KITTI: how far the nearest vehicle is",
        homepage="https://www.cvlibs.net/datasets/kitti/",
        licence="CC BY-NC-SA 3.0",
        citation="Geiger et al., Are We Ready for Autonomous Driving?, CVPR 2012",
        files=(
            *files_at(_KITTI, "data_object_image_2.zip", only=("training/",)),
            *files_at(_KITTI, "data_object_label_2.zip", "devkit_object.zip"),
        ),
        classes=4,
        splits={"train": 6_347, "val": 423, "test": 711},
        read=read_kitti,
        vtab=Vtab("structured"),
        split_by="the videos that TensorFlow Datasets draws, as in VTAB",
        notes=("Classes are at most 8 m, at most 20 m, farther, and no car, van or truck at all, as in VTAB.",),
    ),
)
