"""Rows of the table: the benchmarks of the paper's first table, and small ones to begin with."""

from __future__ import annotations

from vitreous.data.datasets.entry import Dataset, File
from vitreous.data.datasets.imagenet import read_imagenet
from vitreous.data.datasets.images import read_numbered_folders
from vitreous.data.datasets.packed_folder import read_packed

_IMAGENET = "after signing in at https://image-net.org/download-images, ILSVRC 2012"

IMAGENET = Dataset(
    name="imagenet",
    title="ImageNet (ILSVRC 2012)",
    homepage="https://image-net.org/challenges/LSVRC/2012/",
    licence="for non-commercial research and education, on the terms that are signed when signing in",
    citation="Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV 2015",
    files=(
        File(
            "ILSVRC2012_img_train.tar",
            size=147_897_477_120,
            sha256="b08200a27a8e34218a0e58fde36b0fe8f73bc377f4acea2d91602057c3ca45bb",
            md5="1d675b47d978889d74fa0da5fadfb00e",
            into="train",
            nested=True,
            by_hand=f"{_IMAGENET}, training images (task 1 and 2)",
        ),
        File(
            "ILSVRC2012_img_val.tar",
            size=6_744_924_160,
            sha256="c7e06a6c0baccf06d8dbeb6577d71efff84673a5dbdd50633ab44f8ea0456ae0",
            md5="29b22e2961454d5413ddabcf34fc5622",
            into="val",
            by_hand=f"{_IMAGENET}, validation images (all tasks)",
        ),
        File(
            "ILSVRC2012_devkit_t12.tar.gz",
            md5="fa75699e90414af021442c21a62c3abf",
            by_hand=f"{_IMAGENET}, development kit (task 1 and 2)",
        ),
    ),
    classes=1000,
    splits={"train": 1_281_167, "val": 50_000},
    read=read_imagenet,
    notes=("Classes are synsets in the order of their names, as every ImageNet classifier has them.",),
)

IMAGENET_REAL = Dataset(
    name="imagenet-real",
    title="ReaL labels of ImageNet's validation images",
    homepage="https://github.com/google-research/reassessed-imagenet",
    licence="Apache-2.0",
    citation="Beyer et al., Are we done with ImageNet?, 2020",
    files=(
        File(
            "real.json",
            ("https://raw.githubusercontent.com/google-research/reassessed-imagenet/master/real.json",),
            size=388_478,
            sha256="d83e9bff374c631aae8439eb064c7019acc56e1b3bc3f56b8380c2a710b0220b",
            kind="plain",
        ),
    ),
    classes=1000,
    splits={},
    read=None,
    notes=("evaluate on the val split of imagenet with these labels instead.",),
)

IMAGENET_V2 = Dataset(
    name="imagenet-v2",
    title="ImageNet-V2, matched frequency",
    homepage="https://github.com/modestyachts/ImageNetV2",
    licence="MIT",
    citation="Recht et al., Do ImageNet Classifiers Generalize to ImageNet?, ICML 2019",
    files=(
        File(
            "imagenetv2-matched-frequency.tar.gz",
            ("https://huggingface.co/datasets/vaishaal/ImageNetV2/resolve/main/imagenetv2-matched-frequency.tar.gz",),
            size=1_264_079_360,
            sha256="f0c37fdf925916b19ea1323cd9a2208cdb6959ba2c32eef2a7fc393835c9ca7c",
        ),
    ),
    classes=1000,
    splits={"test": 10_000},
    read=read_numbered_folders,
    notes=("Classes are called 0 to 999, in ImageNet's order.",),
)

CIFAR10 = Dataset(
    name="cifar10",
    title="CIFAR-10",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; the owners ask to cite their report",
    citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    files=(
        File(
            "cifar-10-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            size=170_052_171,
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    classes=10,
    splits={"train": 50_000, "test": 10_000},
    read=read_packed,
)

_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


def _idx(base: str, name: str, size: int, sha256: str, md5: str) -> File:
    return File(name, (base + name,), size=size, sha256=sha256, md5=md5, kind="plain")


MNIST = Dataset(
    name="mnist",
    title="MNIST",
    homepage="http://yann.lecun.com/exdb/mnist/",
    licence="CC BY-SA 3.0",
    citation="LeCun et al., Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE 1998",
    files=(
        _idx(
            *(_MNIST, "train-images-idx3-ubyte.gz", 9_912_422),
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        _idx(
            *(_MNIST, "train-labels-idx1-ubyte.gz", 28_881),
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "d53e105ee54ea40749a09fcbcd1e9432",
        ),
        _idx(
            *(_MNIST, "t10k-images-idx3-ubyte.gz", 1_648_877),
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "9fb629c4189551a2d022fa330f9573f3",
        ),
        _idx(
            *(_MNIST, "t10k-labels-idx1-ubyte.gz", 4_542),
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    classes=10,
    splits={"train": 60_000, "test": 10_000},
    read=read_packed,
    digits=True,
)

FASHION_MNIST = Dataset(
    name="fashion-mnist",
    title="Fashion-MNIST",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    citation="Xiao et al., Fashion-MNIST: a Novel Image Dataset for Benchmarking Runtime Learning Algorithms, 2017",
    files=(
        _idx(
            *(_FASHION, "train-images-idx3-ubyte.gz", 26_421_880),
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        ),
        _idx(
            *(_FASHION, "train-labels-idx1-ubyte.gz", 29_515),
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "25c81989df183df01b3e8a0aad5dffbe",
        ),
        _idx(
            *(_FASHION, "t10k-images-idx3-ubyte.gz", 4_422_102),
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "bef4ecab320f06d8554ea6380940ec79",
        ),
        _idx(
            *(_FASHION, "t10k-labels-idx1-ubyte.gz", 5_148),
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    classes=10,
    splits={"train": 60_000, "test": 10_000},
    read=read_packed,
)

ROWS = (IMAGENET, IMAGENET_REAL, IMAGENET_V2, CIFAR10, MNIST, FASHION_MNIST)
