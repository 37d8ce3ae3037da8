"""The tree of errors is drawn as it is."""

from __future__ import annotations

from tidelog import errors


def test_the_tree_in_the_docstring_has_every_error_below_its_base() -> None:
    drawn: dict[str, str] = {}
    above: list[tuple[int, str]] = [(0, "TidelogError")]
    for line in (errors.__doc__ or "").splitlines():
        before, branch, text = line.partition("── ")
        if branch:
            while above[-1][0] >= len(before):
                above.pop()
            name = text.split()[0]
            drawn[name] = above[-1][1]
            above.append((len(before), name))
    assert drawn == {
        each.__name__: each.__bases__[0].__name__
        for each in vars(errors).values()
        if isinstance(each, type)
        and issubclass(each, errors.TidelogError)
        and each is not errors.TidelogError
    }
