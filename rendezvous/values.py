"""`dataclass` and `NamedTuple` as in the standard library, made in a tenth of the time.

The library generates source text for every class and compiles it: 0.1 ms for a named tuple, 0.3 to 2 ms for a
dataclass, and 6 ms to import the generator. For the hundred and more classes that an agent defines before its first
worker that was a third of its work until then. Here all classes share a few functions, written once. The rules are the
library's, without what is not used: the fields of a dataclass are keywords, and no class is derived from another.

Type checkers see the library's own, and the library accepts these classes: `dataclasses.fields`, `replace` and `asdict`
take them. Code that no agent needs before its first worker may as well use the library.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from dataclasses import MISSING as MISSING
    from dataclasses import Field as Field
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import fields as fields
    from dataclasses import replace as replace
    from typing import NamedTuple as NamedTuple
    from typing import Protocol as Protocol
else:
    from collections import _tuplegetter as getter  # which reads the fields of the library's named tuples

    Protocol = object  # a contract is for type checkers and readers
    MISSING = object()

    class Field:
        """One field of a dataclass; `type` is the text of its annotation."""

        __slots__ = ("default", "default_factory", "name", "type")

        def __init__(self, name="", type="", default=MISSING, default_factory=MISSING):
            self.name, self.type, self.default, self.default_factory = name, type, default, default_factory

    def field(*, default_factory):
        """Return a field whose default is made anew for every object."""
        return Field(default_factory=default_factory)

    # docs/internals/decisions/0032-msgspec-for-values-and-records.md
    def dataclass(*, kw_only, frozen=False, eq=True, repr=True):
        """Return a decorator that gives a class the methods of a dataclass."""
        assert kw_only

        def decorate(cls):
            cls.__defaults__ = tuple((name, vars(cls).get(name, MISSING)) for name in cls.__annotations__)
            cls.__fields__ = tuple(_fields(cls))
            cls.__is_checked__ = hasattr(cls, "__post_init__")
            cls.__dataclass_fields__ = _LibraryFields()
            cls.__init__ = _init
            if repr:
                cls.__repr__ = _repr
            if eq:
                cls.__eq__, cls.__hash__ = _is_equal, _hash if frozen else None
            if frozen:
                cls.__setattr__ = cls.__delattr__ = _raise_frozen
            return cls

        return decorate

    def fields(value):
        """Return the fields of a dataclass, or of one of its objects."""
        return value.__fields__

    def replace(value, /, **changes):
        """Return a copy of the object with other values in some fields."""
        return type(value)(**{**vars(value), **changes})

    def _fields(cls):
        for name, default in cls.__defaults__:
            if isinstance(default, Field):
                delattr(cls, name)  # there is no default that all objects share
                yield Field(name, cls.__annotations__[name], default_factory=default.default_factory)
            else:
                yield Field(name, cls.__annotations__[name], default)

    def _init(self, **values):
        for name, default in self.__defaults__:
            if name in values:
                _set(self, name, values.pop(name))
            elif default is MISSING:
                raise TypeError(f"{type(self).__name__} lacks {name}")
            else:
                _set(self, name, default.default_factory() if type(default) is Field else default)
        if values:
            raise TypeError(f"{type(self).__name__} has no {', '.join(values)}")
        if self.__is_checked__:
            self.__post_init__()

    _set = object.__setattr__

    def _repr(self):
        return _format(self, vars(self))

    def _format(self, values):
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def _is_equal(self, other):
        return vars(self) == vars(other) if type(self) is type(other) else NotImplemented

    def _hash(self):
        return hash(tuple(vars(self).values()))

    def _raise_frozen(self, name, *_):
        raise AttributeError(f"{name} of a {type(self).__name__} stays as it is")

    class _LibraryFields:
        """The attribute in which the library keeps the fields of a dataclass, made on its first access."""

        def __get__(self, instance, cls):
            from dataclasses import field, make_dataclass

            def to_library_field(item):
                if item.default_factory is not MISSING:
                    return field(default_factory=item.default_factory)
                return field() if item.default is MISSING else field(default=item.default)

            rows = [(item.name, item.type, to_library_field(item)) for item in cls.__fields__]
            cls.__dataclass_fields__ = make_dataclass(cls.__name__, rows, kw_only=True).__dataclass_fields__
            return cls.__dataclass_fields__

    class _NamedTupleMeta(type):
        """The metaclass that makes a named tuple of a class with annotated fields."""

        def __new__(meta, name, bases, namespace):
            names = tuple(namespace.get("__annotations__", ()))
            namespace["__slots__"] = ()
            namespace["__match_args__"] = namespace["_fields"] = names
            namespace["_field_defaults"] = defaults = {item: namespace[item] for item in names if item in namespace}
            namespace["_defaults"] = tuple(defaults.values())  # of the last fields
            namespace.update({item: getter(index, "") for index, item in enumerate(names)})
            return super().__new__(meta, name, bases, namespace)

    class NamedTuple(tuple, metaclass=_NamedTupleMeta):
        """The base of named tuples: classes whose fields are the items of a tuple."""

        def __new__(cls, /, *values, **named):
            if named:
                values = _match_fields(cls, values, named)
            elif missing := len(cls._fields) - len(values):
                values += cls._defaults[-missing:] if 0 < missing <= len(cls._defaults) else _raise_fields(cls)
            return tuple.__new__(cls, values)

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            return _format(self, self._asdict())

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, /, **changes):
            values = tuple(map(changes.pop, self._fields, self))
            return _raise_fields(type(self)) if changes else tuple.__new__(type(self), values)

    def _match_fields(cls, values, named):
        names = cls._fields[len(values) :]
        defaults = cls._field_defaults
        try:
            values += tuple([named.pop(name) if name in named else defaults[name] for name in names])
        except KeyError:
            _raise_fields(cls)
        return _raise_fields(cls) if named or len(values) > len(cls._fields) else values

    def _raise_fields(cls):
        raise TypeError(f"{cls.__name__} has the fields {', '.join(cls._fields)}, each once") from None
