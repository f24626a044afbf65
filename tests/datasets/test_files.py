"""Missing folders and files are explained: what is needed, from where, and how to point to it."""

import pytest

from ppl_bnn import datasets

LOADERS = {
    "uci/concrete.npz": (lambda **k: datasets.uci("concrete", 0, **k), "yaringal"),
    "cifar-10-batches-bin/data_batch_1.bin": (datasets.cifar10, "cs.toronto.edu"),
    "cifar-100-binary/train.bin": (datasets.cifar100, "cs.toronto.edu"),
    "mnist/train-images-idx3-ubyte.gz": (datasets.mnist, "ossci-datasets"),
    "fashion_mnist/train-images-idx3-ubyte.gz": (datasets.fashion_mnist, "zalandoresearch"),
    "imdb.npz": (datasets.imdb, "ai.stanford.edu"),
    "Outcomes-a.txt": (datasets.physionet2012, "physionet.org"),
}


@pytest.fixture(params=LOADERS)
def loader(request, monkeypatch):
    monkeypatch.delenv("PPL_BNN_DATA", raising=False)
    return request.param, *LOADERS[request.param]


def test_no_folder_given(loader):
    file, load, origin = loader
    with pytest.raises(FileNotFoundError, match="environment variable PPL_BNN_DATA") as caught:
        load()
    assert "`folder=`" in str(caught.value) and origin in str(caught.value)
    assert file.rsplit("/")[-1] in str(caught.value)


def test_folder_that_does_not_exist(loader, tmp_path):
    _, load, origin = loader
    with pytest.raises(
        FileNotFoundError, match=r"there is no folder .*nowhere, which `folder`"
    ) as e:
        load(folder=tmp_path / "nowhere")
    assert origin in str(e.value)


def test_variable_that_names_no_folder(loader, tmp_path, monkeypatch):
    monkeypatch.setenv("PPL_BNN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"nowhere, which the environment variable PPL_BNN"):
        loader[1]()


def test_folder_without_the_file(loader, tmp_path):
    file, load, origin = loader
    with pytest.raises(FileNotFoundError) as caught:
        load(folder=tmp_path)
    for part in (file, str(tmp_path), origin, "`folder=`", "PPL_BNN_DATA"):
        assert part in str(caught.value)


def test_the_variable_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv("PPL_BNN_DATA", str(folder))
    assert len(datasets.uci("yacht").y_train) == 277
