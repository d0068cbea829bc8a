"""Rows of the table: VTAB's structured tasks, whose classes follow from annotations."""

from __future__ import annotations

from dataclasses import replace

from vitreous.data.datasets.arrays import (
    read_dsprites_location,
    read_dsprites_orientation,
    read_norb_azimuth,
    read_norb_elevation,
)
from vitreous.data.datasets.dmlab import prepare_dmlab
from vitreous.data.datasets.entry import Dataset, File, Vtab
from vitreous.data.datasets.images import read_split_folders
from vitreous.data.datasets.scenes import read_clevr_count, read_clevr_distance, read_kitti

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
            size=19_021_600_724,
            sha256="5cd61cf1096ed20944df93c9adb31e74d189b8459a94f54ba00090e5c59936d1",
            md5="b11922020e72d0cd9154779b2d3d07d2",
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

CLEVR_DISTANCE = replace(
    CLEVR_COUNT,
    name="clevr-distance",
    title="CLEVR: how far the nearest object is",
    classes=6,
    read=read_clevr_distance,
    notes=("Classes are bins that start at 0, 8, 8.5, 9, 9.5 and 10, as in VTAB.",),
)

DSPRITES_LOCATION = Dataset(
    name="dsprites-location",
    title="dSprites: where the shape is, from left to right",
    homepage="https://github.com/google-deepmind/dsprites-dataset",
    licence="Apache-2.0",
    citation="Matthey et al., dSprites: Disentanglement Testing Sprites Dataset, 2017",
    files=(
        File(
            "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz",
            (
                "https://github.com/google-deepmind/dsprites-dataset/raw/master/"
                "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz",
            ),
            md5="7da33b31b13a06f4b04a70402ce90c2e",
            only=("imgs.npy", "latents_classes.npy"),
            unpacked=3_100_000_000,
        ),
    ),
    classes=16,
    splits={"train": 589_824, "val": 73_728, "test": 73_728},
    read=read_dsprites_location,
    store="dsprites",
    vtab=Vtab("structured"),
    split_by="80, 10 and 10 % as in VTAB; which ones, by a hash of the numbers",
    notes=("Classes are 16 bins of two places each, as in VTAB.",),
)

DSPRITES_ORIENTATION = replace(
    DSPRITES_LOCATION,
    name="dsprites-orientation",
    title="dSprites: how the shape is turned",
    read=read_dsprites_orientation,
    notes=("Classes are 16 bins of 2.5 of the 40 steps each, as in VTAB.",),
)

_NORB = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
_TRAIN, _TEST = "smallnorb-5x46789x9x18x6x2x96x96-training", "smallnorb-5x01235x9x18x6x2x96x96-testing"


def _norb(part: str, size: int, sha256: str, unpacked: int) -> File:
    name = f"{part}.mat.gz"
    return File(name, (_NORB + name,), size=size, sha256=sha256, kind="gzip", unpacked=unpacked)


NORB_AZIMUTH = Dataset(
    name="smallnorb-azimuth",
    title="smallNORB: from which side the toy is seen",
    homepage=_NORB,
    licence="for research; it may not be sold",
    citation="LeCun et al., Learning Methods for Generic Object Recognition, CVPR 2004",
    files=(
        _norb(
            f"{_TRAIN}-dat",
            131_896_188,
            "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
            450_000_000,
        ),
        _norb(f"{_TRAIN}-info", 71_052, "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32", 400_000),
        _norb(
            f"{_TEST}-dat",
            130_799_817,
            "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
            450_000_000,
        ),
        _norb(f"{_TEST}-info", 10_428, "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2", 400_000),
    ),
    classes=18,
    splits={"train": 24_300, "val": 12_150, "test": 12_150},
    read=read_norb_azimuth,
    store="smallnorb",
    vtab=Vtab("structured"),
    split_by="half of the owners' test images are for validation, as in VTAB; which ones, by a hash of the numbers",
    notes=("Images of the left camera, 18 classes of 20 degrees.",),
)

NORB_ELEVATION = replace(
    NORB_AZIMUTH,
    name="smallnorb-elevation",
    title="smallNORB: from how high the toy is seen",
    classes=9,
    read=read_norb_elevation,
    notes=("Images of the left camera, 9 classes of 5 degrees.",),
)

DMLAB = Dataset(
    name="dmlab",
    title="DeepMind Lab: how far things are",
    homepage="https://github.com/google-research/task_adaptation",
    licence="none stated for the images; VTAB is Apache-2.0",
    citation="Zhai et al., The Visual Task Adaptation Benchmark, 2019; Beattie et al., DeepMind Lab, 2016",
    files=(
        File(
            "dmlab.tar.gz",
            ("https://storage.googleapis.com/dmlab-vtab/dmlab.tar.gz",),
            size=3_017_022_789,
            sha256="638b18fa69a5d61bbc310cd0b87ac603a39f41de0fdb07b6e77de274a24480a4",
        ),
    ),
    classes=6,
    splits={"train": 65_550, "val": 22_628, "test": 22_735},
    read=read_split_folders,
    prepare=prepare_dmlab,
    prepared=2 * 10**9,  # the images of the train split, before its record file is removed
    vtab=Vtab("structured"),
    notes=("Classes are close, far or very far from something of positive or negative reward; called 0 to 5.",),
)

_KITTI = "https://s3.eu-central-1.amazonaws.com/avg-kitti/"

KITTI_DISTANCE = Dataset(
    name="kitti-distance",
    title="KITTI: how far the nearest vehicle is",
    homepage="https://www.cvlibs.net/datasets/kitti/",
    licence="CC BY-NC-SA 3.0",
    citation="Geiger et al., Are We Ready for Autonomous Driving?, CVPR 2012",
    files=(
        File(
            "data_object_image_2.zip",
            (_KITTI + "data_object_image_2.zip",),
            size=12_569_945_557,
            sha256="351c5a2aa0cd9238b50174a3a62b846bc5855da256b82a196431d60ff8d43617",
            only=("training/",),
        ),
        File(
            "data_object_label_2.zip",
            (_KITTI + "data_object_label_2.zip",),
            size=5_601_213,
            sha256="4efc76220d867e1c31bb980bbf8cbc02599f02a9cb4350effa98dbb04aaed880",
        ),
        File(
            "devkit_object.zip",
            (_KITTI + "devkit_object.zip",),
            size=63_794,
            sha256="ce0b76b69c0c5f89690a0d65b7302bbbdb962a0c7e8aba6efc7050d1b04b4cf1",
        ),
    ),
    classes=4,
    splits={"train": 6_347, "val": 423, "test": 711},
    read=read_kitti,
    vtab=Vtab("structured"),
    split_by="the videos that TensorFlow Datasets draws, as in VTAB",
    notes=("Classes are at most 8 m, at most 20 m, farther, and no car, van or truck at all, as in VTAB.",),
)

ROWS = (
    *(CLEVR_COUNT, CLEVR_DISTANCE, DSPRITES_LOCATION, DSPRITES_ORIENTATION),
    *(NORB_AZIMUTH, NORB_ELEVATION, DMLAB, KITTI_DISTANCE),
)
