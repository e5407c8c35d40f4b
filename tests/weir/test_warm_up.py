"""Every module with kernels is found, and only those."""

import sys

from weir import warm_up


def test_modules_with_kernels_are_found_and_no_others():
    names = set(warm_up.kernel_modules())
    assert "weir.key_kernels" in names
    assert not {"weir.errors", "weir.warm_up", "weir.config.models"} & names


def test_warming_up_imports_them_and_says_so(capsys):
    assert warm_up.main() == 0
    printed = capsys.readouterr().out
    for name in warm_up.kernel_modules():
        assert name in sys.modules
        assert f"kernels of {name}: " in printed
