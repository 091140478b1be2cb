"""What a tracker's process tells where it fails."""

from autotune.trackers.worker import without_passwords


def test_an_address_in_a_fault_names_nobody() -> None:
    fault = "API request to https://me:secret@host/api failed; see https://host/x@y"
    assert (
        without_passwords(fault)
        == "API request to https://...@host/api failed; see https://host/x@y"
    )
