"""Images: official files written from real ones and read back, and files that are not whole."""

import gzip
import struct

import numpy as np
import pytest

from ppl_bnn import datasets

CIFAR_NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()


def write_idx(path, values):
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    content = header + values.tobytes()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


def write_mnist(folder, arrays, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        write_idx(folder / f"{prefix}-images-idx3-ubyte{suffix}", arrays[f"x_{part}"])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{suffix}", arrays[f"y_{part}"])
    return folder


def records(x, *labels):
    """Images as the binary version of CIFAR stores them: labels, then the planes of colours."""
    planes = [x[..., colour].reshape(len(x), -1) for colour in range(3)]
    return np.column_stack([*labels, *planes]).astype(np.uint8).tobytes()


def write_cifar10(folder, arrays):
    folder.mkdir(parents=True, exist_ok=True)
    x, y = arrays["x_train"], arrays["y_train"]
    for i, rows in enumerate(np.array_split(np.arange(len(y)), 5), start=1):
        (folder / f"data_batch_{i}.bin").write_bytes(records(x[rows], y[rows]))
    (folder / "test_batch.bin").write_bytes(records(arrays["x_test"], arrays["y_test"]))
    return folder


@pytest.fixture
def cifar(raw):
    return raw("images/cifar10_small.npz")


@pytest.fixture
def digits(raw):
    arrays = raw("images/mnist_small.npz")
    return {name: values[:500] for name, values in arrays.items()}


class TestCifar10:
    def test_small_set(self, folder, cifar):
        data = datasets.cifar10(folder, small=True, prepare=False)
        assert data.x_train.shape == (2000, 32, 32, 3) and data.x_test.shape == (1000, 32, 32, 3)
        np.testing.assert_array_equal(data.x_train, cifar["x_train"])
        np.testing.assert_array_equal(data.train_rows, cifar["train_index"])
        assert data.classes == tuple(CIFAR_NAMES)
        np.testing.assert_array_equal(np.bincount(data.y_train), 200)

    def test_scaled_as_in_the_paper(self, folder, cifar):
        data = datasets.cifar10(folder, small=True)
        expected = (cifar["x_train"] / 255 - np.array([0.49, 0.48, 0.44])) / 0.2
        assert data.x_train.dtype == np.float32
        np.testing.assert_allclose(data.x_train, expected, atol=3e-7)

    def test_official_files(self, tmp_path, cifar):
        place = write_cifar10(tmp_path / "cifar-10-batches-bin", cifar)
        (place / "batches.meta.txt").write_text("\n".join(CIFAR_NAMES) + "\n\n")
        for given in (tmp_path, place):  # the folder, or the one inside it
            data = datasets.cifar10(given, prepare=False, check=False)
            np.testing.assert_array_equal(data.x_train, cifar["x_train"])
            np.testing.assert_array_equal(data.y_train, cifar["y_train"])
            np.testing.assert_array_equal(data.x_test, cifar["x_test"])
            assert data.classes == tuple(CIFAR_NAMES)

    def test_wrong_size(self, tmp_path, cifar):
        place = write_cifar10(tmp_path, cifar)
        with pytest.raises(ValueError, match=r"data_batch_1.bin .*1,229,200 bytes.*30,730,000"):
            datasets.cifar10(place)
        (place / "test_batch.bin").write_bytes(b"\0" * 3000)
        with pytest.raises(ValueError, match=r"test_batch.bin .*3,000 bytes are no whole number"):
            datasets.cifar10(place, check=False)

    def test_wrong_checksum(self, tmp_path):
        (tmp_path / "data_batch_1.bin").write_bytes(b"\1" * 30_730_000)
        expected = (
            "MD5 of its content is .*, expected 5dd7e06a14cb22eb9f671a540d1b7c25.*check=False"
        )
        with pytest.raises(ValueError, match=expected):
            datasets.cifar10(tmp_path)

    def test_missing_batch(self, tmp_path, cifar):
        (write_cifar10(tmp_path, cifar) / "data_batch_4.bin").unlink()
        with pytest.raises(FileNotFoundError, match=r"data_batch_4.bin is missing, though others"):
            datasets.cifar10(tmp_path, check=False)

    def test_the_small_set_is_not_taken_for_the_whole(self, folder, tmp_path, cifar):
        (tmp_path / "images").mkdir()
        np.savez(tmp_path / "images" / "cifar10_small.npz", **cifar)
        with pytest.raises(FileNotFoundError, match=r"cifar10_small.npz; `small=True` reads that"):
            datasets.cifar10(tmp_path)
        np.savez(tmp_path / "images" / "cifar10.npz", **cifar)
        with pytest.raises(ValueError, match=r"cifar10.npz .*2,000 train.* expected 50,000"):
            datasets.cifar10(tmp_path)


def test_cifar100(tmp_path, cifar):
    """The official layout, with made-up labels: the superclass comes first, then the class."""
    fine = {part: np.arange(len(cifar[f"y_{part}"])) % 100 for part in ("train", "test")}
    for part, labels in fine.items():
        path = tmp_path / "cifar-100-binary" / f"{part}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(records(cifar[f"x_{part}"], labels // 5, labels))
    names = [f"fine{k}" for k in range(100)]
    (path.parent / "fine_label_names.txt").write_text("\n".join(names))
    data = datasets.cifar100(tmp_path, prepare=False, check=False)
    np.testing.assert_array_equal(data.x_train, cifar["x_train"])
    np.testing.assert_array_equal(data.y_test, fine["test"])
    assert data.classes == tuple(names)
    coarse = datasets.cifar100(tmp_path, prepare=False, check=False, coarse=True)
    np.testing.assert_array_equal(coarse.y_train, fine["train"] // 5)
    assert len(coarse.classes) == 20
    with pytest.raises(ValueError, match=r"train.bin .*6,148,000 bytes, expected 153,700,000"):
        datasets.cifar100(tmp_path)


class TestMnist:
    @pytest.mark.parametrize(("suffix", "place"), [("", "mnist"), (".gz", "MNIST/raw"), ("", ".")])
    def test_official_files(self, suffix, place, tmp_path, digits):
        write_mnist(tmp_path / place, digits, suffix)
        data = datasets.mnist(tmp_path, prepare=False, check=False)
        np.testing.assert_array_equal(data.x_train, digits["x_train"])
        np.testing.assert_array_equal(data.y_test, digits["y_test"])

    def test_scaled_as_in_the_paper(self, folder, digits):
        data = datasets.mnist(folder, small=True)
        expected = (digits["x_test"][..., None] / 255 - 0.1307) / 0.3081
        assert data.x_train.shape == (5000, 28, 28, 1) and data.x_test.dtype == np.float32
        np.testing.assert_allclose(data.x_test[:500], expected, atol=3e-7)
        np.testing.assert_array_equal(np.bincount(data.y_train), 500)

    @pytest.mark.slow
    def test_all_images_have_the_published_checksums(self, folder, raw, tmp_path):
        arrays = raw("images/mnist.npz")
        from_archive = datasets.mnist(folder, prepare=False)
        from_files = datasets.mnist(write_mnist(tmp_path, arrays), prepare=False)
        assert from_files.x_train.shape == (60_000, 28, 28)
        assert from_files.origin != from_archive.origin
        np.testing.assert_array_equal(from_files.x_train, from_archive.x_train)
        np.testing.assert_array_equal(from_files.y_test, arrays["y_test"])

        path = tmp_path / "t10k-images-idx3-ubyte"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"t10k.*, expected 2646ac647ad5339dbf082846283269ea"):
            datasets.mnist(tmp_path)

        (tmp_path / "images").mkdir()
        changed = arrays | {"y_test": np.roll(arrays["y_test"], 1)}
        np.savez(tmp_path / "images" / "mnist.npz", **changed)
        path.with_name("train-images-idx3-ubyte").unlink()
        with pytest.raises(ValueError, match=r"mnist.npz .*expected 27ae3e4e09519cfbb04c329615203"):
            datasets.mnist(tmp_path)

    def test_wrong_checksum(self, tmp_path, digits):
        write_mnist(tmp_path, digits)
        with pytest.raises(ValueError, match="expected 6bbc9ace898e44ae57da46a324031adb"):
            datasets.mnist(tmp_path)

    def test_truncated_gzip(self, tmp_path, digits):
        path = write_mnist(tmp_path, digits, ".gz") / "t10k-labels-idx1-ubyte.gz"
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ValueError, match=r"t10k-labels.*gz is corrupt.*does not decompress"):
            datasets.mnist(tmp_path, check=False)
        path.write_bytes(b"<html>404</html>")
        with pytest.raises(ValueError, match=r"t10k-labels.*gz is corrupt.*does not decompress"):
            datasets.mnist(tmp_path, check=False)

    def test_truncated_idx(self, tmp_path, digits):
        path = write_mnist(tmp_path, digits) / "train-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ValueError, match=r"found 391,999 bytes after the header, expected"):
            datasets.mnist(tmp_path, check=False)

    def test_images_for_labels(self, tmp_path, digits):
        folder = write_mnist(tmp_path, digits)
        (folder / "train-images-idx3-ubyte").replace(folder / "train-labels-idx1-ubyte")
        write_idx(folder / "train-images-idx3-ubyte", digits["x_train"])
        with pytest.raises(
            ValueError, match=r"train-labels.*begins with 00000803, which is no IDX"
        ):
            datasets.mnist(tmp_path, check=False)

    def test_missing_labels(self, tmp_path, digits):
        (write_mnist(tmp_path, digits) / "train-labels-idx1-ubyte").unlink()
        with pytest.raises(FileNotFoundError, match=r"neither train-labels-idx1-ubyte nor .*gz"):
            datasets.mnist(tmp_path, check=False)

    def test_other_numbers_of_images_and_labels(self, tmp_path, digits):
        folder = write_mnist(tmp_path, digits)
        write_idx(folder / "t10k-labels-idx1-ubyte", digits["y_test"][:-1])
        with pytest.raises(ValueError, match="500 images, but there are 499 labels"):
            datasets.mnist(tmp_path, check=False)


def test_fashion_mnist(folder, tmp_path, raw):
    arrays = raw("images/fashion_mnist_small.npz")
    data = datasets.fashion_mnist(folder, small=True, prepare=False)
    np.testing.assert_array_equal(data.x_train, arrays["x_train"])
    assert data.classes[9] == "Ankle boot"
    write_mnist(tmp_path / "fashion_mnist", arrays)
    again = datasets.fashion_mnist(tmp_path, prepare=False, check=False)
    np.testing.assert_array_equal(again.x_test, arrays["x_test"])
    with pytest.raises(ValueError, match="expected f4a8712d7a061bf5bd6d2ca38dc4d50a"):
        datasets.fashion_mnist(tmp_path)
