"""Rows of the table: VTAB's natural tasks."""

from __future__ import annotations

from vitreous.data.datasets.arrays import read_svhn
from vitreous.data.datasets.entry import Dataset, File, Vtab
from vitreous.data.datasets.images import read_caltech101, read_dtd, read_flowers, read_pets, read_sun397
from vitreous.data.datasets.packed_folder import read_packed

CALTECH101 = Dataset(
    name="caltech101",
    title="Caltech-101",
    homepage="https://data.caltech.edu/records/mzrjq-6wc02",
    licence="CC BY 4.0",
    citation="Fei-Fei et al., Learning Generative Visual Models from Few Training Examples, CVPR Workshop 2004",
    files=(
        File(
            "caltech-101.zip",
            ("https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip?download=1",),
            size=137_414_764,
            sha256="331234750fc7f77520e50d9565e8b6907b03565e30320da1401130db08c61f91",
            md5="3138e1922a9193bfa496528edbbc45d0",
            only=("caltech-101/101_ObjectCategories",),
            nested=True,
        ),
    ),
    classes=102,
    splits={"train": 3_060, "test": 6_084},
    read=read_caltech101,
    vtab=Vtab("natural", train_percent=90),
    split_by="30 of each class for training, as is usual; which ones, by a hash of the names",
    notes=("102 classes: one of them is background.",),
)

CIFAR100 = Dataset(
    name="cifar100",
    title="CIFAR-100",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; the owners ask to cite their report",
    citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    files=(
        File(
            "cifar-100-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
            size=168_513_733,
            sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    classes=100,
    splits={"train": 50_000, "test": 10_000},
    read=read_packed,
    vtab=Vtab("natural", train_percent=90),
)

DTD = Dataset(
    name="dtd",
    title="Describable Textures (DTD)",
    homepage="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
    licence="for research",
    citation="Cimpoi et al., Describing Textures in the Wild, CVPR 2014",
    files=(
        File(
            "dtd-r1.0.1.tar.gz",
            ("https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",),
            size=625_239_812,
            sha256="e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
            md5="fff73e5086ae6bdbea199a49dfb8a4c1",
        ),
    ),
    classes=47,
    splits={"train": 1_880, "val": 1_880, "test": 1_880},
    read=read_dtd,
    vtab=Vtab("natural"),
    notes=("The first of the owners' ten folds.",),
)

_FLOWERS = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"

FLOWERS102 = Dataset(
    name="flowers102",
    title="Oxford Flowers-102",
    homepage=_FLOWERS,
    licence="none stated",
    citation="Nilsback and Zisserman, Automated Flower Classification over a Large Number of Classes, ICVGIP 2008",
    files=(
        File(
            "102flowers.tgz",
            (_FLOWERS + "102flowers.tgz",),
            size=344_862_509,
            sha256="2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246",
            md5="52808999861908f626f3c1f4e79d11fa",
        ),
        File(
            "imagelabels.mat",
            (_FLOWERS + "imagelabels.mat",),
            size=502,
            sha256="4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d",
            md5="e0620be6f572b9609742df49c70aed4d",
            kind="plain",
        ),
        File(
            "setid.mat",
            (_FLOWERS + "setid.mat",),
            size=14_989,
            sha256="46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd",
            md5="a5357ecc9cb78c4bef273ce3793fc85c",
            kind="plain",
        ),
    ),
    classes=102,
    splits={"train": 1_020, "val": 1_020, "test": 6_149},
    read=read_flowers,
    vtab=Vtab("natural"),
    notes=("Classes are called 1 to 102, as in the owners' files.",),
)

PETS = Dataset(
    name="pets",
    title="Oxford-IIIT Pets",
    homepage="https://www.robots.ox.ac.uk/~vgg/data/pets/",
    licence="CC BY-SA 4.0",
    citation="Parkhi et al., Cats and Dogs, CVPR 2012",
    files=(
        File(
            "images.tar.gz",
            (
                "https://www.robots.ox.ac.uk/~vgg/data/pets/data/images.tar.gz",
                "https://thor.robots.ox.ac.uk/~vgg/data/pets/images.tar.gz",
            ),
            size=791_918_971,
            sha256="67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d",
            md5="5c4f3ee8e5d25df40f4fd59a7f44e54c",
        ),
        File(
            "annotations.tar.gz",
            (
                "https://www.robots.ox.ac.uk/~vgg/data/pets/data/annotations.tar.gz",
                "https://thor.robots.ox.ac.uk/~vgg/data/pets/annotations.tar.gz",
            ),
            size=19_173_078,
            sha256="52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91",
            md5="95a8c909bbe2e81eed6a22bccdf3f68f",
        ),
    ),
    classes=37,
    splits={"train": 3_680, "test": 3_669},
    read=read_pets,
    vtab=Vtab("natural", train_percent=80),
)

_SVHN = "http://ufldl.stanford.edu/housenumbers/"

SVHN = Dataset(
    name="svhn",
    title="Street View House Numbers, cropped digits (SVHN)",
    homepage=_SVHN,
    licence="for non-commercial use",
    citation="Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS Workshop 2011",
    files=(
        File(
            "train_32x32.mat",
            (_SVHN + "train_32x32.mat",),
            size=182_040_794,
            sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            md5="e26dedcc434d2e4c54c9b2d4a06d8373",
            kind="plain",
        ),
        File(
            "test_32x32.mat",
            (_SVHN + "test_32x32.mat",),
            size=64_275_384,
            sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            md5="eb5a983be6a315427106f1b164d9cef3",
            kind="plain",
        ),
    ),
    classes=10,
    splits={"train": 73_257, "test": 26_032},
    read=read_svhn,
    vtab=Vtab("natural", train_percent=90),
    digits=True,
    notes=("The extra images, which are easier, are left out, as in VTAB.",),
)

_SUN = "https://vision.princeton.edu/projects/2010/SUN/"
_SUN_LISTS = "https://raw.githubusercontent.com/tensorflow/datasets/v4.9.0/tensorflow_datasets/image_classification/"

SUN397 = Dataset(
    name="sun397",
    title="SUN397 scenes",
    homepage=_SUN,
    licence="none stated; for research",
    citation="Xiao et al., SUN Database: Large-scale Scene Recognition from Abbey to Zoo, CVPR 2010",
    files=(
        File(
            "SUN397.tar.gz",
            (_SUN + "SUN397.tar.gz",),
            size=39_077_296_924,
            sha256="f404130965a7ad77bed5ececc71e720ab50f3cc1e1bb257257610d38f3b928ec",
            md5="8ca2778205c41d23104230ba66911c7a",
        ),
        *(
            File(f"sun397_tfds_{part}.txt", (f"{_SUN_LISTS}sun397_tfds_{part}.txt",), kind="plain")
            for part in ("tr", "va", "te")
        ),
    ),
    classes=397,
    splits={"train": 76_128, "val": 10_875, "test": 21_750},
    read=read_sun397,
    vtab=Vtab("natural"),
    split_by="the lists of TensorFlow Datasets, which VTAB takes",
    notes=(
        "VTAB shrinks these images to 120,000 pixels at JPEG quality 72 first; here they are as they are.",
        "No checksum of the three lists is known.",
        "t/track/outdoor/sun_aophkoiosslinihb.jpg is badly encoded, and later versions of TensorFlow Datasets skip it; "
        "the published counts include it.",
    ),
)

ROWS = (CALTECH101, CIFAR100, DTD, FLOWERS102, PETS, SVHN, SUN397)
