"""Java objects that PyFlink does not offer, for functions inside Flink's JVM: private fields, handles of
methods, and objects whose calls run without Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def java_field(of: Any, name: str) -> Any:
    """The value of a field of a Java object, private or not, of its class or of one that it inherits from.

    Raises `LookupError` if there is no such field.
    """
    kind = of.getClass()
    while kind is not None:
        for each in kind.getDeclaredFields():
            if each.getName() == name:
                each.setAccessible(True)
                return each.get(of)
        kind = kind.getSuperclass()
    raise LookupError(f"Flink's {of.getClass().getName()} has no field {name}")


def java_method(of: Any, name: str, arguments: int | None = None) -> Any:
    """A handle of a public method of a Java object, bound to it; `arguments` tells overloads apart.

    Raises `LookupError` if there is no such method.
    """
    return unbound_method(of.getClass(), name, arguments).bindTo(of)


def unbound_method(kind: Any, name: str, arguments: int | None = None, *, first: str | None = None) -> Any:
    """A handle of a public method of a Java class, whose first argument is the object. `first`: the type of
    the first argument that follows, if there are several such methods."""
    for each in kind.getMethods():
        if each.getName() != name or arguments not in {None, each.getParameterCount()}:
            continue
        if first is None or each.getParameterTypes()[0].getName() == first:
            each.setAccessible(True)
            return find_class("java.lang.invoke.MethodHandles").publicLookup().unreflect(each)
    raise LookupError(f"Flink's {kind.getName()} has no method {name}")


def java_proxy(interface: str, handle: Any) -> Any:
    """An object with the Java `interface`, of one method, which calls `handle`."""
    return find_class("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(
        find_class("java.lang.Class").forName(interface), handle
    )


def java_items(iterable: Any) -> Iterator[Any]:
    """The items of a Java `Iterable`, which is a list of Python's if it is a list of Java's."""
    if isinstance(iterable, list):
        yield from iterable
        return
    items = iterable.iterator()
    while items.hasNext():
        yield items.next()


def find_class(name: str) -> Any:
    """A Java class, by its name."""
    from pemja import findClass  # type: ignore[import-untyped]  # loads only inside the JVM

    return findClass(name)
