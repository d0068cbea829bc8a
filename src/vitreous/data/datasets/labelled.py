"""Rows of the table: ImageNet, small datasets to begin with, and VTAB's natural tasks."""

from __future__ import annotations

from vitreous.data.datasets.arrays import read_packed, read_svhn
from vitreous.data.datasets.dataset import Dataset, File, Vtab, files_at
from vitreous.data.datasets.images import (
    read_caltech101,
    read_dtd,
    read_flowers,
    read_imagenet,
    read_numbered_folders,
    read_pets,
    read_sun397,
)

_IMAGENET = "after signing in at https://image-net.org/download-images, ILSVRC 2012"
_REAL = "https://raw.githubusercontent.com/google-research/reassessed-imagenet/master/"
_V2 = "https://huggingface.co/datasets/vaishaal/ImageNetV2/resolve/main/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CALTECH = "https://data.caltech.edu/records/mzrjq-6wc02"
_VGG = "https://www.robots.ox.ac.uk/~vgg/data/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_SUN = "https://vision.princeton.edu/projects/2010/SUN/"
_SUN_LISTS = "https://raw.githubusercontent.com/tensorflow/datasets/v4.9.0/tensorflow_datasets/image_classification/"
_IDX_NAMES = tuple(f"{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))

ROWS = (
    Dataset(
        name="imagenet",
        title="ImageNet (ILSVRC 2012)",
        homepage="https://image-net.org/challenges/LSVRC/2012/",
        licence="for non-commercial research and education, on the terms that are signed when signing in",
        citation="Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV 2015",
        files=(
            File(
                "ILSVRC2012_img_train.tar",
                into="train",
                nested=True,
                by_hand=f"{_IMAGENET}, training images (task 1 and 2)",
            ),
            File("ILSVRC2012_img_val.tar", into="val", by_hand=f"{_IMAGENET}, validation images (all tasks)"),
            File("ILSVRC2012_devkit_t12.tar.gz", by_hand=f"{_IMAGENET}, development kit (task 1 and 2)"),
        ),
        classes=1000,
        splits={"train": 1_281_167, "val": 50_000},
        read=read_imagenet,
        needs=("scipy",),
        notes=("Classes are synsets in the order of their names, as every ImageNet classifier has them.",),
    ),
    Dataset(
        name="imagenet-real",
        title="ReaL labels of ImageNet's validation images",
        homepage="https://github.com/google-research/reassessed-imagenet",
        licence="Apache-2.0",
        citation="Beyer et al., Are we done with ImageNet?, 2020",
        files=files_at(_REAL, "real.json", kind="plain"),
        classes=1000,
        splits={},
        read=None,
        notes=("evaluate on the val split of imagenet with these labels instead.",),
    ),
    Dataset(
        name="imagenet-v2",
        title="ImageNet-V2, matched frequency",
        homepage="https://github.com/modestyachts/ImageNetV2",
        licence="MIT",
        citation="Recht et al., Do ImageNet Classifiers Generalize to ImageNet?, ICML 2019",
        files=files_at(_V2, "imagenetv2-matched-frequency.tar.gz"),
        classes=1000,
        splits={"test": 10_000},
        read=read_numbered_folders,
        notes=("Classes are called 0 to 999, in ImageNet's order.",),
    ),
    Dataset(
        name="cifar10",
        title="CIFAR-10",
        homepage=_CIFAR + "cifar.html",
        licence="none stated; the owners ask to cite their report",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        files=files_at(_CIFAR, "cifar-10-binary.tar.gz"),
        classes=10,
        splits={"train": 50_000, "test": 10_000},
        read=read_packed,
    ),
    Dataset(
        name="mnist",
        title="MNIST",
        homepage="http://yann.lecun.com/exdb/mnist/",
        licence="CC BY-SA 3.0",
        citation="LeCun et al., Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE 1998",
        files=files_at(_MNIST, *_IDX_NAMES, kind="plain"),
        classes=10,
        splits={"train": 60_000, "test": 10_000},
        read=read_packed,
        digits=True,
    ),
    Dataset(
        name="fashion-mnist",
        title="Fashion-MNIST",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        citation="Xiao et al., Fashion-MNIST: a Novel Image Dataset for Benchmarking Runtime Learning Algorithms, 2017",
        files=files_at(_FASHION, *_IDX_NAMES, kind="plain"),
        classes=10,
        splits={"train": 60_000, "test": 10_000},
        read=read_packed,
    ),
    Dataset(
        name="caltech101",
        title="Caltech-101",
        homepage=_CALTECH,
        licence="CC BY 4.0",
        citation="Fei-Fei et al., Learning Generative Visual Models from Few Training Examples, CVPR Workshop 2004",
        files=(
            File(
                "caltech-101.zip",
                (_CALTECH + "/files/caltech-101.zip?download=1",),
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
    ),
    Dataset(
        name="cifar100",
        title="CIFAR-100",
        homepage=_CIFAR + "cifar.html",
        licence="none stated; the owners ask to cite their report",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        files=files_at(_CIFAR, "cifar-100-binary.tar.gz"),
        classes=100,
        splits={"train": 50_000, "test": 10_000},
        read=read_packed,
        vtab=Vtab("natural", train_percent=90),
    ),
    Dataset(
        name="dtd",
        title="Describable Textures (DTD)",
        homepage=_VGG + "dtd/",
        licence="for research",
        citation="Cimpoi et al., Describing Textures in the Wild, CVPR 2014",
        files=files_at(_VGG + "dtd/download/", "dtd-r1.0.1.tar.gz"),
        classes=47,
        splits={"train": 1_880, "val": 1_880, "test": 1_880},
        read=read_dtd,
        vtab=Vtab("natural"),
        notes=("The first of the owners' ten folds.",),
    ),
    Dataset(
        name="flowers102",
        title="Oxford Flowers-102",
        homepage=_VGG + "flowers/102/",
        licence="none stated",
        citation="Nilsback and Zisserman, Automated Flower Classification over a Large Number of Classes, ICVGIP 2008",
        files=(
            *files_at(_VGG + "flowers/102/", "102flowers.tgz"),
            *files_at(_VGG + "flowers/102/", "imagelabels.mat", "setid.mat", kind="plain"),
        ),
        classes=102,
        splits={"train": 1_020, "val": 1_020, "test": 6_149},
        read=read_flowers,
        needs=("scipy",),
        vtab=Vtab("natural"),
        notes=("Classes are called 1 to 102, as in the owners' files.",),
    ),
    Dataset(
        name="pets",
        title="Oxford-IIIT Pets",
        homepage=_VGG + "pets/",
        licence="CC BY-SA 4.0",
        citation="Parkhi et al., Cats and Dogs, CVPR 2012",
        files=tuple(
            File(name, (f"{_VGG}pets/data/{name}", f"https://thor.robots.ox.ac.uk/~vgg/data/pets/{name}"))
            for name in ("images.tar.gz", "annotations.tar.gz")
        ),
        classes=37,
        splits={"train": 3_680, "test": 3_669},
        read=read_pets,
        vtab=Vtab("natural", train_percent=80),
    ),
    Dataset(
        name="svhn",
        title="Street View House Numbers, cropped digits (SVHN)",
        homepage=_SVHN,
        licence="for non-commercial use",
        citation="Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, "
        "NIPS Workshop 2011",
        files=files_at(_SVHN, "train_32x32.mat", "test_32x32.mat", kind="plain"),
        classes=10,
        splits={"train": 73_257, "test": 26_032},
        read=read_svhn,
        needs=("scipy",),
        vtab=Vtab("natural", train_percent=90),
        digits=True,
        notes=("The extra images, which are easier, are left out, as in VTAB.",),
    ),
    Dataset(
        name="sun397",
        title="SUN397 scenes",
        homepage=_SUN,
        licence="none stated; for research",
        citation="Xiao et al., SUN Database: Large-scale Scene Recognition from Abbey to Zoo, CVPR 2010",
        files=(
            *files_at(_SUN, "SUN397.tar.gz"),
            *files_at(_SUN_LISTS, *(f"sun397_tfds_{split}.txt" for split in ("tr", "va", "te")), kind="plain"),
        ),
        classes=397,
        splits={"train": 76_128, "val": 10_875, "test": 21_750},
        read=read_sun397,
        vtab=Vtab("natural"),
        split_by="the lists of TensorFlow Datasets, which VTAB takes",
        notes=(
            "VTAB shrinks these images to 120,000 pixels at JPEG quality 72 first; here they are as they are.",
            "No checksum of the three lists is known.",
            "t/track/outdoor/sun_aophkoiosslinihb.jpg is badly encoded, and later versions of TensorFlow Datasets skip "
            "it; the published counts include it.",
        ),
    ),
)
