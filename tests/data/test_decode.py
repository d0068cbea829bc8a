import contextlib
import errno
import io
import logging
import os
import pickle
import re
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from support.images import noise, smooth
from vitreous.data import decode, levels
from vitreous.data.decode import MAX_PIXELS, Header, ImageError, open_image, read_header
from vitreous.data.opening import open_data

MAX, SMIN, SMAX = 281, 340, 341  # tags of TIFF: MaxSampleValue, SMinSampleValue, SMaxSampleValue


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG written by hand."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = [(b"IHDR", head), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(image: Image.Image) -> list[object]:
    return list(image.get_flattened_data() if hasattr(image, "get_flattened_data") else image.getdata())


def test_colour_and_grey_come_as_stored_and_convert_to_each_other():
    array = noise(5, 7)
    colour = saved(Image.fromarray(array), "PNG")
    np.testing.assert_array_equal(np.asarray(open_image(colour)), array)
    luma = (array @ np.array([0.299, 0.587, 0.114])).round()
    np.testing.assert_allclose(np.asarray(open_image(colour, channels=1)), luma, atol=1)
    grey = saved(Image.fromarray(array[:, :, 0]), "PNG")
    assert open_image(grey).mode == "RGB"
    np.testing.assert_array_equal(np.asarray(open_image(grey))[:, :, 2], array[:, :, 0])


def test_the_cameras_orientation_is_applied(subtests):
    for orientation in range(1, 9):
        for kind in ("JPEG", "PNG", "TIFF", "WEBP"):
            with subtests.test(orientation=orientation, kind=kind):
                upright = np.zeros((24, 16), dtype=np.uint8)
                upright[:8] = 255  # a white bar on top
                upright[:, :4] = 128  # a grey one on the left
                # what the camera stores, from the EXIF definition of where row 0 and column 0 are
                stored = {
                    1: upright,
                    2: upright[:, ::-1],
                    3: upright[::-1, ::-1],
                    4: upright[::-1],
                    5: upright.T,
                    6: upright.T[::-1],
                    7: upright.T[::-1, ::-1],
                    8: upright.T[:, ::-1],
                }[orientation]
                exif = Image.Exif()
                exif[0x0112] = orientation
                options = {"quality": 95} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
                data = saved(
                    Image.fromarray(np.ascontiguousarray(stored)).convert("RGB"), kind, exif=exif.tobytes(), **options
                )
                found = np.asarray(open_image(data, channels=1))
                np.testing.assert_allclose(found.astype(int), upright, atol=12 if kind == "JPEG" else 1)


def test_sixteen_bits_are_scaled_not_cut_off():
    values = [0, 1, 128, 129, 256, 257, 1000, 32768, 65278, 65535]
    rows = b"\0" + struct.pack(f">{len(values)}H", *values)
    data = png(len(values), 1, 16, 0, rows)
    expected = [round(value * 255 / 65535) for value in values]
    assert pixels(open_image(data, channels=1)) == expected
    assert pixels(open_image(data)) == [(value,) * 3 for value in expected]


def test_transparency_of_sixteen_bit_grey_is_laid_on_white():
    """A PNG of grey levels names one of them as transparent."""
    rows = b"\0" + struct.pack(">3H", 0, 1000, 65535)
    data = png(3, 1, 16, 0, rows, (b"tRNS", struct.pack(">H", 1000)))
    assert pixels(open_image(data, channels=1)) == [0, 255, 255]
    assert pixels(open_image(png(3, 1, 16, 0, rows), channels=1)) == [0, 4, 255]


def test_the_jpegs_of_phones_are_jpegs(tmp_path: Path):
    """MPO: a JPEG with a second one behind it, of which the first is the image."""
    image = smooth(200, 160)
    data = saved(image, "MPO", save_all=True, append_images=[smooth(20, 20)], quality=95)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.format == "MPO"
    assert read_header(data).format == "JPEG"
    assert np.abs(np.asarray(open_image(data)).astype(int) - np.asarray(image)).mean() < 3
    assert open_image(data, at_least=40).size == (80 // 2, 100 // 2)


@pytest.mark.parametrize(("kind", "suffix", "feature"), [("AVIF", ".avif", "avif"), ("JPEG2000", ".jp2", "jpg_2000")])
def test_what_pillow_may_be_built_with_is_read(tmp_path, kind, suffix, feature):
    if not features.check(feature):
        pytest.skip(f"Pillow is built without {kind}")
    image = smooth(64, 48)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        image.save(tmp_path / name / f"x{suffix}", kind)
    train = open_data(tmp_path).train
    assert train.header(0).format == kind
    assert np.abs(np.asarray(train.read(0)).astype(int) - np.asarray(image)).mean() < 3


def test_heic_is_read_upright_where_its_package_is(tmp_path):
    if not decode.HAS_HEIC:
        pytest.skip("pillow-heif is not installed")
    image = smooth(64, 48)
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    path = tmp_path / "x.heic"
    image.save(path, "HEIF", quality=95, exif=exif.tobytes())
    found = open_image(path, at_least=16)
    expected = np.asarray(image.transpose(Image.Transpose.ROTATE_270))
    assert np.abs(np.asarray(found).astype(int) - expected).mean() < 6  # turned otherwise, 55
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ImageError, match=r"x\.heic"):
        open_image(path)


def test_without_its_package_heic_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "HAS_HEIC", False)
    monkeypatch.setattr("vitreous.data.folder.HAS_HEIC", False)
    monkeypatch.setattr("vitreous.data.folder.IMAGE_SUFFIXES", frozenset([".png"]))
    monkeypatch.setattr("vitreous.data.folder.FOREIGN_SUFFIXES", frozenset([".heic"]))
    path = tmp_path / "x.heic"
    path.write_bytes(b"\0\0\0\x1cftypheic\0\0\0\0mif1heicmiaf")
    monkeypatch.setattr(decode, "FORMATS", ("JPEG", "PNG"))
    with pytest.raises(ImageError, match=r"x\.heic.*vitreous\[heic\]"):
        open_image(path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        smooth(8, 8).save(tmp_path / name / "x.png")
    (tmp_path / "a" / "y.heic").write_bytes(path.read_bytes())
    assert any("vitreous[heic]" in note for note in open_data(tmp_path).notes)


def test_sixteen_bits_in_tiff_of_either_byte_order(tmp_path: Path, subtests):
    for order in ("<", ">"):
        with subtests.test(order=order):
            values = np.array([[0, 257, 25700, 65535]], dtype=f"{order}u2")
            tags = [(256, 4), (257, 1), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 8)]
            body = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 16) + values.tobytes()
            body += struct.pack(f"{order}H", len(tags))
            for tag, value in tags:
                body += struct.pack(f"{order}HHII", tag, 4, 1, value)
            path = tmp_path / "grey.tif"
            path.write_bytes(body + struct.pack(f"{order}I", 0))
            assert pixels(open_image(path, channels=1)) == [0, 1, 100, 255]


def test_sixteen_bit_colour_and_grey_maps():
    rows = b"\0" + struct.pack(">6H", 65535, 25700, 0, 514, 0, 65535)
    assert pixels(open_image(png(2, 1, 16, 2, rows))) == [(255, 100, 0), (2, 0, 255)]
    assert pixels(open_image(b"P5 3 1 65535\n" + struct.pack(">3H", 0, 25700, 65535), channels=1)) == [0, 100, 255]


def test_floating_point_images_run_from_0_to_1_or_as_their_tags_say(subtests):
    """Never from their own least to their own greatest value: then two images of one scene would differ."""
    for values, tags, expected in (
        ([0.0, 0.5, 1.0], {}, [0, 128, 255]),
        ([0.0, 0.2, 0.2], {}, [0, 51, 51]),
        ([0.0, float("nan"), 1.0], {}, [0, 0, 255]),
        ([0.0, 0.0, 0.0], {}, [0, 0, 0]),
        ([0.0, 100.0, 100.0], {SMAX: 255.0}, [0, 100, 100]),
        ([0.0, 25700.0, 70000.0], {SMAX: 65535.0}, [0, 100, 255]),
        ([-1.0, 0.0, 1.0], {SMIN: -1.0, SMAX: 1.0}, [0, 128, 255]),
    ):
        with subtests.test(values=values):
            image = Image.fromarray(np.array([values], dtype=np.float32))
            assert pixels(open_image(saved(image, "TIFF", tiffinfo=tags), channels=1)) == expected
    for values in ([0.0, 1.0, 1.5], [0.0, 100.0, 255.0], [-1.0, 0.0, 1.0]):
        with subtests.test(refused=values), pytest.raises(ImageError, match=f"{values[0]:g} to {values[2]:g}.*SMax"):
            open_image(saved(Image.fromarray(np.array([values], dtype=np.float32)), "TIFF"))


def test_fewer_bits_in_files_of_sixteen(subtests, caplog):
    """White is all ones in as many bits as the tags say; without them, the image is nearly black, and that is said."""
    image = Image.fromarray(np.array([[0, 1606, 4095]], dtype=np.uint16))
    for tag, value in ((MAX, 4095), (SMAX, 4095.0), (MAX, 4000)):
        with subtests.test(tag=tag, value=value):
            assert pixels(open_image(saved(image, "TIFF", tiffinfo={tag: value}), channels=1)) == [0, 100, 255]
    assert pixels(open_image(saved(image, "TIFF", tiffinfo={MAX: 65535}), channels=1)) == [0, 6, 16]
    caplog.set_level(logging.INFO, "vitreous")
    levels._LOGGED_BY[:] = bytes(8)
    assert pixels(open_image(saved(image, "TIFF"), channels=1)) == [0, 6, 16]
    (said,) = caplog.messages
    assert "4,095" in said
    assert "MaxSampleValue" in said


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss in kB")
def test_no_kind_of_image_takes_more_memory_than_the_bound(tmp_path, subtests):
    """`DECODING_BYTES` is that of the largest image: as many bytes for each pixel, whatever the kind."""
    bound, side = decode.DECODING_BYTES / decode.MAX_PIXELS, 3000
    made = {
        "float.tif": Image.fromarray(np.full((side, side), 0.5, np.float32)),
        "16.tif": Image.fromarray(np.full((side, side), 50_000, np.uint16)),
        "rgba.png": Image.new("RGBA", (side, side), (200, 100, 50, 100)),
        "cmyk.tif": Image.new("CMYK", (side, side), (200, 100, 50, 100)),
    }
    for name, image in made.items():
        with subtests.test(name):
            image.save(tmp_path / name, compress_level=1)
            done = subprocess.run([sys.executable, "-c", PEAK, tmp_path / name], capture_output=True, text=True)
            assert float(done.stdout) / side**2 <= bound + 3, (
                name,
                done.stdout,
                done.stderr,
            )  # and the file, and strips


def test_strips_of_a_large_image_make_the_same_image(monkeypatch):
    rng = np.random.default_rng(0)
    images = [
        Image.fromarray(rng.integers(0, 256, (7, 5, 4), dtype=np.uint8)),
        Image.fromarray(rng.integers(0, 65536, (7, 5), dtype=np.uint16)),
        Image.fromarray(rng.random((7, 5), dtype=np.float32)),
    ]
    as_one = [pixels(open_image(saved(image, "TIFF"))) for image in images]
    monkeypatch.setattr(levels, "STRIP_PIXELS", 10)
    assert [pixels(open_image(saved(image, "TIFF"))) for image in images] == as_one


def test_32_bit_integers():
    image = Image.fromarray(np.array([[0, 25700, 65535]], dtype=np.int32))
    assert pixels(open_image(saved(image, "TIFF"), channels=1)) == [0, 100, 255]
    image = Image.fromarray(np.array([[0, 100, 255]], dtype=np.int32))
    assert pixels(open_image(saved(image, "TIFF"), channels=1)) == [0, 100, 255]


def test_cmyk_becomes_rgb():
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # no cyan: red
    for kind in ("JPEG", "TIFF"):
        red, green, blue = pixels(open_image(saved(cmyk, kind)))[0]
        assert red > 240
        assert green < 15
        assert blue < 15


def test_palettes_and_transparency_on_white():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1])
    assert pixels(open_image(saved(image, "PNG"))) == [(10, 20, 30), (200, 100, 50)]
    assert pixels(open_image(saved(image, "PNG", transparency=1))) == [(10, 20, 30), (255, 255, 255)]
    half = Image.new("RGBA", (1, 1), (0, 0, 0, 128))
    assert pixels(open_image(saved(half, "PNG"))) == [(127, 127, 127)]
    grey = png(2, 1, 8, 0, b"\0\x05\x64", (b"tRNS", b"\0\x05"))  # grey 5 stands for transparent
    assert pixels(open_image(grey, channels=1)) == [255, 100]
    faint = Image.new("LA", (1, 1), (0, 0))
    assert pixels(open_image(saved(faint, "PNG"), channels=1)) == [255]


def test_of_an_animation_the_first_frame(subtests):
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        with subtests.test(kind=kind):
            first, second = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
            options = {"lossless": True} if kind == "WEBP" else {}
            data = saved(first, kind, save_all=True, append_images=[second], **options)
            assert pixels(open_image(data))[0] == (255, 0, 0)


def test_bilevel_bitmaps():
    image = Image.fromarray(np.array([[0, 255]], dtype=np.uint8)).convert("1")
    for kind in ("BMP", "PPM", "PNG"):
        assert pixels(open_image(saved(image, kind), channels=1)) == [0, 255]


def test_jpegs_are_decoded_at_the_smallest_scale_that_serves(tmp_path: Path):
    path = tmp_path / "large.jpg"
    smooth(600, 800).save(path, quality=95)
    sizes = {least: open_image(path, at_least=least).size for least in (601, 301, 300, 151, 150, 75, 20)}
    assert sizes == {
        601: (800, 600),
        301: (800, 600),
        300: (400, 300),
        151: (400, 300),
        150: (200, 150),
        75: (100, 75),
        20: (100, 75),
    }
    half = np.asarray(open_image(path, at_least=300)).astype(int)
    by_hand = np.asarray(Image.open(path)).astype(float).reshape(300, 2, 400, 2, 3).mean((1, 3))
    assert np.abs(half - by_hand).mean() < 1


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch):
    rows = zlib.compress(b"\0" * 1000)
    for side in (10_000, 20_000, 200_000):  # 100 megapixels; and beyond both of Pillow's own limits
        data = png(side, side, 8, 0, b"").replace(zlib.compress(b""), rows)
        with pytest.raises(ImageError, match=r"bomb\.png: .* 67 "):  # million pixels, the limit
            open_image(data, name="bomb.png")
    assert MAX_PIXELS < 100e6
    monkeypatch.setattr("vitreous.data.decode.MAX_PIXELS", 599)
    with pytest.raises(ImageError, match="30x20"):
        open_image(saved(smooth(20, 30), "PNG"))
    monkeypatch.setattr("vitreous.data.decode.MAX_PIXELS", 600)
    assert open_image(saved(smooth(20, 30), "PNG")).size == (30, 20)


def test_pillows_warnings_do_not_leak(monkeypatch):
    data = png(9500, 9500, 8, 0, b"")  # Pillow warns of this size
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match="9500x9500"):
            read_header(data)
        monkeypatch.setattr("vitreous.data.decode.MAX_PIXELS", 10**9)
        assert read_header(data) == Header(9500, 9500, "L", "PNG")


def test_threads_that_overlap_leave_the_warnings_of_the_process_as_they_were():
    """The first in is the first out: each would restore what it had found."""
    data = saved(smooth(20, 30), "PNG")
    before, inside, leave = list(warnings.filters), threading.Barrier(2), threading.Event()

    def first():
        with decode._opened(data, None):
            inside.wait(10)
            inside.wait(10)

    def second():
        inside.wait(10)
        with decode._opened(data, None):
            inside.wait(10)
            leave.wait(10)

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    threads[0].join()
    leave.set()
    threads[1].join()
    assert warnings.filters == before


def test_what_cannot_be_read_is_named_with_the_reason(tmp_path: Path, subtests):
    jpeg = saved(smooth(64, 64), "JPEG", quality=95)
    image = saved(smooth(64, 64), "PNG")
    files = {
        "text.jpg": b"this is no image",
        "empty.jpg": b"",
        "cut.jpg": jpeg[: len(jpeg) // 2],
        "cut.png": image[: len(image) // 2],
        "head.png": image[:30],
        "page.png": b"<html></html>",
        "script.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    }
    reasons = {}
    for name, data in files.items():
        with subtests.test(name):
            path = tmp_path / name
            path.write_bytes(data)
            with pytest.raises(ImageError) as error:
                open_image(path)
            reasons[name] = error.value.reason
            assert re.fullmatch(rf"{path}: [^\n]+\.", str(error.value))
    assert reasons["text.jpg"] == reasons["page.png"] == reasons["script.eps"]
    assert len({reasons[name] for name in ("text.jpg", "empty.jpg", "cut.jpg", "cut.png")}) == 4


def test_every_single_damaged_byte_gives_a_image_or_a_image_error():
    for kind in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM"):
        data = saved(smooth(8, 8), kind)
        for at in range(0, len(data), 3):
            broken = bytearray(data)
            broken[at] ^= 0xFF
            with contextlib.suppress(ImageError):
                assert open_image(bytes(broken)).mode == "RGB"


def test_missing_files_folders_and_pipes(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    for place in (tmp_path / "none.jpg", tmp_path, tmp_path / "pipe.jpg", tmp_path / "loop.jpg"):
        with pytest.raises(ImageError, match=re.escape(f"{place}: ")):
            open_image(place)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "secret.png"
    path.write_bytes(saved(smooth(8, 8), "PNG"))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Image, "open", refuse)  # root reads all files, so the refusal is played
    with pytest.raises(ImageError, match=r"secret\.png"):
        open_image(path)


def test_names_in_unicode_and_errors_that_travel_between_processes(tmp_path: Path):
    path = tmp_path / "写真 – é̄ 🐈.png"
    path.write_bytes(saved(smooth(8, 8), "PNG"))
    assert open_image(path).size == (8, 8)
    path.write_bytes(b"")
    with pytest.raises(ImageError) as error:
        open_image(path)
    twin = pickle.loads(pickle.dumps(error.value))
    assert (str(twin), twin.name, twin.reason) == (str(error.value), str(path), error.value.reason)


def test_broken_metadata_do_not_matter():
    image = smooth(8, 6)
    exif = b"Exif\0\0no TIFF header"
    made = io.BytesIO()
    image.save(made, "PNG", exif=exif)
    np.testing.assert_array_equal(np.asarray(open_image(made.getvalue())), np.asarray(image))


LITTLE = """
import resource, sys
from pathlib import Path
from vitreous.data.decode import ImageError, open_image
taken = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (taken + 20 * 2**20,) * 2)
try:
    open_image(Path(sys.argv[1]))
except (ImageError, MemoryError) as error:
    print(type(error).__name__)
"""
PEAK = """
import resource, sys
from pathlib import Path
import numpy as np
from PIL import Image
from vitreous.data.decode import open_image
for kind in (np.float32, np.uint16):  # what is loaded with the first image of a kind
    Image.fromarray(np.zeros((9, 9), kind)).save(sys.argv[1] + ".small.tif")
    open_image(Path(sys.argv[1] + ".small.tif"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
open_image(Path(sys.argv[1]))
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses")
def test_a_machine_without_memory_says_nothing_of_the_image(tmp_path):
    """A healthy image of 36 MB, in a process that may take 20 more."""
    for name in ("x.png", "x.tif", "x.bmp"):
        Image.new("RGB", (4000, 3000), "red").save(tmp_path / name)
        done = subprocess.run([sys.executable, "-c", LITTLE, tmp_path / name], capture_output=True, text=True)
        assert done.stdout.split() == ["MemoryError"], (name, done.stdout, done.stderr)


def test_what_the_system_refuses_may_pass_and_damage_may_not(tmp_path, monkeypatch):
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    (tmp_path / "text.png").write_text("no image")
    cut = (tmp_path / "x.png").read_bytes()[:-30]
    for damaged in (tmp_path / "text.png", cut):
        with pytest.raises(ImageError) as told:
            open_image(damaged)
        assert not told.value.temporary
        assert not pickle.loads(pickle.dumps(told.value)).temporary

    def refuse(number):
        def open_file(*given, **more):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(Image, "open", open_file)

    for number in (errno.EACCES, errno.EIO, errno.ESTALE):
        refuse(number)
        with pytest.raises(ImageError) as told:
            open_image(tmp_path / "x.png")
        assert pickle.loads(pickle.dumps(told.value)).temporary
    for number in (errno.ENOMEM, errno.EMFILE):
        refuse(number)
        with pytest.raises(OSError, match=os.strerror(number)) as refused:
            open_image(tmp_path / "x.png")
        assert not isinstance(refused.value, ImageError)


def test_a_file_that_asks_for_too_much_memory_is_damaged(tmp_path, monkeypatch):
    """Unless there is too little for any image."""
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    monkeypatch.setattr(Image, "open", lambda *given, **more: (_ for _ in ()).throw(MemoryError()))
    monkeypatch.setattr("vitreous.data.decode.available_memory", lambda: 10**12)
    with pytest.raises(ImageError):
        open_image(tmp_path / "x.png")
    monkeypatch.setattr("vitreous.data.decode.available_memory", lambda: 10**6)
    with pytest.raises(MemoryError):
        open_image(tmp_path / "x.png")


def tiff_of_colours(values: np.ndarray, order: str, compression: int, *tags: tuple[int, int, int, int]) -> bytes:
    """A TIFF of 16-bit colours (h, w, 3) written by hand; tags (number, type, count, value) replace the right ones."""
    height, width, channels = values.shape
    data = values.astype(f"{order}u2").tobytes()
    data = zlib.compress(data) if compression == 8 else data
    padded = data + b"\0" * (len(data) % 2)
    bits = struct.pack(f"{order}3H", 16, 16, 16)
    known = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, channels, 8 + len(padded)), (259, 3, 1, compression)]
    known += [(262, 3, 1, 2), (273, 4, 1, 8), (277, 3, 1, channels), (278, 4, 1, height), (279, 4, 1, len(data))]
    known = list({tag[0]: tag for tag in (*known, *tags)}.values())
    body = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8 + len(padded) + len(bits))
    body += padded + bits + struct.pack(f"{order}H", len(known))
    for number, kind, count, value in known:
        short = kind == 3 and count == 1
        body += struct.pack(f"{order}HHI", number, kind, count)
        body += struct.pack(f"{order}HH", value, 0) if short else struct.pack(f"{order}I", value)
    return body + struct.pack(f"{order}I", 0)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compression", [1, 8])
def test_colours_of_twelve_bits_in_sixteen_are_as_bright_as_their_tag_says(order, compression, caplog):
    values = np.array([[[0, 1606, 4095], [16, 255, 4000]], [[8, 2048, 24], [1, 100, 4095]]], dtype=np.uint16)
    data = tiff_of_colours(values, order, compression, (MAX, 3, 1, 4095))
    np.testing.assert_array_equal(np.asarray(open_image(data)), np.rint(values * (255 / 4095)))
    full = tiff_of_colours(values * 16, order, compression, (MAX, 3, 1, 65535))
    np.testing.assert_array_equal(np.asarray(open_image(full)), values // 16)
    caplog.set_level(logging.INFO, "vitreous")
    levels._LOGGED_BY[:] = bytes(8)
    open_image(tiff_of_colours(values, order, compression))
    assert len(caplog.messages) == 1
    assert "MaxSampleValue" in caplog.messages[0]


def jpeg_that_ends_early(image: Image.Image, kept: float, **options: object) -> bytes:
    data = saved(image, "JPEG", **options)
    return data[: int(kept * len(data))] + b"\xff\xd9"


def test_an_image_whose_data_end_early_is_broken(subtests):
    """Pillow gives black rows, or grey blocks, for what is not there, without a word."""
    height, width = 60, 64
    rows = np.random.default_rng(0).integers(1, 256, (height, 1 + 3 * width), dtype=np.uint8)
    rows[:, 0] = 0  # no filter
    photo = Image.fromarray(rows[:, 1:].reshape(height, width, 3))
    broken = {
        "67 bytes": png(1, 900, 8, 0, b"\0\xff"),
        "half the rows": png(width, height, 8, 2, rows[:30].tobytes()),
        "half a row less": png(width, height, 8, 2, rows.tobytes()[:-100]),
        "grey and alpha": png(2, 2, 8, 4, b"\0\1\2\3\4"),
        "JPEG, 30 %": jpeg_that_ends_early(photo, 0.3),
        "JPEG, 90 %": jpeg_that_ends_early(photo, 0.9),
        "JPEG, zeros behind": saved(photo, "JPEG")[:1500] + bytes(100_000),
        "a strip of two": tiff_of_colours(np.full((30, 64, 3), 40_000), "<", 1, (257, 4, 1, 60), (278, 4, 1, 30)),
        "grey JPEG": jpeg_that_ends_early(photo.convert("L"), 0.6),
    }
    for name, data in broken.items():
        with subtests.test(name), pytest.raises(ImageError):
            open_image(data)
    for kind in ("GIF", "BMP", "TIFF", "WEBP", "PPM"):
        data = saved(photo, kind)
        for kept in (0.3, 0.6, 0.97):
            with subtests.test(kind, kept=kept), pytest.raises(ImageError):
                open_image(data[: int(kept * len(data))])


def test_an_image_that_ends_in_black_or_grey_is_whole(subtests):
    """As those look that end early: bars, borders, and a grey wall."""
    for level in (0, 128):
        image = smooth(80, 64)
        image.paste((level, level, level), (0, 40, 64, 80))
        for kind in ("PNG", "JPEG", "TIFF"):
            with subtests.test(kind, level=level):
                found = np.asarray(open_image(saved(image, kind))).astype(int)
                assert np.abs(found - np.asarray(image)).mean() < 3
                assert open_image(saved(image.convert("L"), kind), channels=1).mode == "L"
    for mode in ("1", "P", "LA", "RGBA"):
        with subtests.test(mode):
            assert open_image(saved(Image.new(mode, (9, 7)), "PNG")).size == (9, 7)


def test_sides_and_their_ratio_are_bounded(subtests):
    for width, height in ((1, 33_000_000), (33_000_000, 1), (65_536, 100), (3, 3001)):
        with subtests.test(width=width, height=height), pytest.raises(ImageError, match=f"{width}x{height}"):
            read_header(png(width, height, 8, 0, b"\0\xff"))
    assert read_header(png(65_535, 66, 8, 0, b"")).width == 65_535
    assert open_image(saved(Image.new("L", (3, 3000), 9), "PNG"), channels=1).size == (3, 3000)
