"""Every dataset of the table in miniature, in its owners' true format, written by other means than the package's."""

import csv
import io
import json
import struct

import numpy as np
import scipy.io
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from PIL import Image

RNG = np.random.default_rng(0)
SPLITS = ("train", "val", "test")


def make_image(path, side=8, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG")
    return pixels


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def pets(root):
    cats = [("Abyssinian", 1, 1), ("american_bulldog", 2, 2)]
    for name, numbers in {"trainval.txt": (1, 2, 3), "test.txt": (101, 102)}.items():
        lines = ["#Image CLASS-ID SPECIES BREED ID"] * (name == "test.txt")
        for label, number, species in cats:
            for one in numbers:
                make_image(root / "images" / f"{label}_{one}.jpg", seed=number * 1000 + one)
                lines.append(f"{label}_{one} {number} {species} 1")
        write(root / "annotations" / name, "\n".join(lines) + "\n")
    return {"train": [0, 0, 0, 1, 1, 1], "test": [0, 0, 1, 1]}


def flowers102(root):
    labels = np.array([[2, 1, 2, 1, 2, 1]], dtype=np.uint8)
    scipy.io.savemat(root / "imagelabels.mat", {"labels": labels}, do_compression=True)
    ids = {"trnid": [[1, 4]], "valid": [[2, 3]], "tstid": [[5, 6]]}
    scipy.io.savemat(root / "setid.mat", {key: np.array(value, np.uint16) for key, value in ids.items()})
    for number in range(1, 7):
        make_image(root / "jpg" / f"image_{number:05d}.jpg", seed=number)
    return {"train": [1, 0], "val": [0, 1], "test": [1, 0]}


def svhn(root):
    """X (32, 32, 3, n) and y (n, 1), packed, as MATLAB 5 wrote them."""
    for split, digits in {"train": [1, 10, 9], "test": [10, 9, 1]}.items():
        pixels = RNG.integers(0, 256, (32, 32, 3, 3), dtype=np.uint8)
        found = {"X": pixels, "y": np.array(digits, np.uint8)[:, None]}
        scipy.io.savemat(root / f"{split}_32x32.mat", found, do_compression=True)
    return {"train": [1, 0, 9], "test": [0, 9, 1]}


def dtd(root):
    for split in SPLITS:
        names = [f"{label}/{label}_{split}.jpg" for label in ("banded", "dotted")]
        write(root / "dtd" / "labels" / f"{split}1.txt", "\n".join(names) + "\n")
        for name in names:
            make_image(root / "dtd" / "images" / name)
    return {split: [0, 1] for split in SPLITS}


def caltech101(root):
    base = root / "caltech-101" / "101_ObjectCategories" / "101_ObjectCategories"
    for label in ("BACKGROUND_Google", "accordion"):
        for number in range(1, 33):
            make_image(base / label / f"image_{number:04d}.jpg", side=2)
    write(base / "BACKGROUND_Google" / "tmp", b"not an image")
    return {"train": [0] * 30 + [1] * 30, "test": [0, 0, 1, 1]}


def remote(root, base, name):
    for split in SPLITS:
        names = [f"{label}_{SPLITS.index(split) + 1}.jpg" for label in ("Forest", "sea_ice")]
        write(root / f"{name}-{split}.txt", "\n".join(names))
        for one in names:
            make_image(root / base / one.rpartition("_")[0] / one)
    return {split: [0, 1] for split in SPLITS}


def sun397(root):
    for short, split in zip(("tr", "va", "te"), SPLITS, strict=True):
        names = [f"/{place}/sun_{split}.jpg" for place in ("a/abbey", "a/apse/indoor")]
        write(root / f"sun397_tfds_{short}.txt", "\n".join(names) + "\n")
        for name in names:
            make_image(root / "SUN397" / name.lstrip("/"))
    return {split: [0, 1] for split in SPLITS}


def retinopathy(root):
    train, test = io.StringIO(), io.StringIO()
    first, second = csv.writer(train), csv.writer(test)
    first.writerow(["image", "level"])
    second.writerow(["image", "level", "Usage"])
    for level in range(5):
        first.writerow([f"{level}_left", level])
        make_image(root / "train" / f"{level}_left.jpeg")
        for number, usage in enumerate(("Public", "Private")):
            second.writerow([f"{level}_{number}", level, usage])
            make_image(root / "test" / f"{level}_{number}.jpeg")
    write(root / "trainLabels.csv", train.getvalue())
    write(root / "retinopathy_solution.csv", test.getvalue())
    return {split: [0, 1, 2, 3, 4] for split in SPLITS}


CLEVR = [(3, 7.9), (10, 8.0), (4, 8.01), (5, 8.6), (6, 9.2), (7, 9.6), (8, 10.0), (9, 10.01)]
"""How many objects a scene has, and how far the nearest is."""


def clevr(root):
    for name in ("train", "val"):
        scenes = []
        for number, (count, nearest) in enumerate(CLEVR):
            file = f"CLEVR_{name}_{number:06d}.png"
            make_image(root / "CLEVR_v1.0" / "images" / name / file)
            objects = [{"pixel_coords": [1, 2, nearest + 2 * one], "shape": "cube"} for one in reversed(range(count))]
            scenes.append({"image_index": number, "image_filename": file, "objects": objects})
        content = json.dumps({"info": {"split": name, "license": "CC"}, "scenes": scenes}, indent=name == "val")
        write(root / "CLEVR_v1.0" / "scenes" / f"CLEVR_{name}_scenes.json", content)


def clevr_count(root):
    clevr(root)
    return {split: [count - 3 for count, _ in CLEVR] for split in ("train", "test")}


def clevr_distance(root):
    clevr(root)
    return {split: [0, 0, 1, 2, 3, 4, 4, 5] for split in ("train", "test")}


KITTI = [("Car", 3.0, 0), ("Van", 8.0, 0), ("Truck", 8.5, 1), ("Car", 20.0, 1), ("Car", 50.0, 2), ("Tram", 5.0, 3)]
"""The nearest thing, how far it is, and the class."""


def kitti_distance(root):
    """20 videos of 6 images each; the mapping is shuffled, as KITTI's is."""
    lines = [f"2011_09_26 2011_09_26_drive_{v:04d}_sync {f:010d}" for v in range(20) for f in range(6)]
    order = RNG.permutation(len(lines))
    write(root / "mapping" / "train_mapping.txt", "\n".join(lines) + "\n")
    write(root / "mapping" / "train_rand.txt", ",".join(str(place + 1) for place in order))
    for number in range(len(lines)):
        kind, distance, _ = KITTI[number % 6]
        box = "0.00 0 1.5 1 2 3 4 1.6 1.7 4.0"
        boxes = [
            f"{kind} {box} 1.0 2.0 {distance:.2f} 0.01",
            f"Car {box} 1.0 2.0 90.00 0.01",
            f"DontCare {box} 1 2 -1000 -10",
        ]
        if kind == "Tram":
            boxes.pop(1)
        write(root / "training" / "label_2" / f"{number:06d}.txt", "\n".join(boxes) + "\n")
        make_image(root / "training" / "image_2" / f"{number:06d}.png", side=2)
    # the rule as TensorFlow Datasets has it, with NumPy's global generator
    videos = sorted({line.split()[1] for line in lines})
    np.random.seed(123)
    test = set(np.random.choice(videos, 2, replace=False))
    val = set(np.random.choice(sorted(set(videos) - test), 2, replace=False))
    found = {split: [] for split in SPLITS}
    for number, place in enumerate(order):
        video = lines[place].split()[1]
        found["test" if video in test else "val" if video in val else "train"].append(KITTI[number % 6][2])
    return found


def dsprites(root):
    """Two shapes, 40 orientations, 32 places: imgs and latents_classes as they lie in the .npz."""
    factors = np.array([[0, s, 0, o, x, 0] for s in range(2) for o in range(40) for x in range(32)], dtype=np.int64)
    np.save(root / "imgs.npy", RNG.integers(0, 2, (len(factors), 64, 64), dtype=np.uint8))
    np.save(root / "latents_classes.npy", factors)
    return len(factors)


def smallnorb(root):
    """Magic number, axes, at least three sides, values; little-endian. All azimuths and elevations, 4 of each."""
    info = np.array([[4, e, 2 * a, light] for e in range(9) for a in range(18) for light in range(4)], dtype="<i4")
    for name in ("5x46789x9x18x6x2x96x96-training", "5x01235x9x18x6x2x96x96-testing"):
        pixels = RNG.integers(0, 256, (len(info), 2, 6, 6), dtype=np.uint8)
        head = struct.pack("<iiiiii", 0x1E3D4C55, 4, *pixels.shape)
        write(root / f"smallnorb-{name}-dat.mat", head + pixels.tobytes())
        head = struct.pack("<iiiii", 0x1E3D4C54, 2, *info.shape, 1)
        write(root / f"smallnorb-{name}-info.mat", head + info.tobytes())
    return info, pixels


def camelyon(root):
    """What is left of the HDF5 files once they are prepared."""
    for split in ("train", "valid", "test"):
        np.save(root / f"{split}_x.npy", RNG.integers(0, 256, (4, 96, 96, 3), dtype=np.uint8))
        np.save(root / f"{split}_y.npy", np.array([0, 1, 1, 0], np.uint8).reshape(4, 1, 1, 1))
    return {split: [0, 1, 1, 0] for split in SPLITS}


def example_class():
    """tf.train.Example, made by Google's own protobuf from its definition."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="miniature", syntax="proto3")

    def message(name, *fields, within=None):
        made = (within.nested_type if within is not None else file.message_type).add(name=name)
        for number, (field, kind, repeated, type_name) in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            made.field.add(name=field, number=number, type=kind, label=label, type_name=type_name or None)
        return made

    message("BytesList", (1, ("value", kinds.TYPE_BYTES, True, "")))
    message("FloatList", (1, ("value", kinds.TYPE_FLOAT, True, "")))
    message("Int64List", (1, ("value", kinds.TYPE_INT64, True, "")))
    parts = [("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")]
    message(
        "Feature", *((n, (f, kinds.TYPE_MESSAGE, False, f".miniature.{t}")) for n, (f, t) in enumerate(parts, start=1))
    )
    features = message("Features", (1, ("feature", kinds.TYPE_MESSAGE, True, ".miniature.Features.FeatureEntry")))
    entry = message(
        "FeatureEntry",
        (1, ("key", kinds.TYPE_STRING, False, "")),
        (2, ("value", kinds.TYPE_MESSAGE, False, ".miniature.Feature")),
        within=features,
    )
    entry.options.map_entry = True
    message("Example", (1, ("features", kinds.TYPE_MESSAGE, False, ".miniature.Features")))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("miniature.Example"))


def record(content):
    """One record; the sums are not looked at."""
    return struct.pack("<QI", len(content), 0) + content + struct.pack("<I", 0)


def dmlab_records(root):
    make = example_class()
    for name in ("train", "validation", "test"):
        records = b""
        for label in range(6):
            pixels = io.BytesIO()
            Image.new("RGB", (8, 6), (40 * label, 0, 0)).save(pixels, "JPEG")
            example = make()
            example.features.feature["image"].bytes_list.value.append(pixels.getvalue())
            example.features.feature["filename"].bytes_list.value.append(f"{label}.jpg".encode())
            example.features.feature["label"].int64_list.value.append(label)
            example.features.feature["weight"].float_list.value.append(0.5)
            records += record(example.SerializeToString())
        write(root / f"dmlab-{name}.tfrecord", records)


def dmlab(root):
    from vitreous.data.datasets.tfrecord import prepare_dmlab

    dmlab_records(root)
    prepare_dmlab(root)
    return {split: [0, 1, 2, 3, 4, 5] for split in SPLITS}


def imagenet(root):
    """The kit counts n02 as 1 and n01 as 2, and has a synset above both, as ImageNet's kit has."""
    for synset in ("n01", "n02"):
        for number in range(2):
            make_image(root / "train" / synset / f"{synset}_{number}.JPEG".replace("JPEG", "jpeg"))
    for number in range(1, 4):
        make_image(root / "val" / "x.jpeg").tobytes()
        (root / "val" / "x.jpeg").rename(root / "val" / f"ILSVRC2012_val_{number:08d}.JPEG")
    kit = root / "ILSVRC2012_devkit_t12" / "data"
    kit.mkdir(parents=True)
    rows = [(1.0, "n02", "dog, hound", 0.0), (2.0, "n01", "cat", 0.0), (3.0, "n00", "animal", 2.0)]
    synsets = np.zeros((3, 1), dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O")])
    for place, row in enumerate(rows):
        synsets[place, 0] = row
    scipy.io.savemat(kit / "meta.mat", {"synsets": synsets})
    write(kit / "ILSVRC2012_validation_ground_truth.txt", "1\n2\n1\n")
    return {"train": [0, 0, 1, 1], "val": [1, 0, 1]}


def imagenet_v2(root):
    for label in (10, 2, 0):
        make_image(root / "imagenetv2-matched-frequency-format-val" / str(label) / "a.jpeg")
    return {"test": [0, 1, 2]}


def cifar(root, folder, names, labels):
    rows = RNG.integers(0, 256, (3, 3072), dtype=np.uint8)
    for name in names:
        write(root / folder / name, np.concatenate([np.array(labels), rows], axis=1).astype(np.uint8).tobytes())


def cifar10(root):
    cifar(root, "cifar-10-batches-bin", ("data_batch_1.bin", "test_batch.bin"), [[0], [2], [1]])
    return {split: [0, 2, 1] for split in ("train", "test")}


def cifar100(root):
    cifar(root, "cifar-100-binary", ("train.bin", "test.bin"), [[7, 0], [7, 2], [7, 1]])
    return {split: [0, 2, 1] for split in ("train", "test")}


def idx(root):
    import gzip

    for name in ("train", "t10k"):
        pixels = RNG.integers(0, 256, (3, 28, 28), dtype=np.uint8)
        head = struct.pack(">BBBBiii", 0, 0, 8, 3, *pixels.shape)
        write(root / f"{name}-images-idx3-ubyte.gz", gzip.compress(head + pixels.tobytes()))
        labels = struct.pack(">BBBBi", 0, 0, 8, 1, 3) + bytes([2, 0, 1])
        write(root / f"{name}-labels-idx1-ubyte.gz", gzip.compress(labels))
    return {split: [2, 0, 1] for split in ("train", "test")}


MINIATURES = {
    "imagenet": imagenet,
    "imagenet-v2": imagenet_v2,
    "cifar10": cifar10,
    "mnist": idx,
    "fashion-mnist": idx,
    "caltech101": caltech101,
    "cifar100": cifar100,
    "dtd": dtd,
    "flowers102": flowers102,
    "pets": pets,
    "svhn": svhn,
    "sun397": sun397,
    "camelyon": camelyon,
    "eurosat": lambda root: remote(root, "2750", "eurosat"),
    "resisc45": lambda root: remote(root, "NWPU-RESISC45", "resisc45"),
    "retinopathy": retinopathy,
    "clevr-count": clevr_count,
    "clevr-distance": clevr_distance,
    "dsprites-location": dsprites,
    "dsprites-orientation": dsprites,
    "smallnorb-azimuth": smallnorb,
    "smallnorb-elevation": smallnorb,
    "dmlab": dmlab,
    "kitti-distance": kitti_distance,
}
