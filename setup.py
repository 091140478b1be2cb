"""The one thing pyproject.toml cannot say: the top-level folder `search_spaces` is installed inside
the package, while every package under `autotune/` is still found by itself."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["autotune", "autotune.*"]), "autotune.search_spaces"],
    package_dir={"autotune.search_spaces": "search_spaces"},
    package_data={"autotune.search_spaces": ["*.yaml"]},
)
