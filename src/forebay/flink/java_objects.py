"""Java objects that PyFlink does not offer, for functions inside Flink's JVM: private fields, method handles,
and objects whose calls run without Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def java_field(of: Any, name: str) -> Any:
    """The value of a field of a Java object, private or inherited. Raises `LookupError` if there is none."""
    kind = of.getClass()
    while kind is not None:
        for each in kind.getDeclaredFields():
            if each.getName() == name:
                each.setAccessible(True)
                return each.get(of)
        kind = kind.getSuperclass()
    raise LookupError(f"Flink's {of.getClass().getName()} has no field {name}")


def java_method(of: Any, name: str, arguments: int | None = None) -> Any:
    """A handle of a public method bound to a Java object; `arguments` selects an overload. Raises
    `LookupError` if there is none."""
    return unbound_method(of.getClass(), name, arguments).bindTo(of)


def unbound_method(kind: Any, name: str, arguments: int | None = None, *, first: str | None = None) -> Any:
    """A handle of a public method of a Java class; its first argument is the object. `first`: type of the
    next argument, to select an overload."""
    for each in kind.getMethods():
        if each.getName() != name or arguments not in {None, each.getParameterCount()}:
            continue
        if first is None or each.getParameterTypes()[0].getName() == first:
            each.setAccessible(True)
            return find_class("java.lang.invoke.MethodHandles").publicLookup().unreflect(each)
    raise LookupError(f"Flink's {kind.getName()} has no method {name}")


def java_proxy(interface: str, handle: Any) -> Any:
    """A Java object with the one-method `interface` that calls `handle`."""
    return find_class("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(
        find_class("java.lang.Class").forName(interface), handle
    )


def java_items(iterable: Any) -> Iterator[Any]:
    """The items of a Java `Iterable`; a Java list arrives as a Python list."""
    if isinstance(iterable, list):
        yield from iterable
        return
    items = iterable.iterator()
    while items.hasNext():
        yield items.next()


def find_class(name: str) -> Any:
    from pemja import findClass  # type: ignore[import-untyped]  # loads only inside the JVM

    return findClass(name)
