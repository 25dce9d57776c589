from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import pytest

from forebay.errors import SettingError
from forebay.registry import Registry

GROUP = "forebay.numbers"
NUMBERS: Registry[int] = Registry(
    what="number",
    group=GROUP,
    own={"one": 1, "flags": "re:NOFLAG"},
    expected="a whole number",
    fits=lambda value: isinstance(value, int),
)
Install = Callable[..., None]


@pytest.fixture
def install(install_package: Install) -> Install:
    return functools.partial(install_package, GROUP)


def test_own_names_are_found_without_looking_at_packages() -> None:
    assert NUMBERS.names() == ["one", "flags"]
    assert NUMBERS.find("one") == 1
    assert NUMBERS.find("flags") == 0
    assert NUMBERS.find("two") is None
    assert NUMBERS.note() == ""


def test_a_package_adds_a_name_which_is_imported_when_it_is_asked_for(install: Install) -> None:
    install("more_numbers", "TWO = 2", version="3.1", two="TWO")
    assert NUMBERS.names() == ["one", "flags", "two"]
    assert NUMBERS.note() == "From installed packages: two (more_numbers 3.1)."
    assert NUMBERS.origin("two") == "more_numbers 3.1"
    assert NUMBERS.origin("one") is None
    assert "more_numbers" not in sys.modules
    assert NUMBERS.find("two") == 2


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def TWO(:", "SyntaxError"),
        ("THREE = 3", "AttributeError: module 'broken' has no attribute 'TWO'"),
    ],
)
def test_broken_extension_is_named_and_harms_no_other(install: Install, code: str, why: str) -> None:
    install("broken", code, two="TWO")
    install("fine", "FOUR = 4", four="FOUR")
    assert NUMBERS.names() == ["one", "flags", "four", "two"]
    assert (NUMBERS.find("one"), NUMBERS.find("four")) == (1, 4)
    with pytest.raises(SettingError) as told:
        NUMBERS.find("two")
    assert str(told.value).startswith(
        "the number 'two' of the package broken 1.0 cannot be loaded from broken:TWO: "
    )
    assert why in str(told.value)
    assert str(told.value).endswith("; fix or uninstall the package")


def test_extension_of_another_shape_is_rejected(install: Install) -> None:
    install("shapeless", "class TWO: pass\nTEXT = 'x'", two="TWO", three="TEXT")
    with pytest.raises(
        SettingError, match=r"'two' .*shapeless:TWO to be a whole number, found the class TWO"
    ):
        NUMBERS.find("two")
    with pytest.raises(SettingError, match="found a value of type str; fix the entry point in group"):
        NUMBERS.find("three")


def test_own_names_cannot_be_taken_and_wrong_names_are_left_out(install: Install) -> None:
    install("taker", "ONE = 100", **{"one": "ONE", "p.yaml": "ONE", "../x": "ONE"})
    assert NUMBERS.find("one") == 1
    assert NUMBERS.names() == ["one", "flags"]
    assert NUMBERS.find("p.yaml") is None
    assert NUMBERS.note() == (
        "Ignored, because the name is taken or not allowed: 'one' (taker 1.0), 'p.yaml' (taker 1.0), "
        "'../x' (taker 1.0)."
    )


def test_a_name_of_two_packages_is_refused_with_both(install: Install) -> None:
    install("left", "TWO = 2", two="TWO")
    install("right", "TWO = 2", two="TWO")
    with pytest.raises(
        SettingError, match=r"offered by two packages, left 1\.0 and right 1\.0: uninstall one"
    ):
        NUMBERS.find("two")
