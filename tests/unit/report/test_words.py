"""The legend of terms: those that stand in a text, and no others."""

import pytest

from autotune.report.words import legend


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        (
            "Use 1 x 16 with checkpointing, nll: 16 GiB of 24 GiB.",
            ["1 x 16", "checkpointing", "nll"],
        ),
        ("8 x 4, chunked_nll, no Liger kernels", ["8 x 4", "chunked_nll", "Liger kernels"]),
        ("unpacking, nll_of, FSDPX, 4xl40s", []),
        ("8x1 checkpointing", ["8x1", "checkpointing"]),
        ("p(oom) 0.02; ckpt", ["ckpt", "p(oom)"]),
        ("on 8 devices (ZeRO-3), MFU 41%", ["ZeRO-3", "MFU"]),
        ("FSDP2, packing, group_by_length", ["packing", "group_by_length", "FSDP2"]),
        ("padding-free, activation offloading", ["padding-free", "activation offloading"]),
        ("expandable segments", ["expandable segments"]),
        ("", []),
    ],
)
def test_a_term_is_explained_where_it_stands(text: str, terms: list[str]) -> None:
    assert sorted(term for term, _ in legend(text.split("; "))) == sorted(terms)
    assert all(0 < len(meaning) <= 80 and meaning[-1] != "." for _, meaning in legend([text]))


def test_a_term_is_explained_once_as_it_stands_first() -> None:
    (pair,) = legend(["8 x 4", "1 x 32", "8 x 4"])
    assert pair[0] == "8 x 4"
