"""`dataclass` and `NamedTuple` as the library has them, made in a tenth of the time.

The library writes source text for every class and compiles it: 0.1 ms for a named tuple, 0.3 to 2 ms for a dataclass,
and 6 ms to import what does that. For the hundred and more that an agent knows before its first worker that was a
third of its work until then. Here all classes share a few functions, written once. The rules are the library's, less
what nobody uses: the fields of a dataclass are keywords, and no class is derived from another.

Type checkers see the library's own, and the library sees dataclasses: `dataclasses.fields`, `replace` and `asdict` take
them. Code that no agent needs before its first worker may as well use the library.
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
    from collections import _tuplegetter as getter  # what the library's are read by

    Protocol = object  # a contract is for type checkers and readers
    MISSING = object()

    class Field:
        """One field of a dataclass; `type` is the text of its annotation."""

        __slots__ = ("default", "default_factory", "name", "type")

        def __init__(self, name="", type="", default=MISSING, default_factory=MISSING):
            self.name, self.type, self.default, self.default_factory = name, type, default, default_factory

    def field(*, default_factory):
        """A field whose default is made afresh for every object."""
        return Field(default_factory=default_factory)

    # docs/internals/decisions/0032-classes-without-generated-source.md
    def dataclass(*, kw_only, frozen=False, eq=True, repr=True):
        """Give the class below the methods of a dataclass."""
        assert kw_only

        def made(cls):
            cls.__defaults__ = tuple((name, vars(cls).get(name, MISSING)) for name in cls.__annotations__)
            cls.__fields__ = tuple(_fields(cls))
            cls.__is_checked__ = hasattr(cls, "__post_init__")
            cls.__dataclass_fields__ = _ForTheLibrary()
            cls.__init__ = _begin
            if repr:
                cls.__repr__ = _repr
            if eq:
                cls.__eq__, cls.__hash__ = _is_equal, _hash if frozen else None
            if frozen:
                cls.__setattr__ = cls.__delattr__ = _refuse
            return cls

        return made

    def fields(value):
        """The fields of a dataclass, or of one of its objects."""
        return value.__fields__

    def replace(value, /, **changes):
        """A copy of the object with other values in some fields."""
        return type(value)(**{**vars(value), **changes})

    def _fields(cls):
        for name, default in cls.__defaults__:
            if isinstance(default, Field):
                delattr(cls, name)  # there is no default that all objects share
                yield Field(name, cls.__annotations__[name], default_factory=default.default_factory)
            else:
                yield Field(name, cls.__annotations__[name], default)

    def _begin(self, **given):
        for name, default in self.__defaults__:
            if name in given:
                _set(self, name, given.pop(name))
            elif default is MISSING:
                raise TypeError(f"{type(self).__name__} lacks {name}")
            else:
                _set(self, name, default.default_factory() if type(default) is Field else default)
        if given:
            raise TypeError(f"{type(self).__name__} has no {', '.join(given)}")
        if self.__is_checked__:
            self.__post_init__()

    _set = object.__setattr__

    def _repr(self):
        return _shown(self, vars(self))

    def _shown(self, values):
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    def _is_equal(self, other):
        return vars(self) == vars(other) if type(self) is type(other) else NotImplemented

    def _hash(self):
        return hash(tuple(vars(self).values()))

    def _refuse(self, name, *value):
        raise AttributeError(f"{name} of a {type(self).__name__} stays as it is")

    class _ForTheLibrary:
        """What the library finds where it keeps its own knowledge of a dataclass, made when it first asks."""

        def __get__(self, instance, cls):
            from dataclasses import field, make_dataclass

            def as_theirs(one):
                if one.default_factory is not MISSING:
                    return field(default_factory=one.default_factory)
                return field() if one.default is MISSING else field(default=one.default)

            rows = [(one.name, one.type, as_theirs(one)) for one in cls.__fields__]
            cls.__dataclass_fields__ = make_dataclass(cls.__name__, rows, kw_only=True).__dataclass_fields__
            return cls.__dataclass_fields__

    class _Rows(type):
        """Makes a tuple with names of a class that names its fields."""

        def __new__(meta, name, bases, namespace):
            names = tuple(namespace.get("__annotations__", ()))
            namespace["__slots__"] = ()
            namespace["__match_args__"] = namespace["_fields"] = names
            namespace["_field_defaults"] = defaults = {one: namespace[one] for one in names if one in namespace}
            namespace["_defaults"] = tuple(defaults.values())  # of the last fields
            namespace.update({one: getter(index, "") for index, one in enumerate(names)})
            return super().__new__(meta, name, bases, namespace)

    class NamedTuple(tuple, metaclass=_Rows):
        """The base of a class whose fields are a tuple's items."""

        def __new__(cls, /, *values, **named):
            if named:
                values = _in_order(cls, values, named)
            elif lacking := len(cls._fields) - len(values):
                values += cls._defaults[-lacking:] if 0 < lacking <= len(cls._defaults) else _wrong(cls)
            return tuple.__new__(cls, values)

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            return _shown(self, self._asdict())

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, /, **changes):
            values = tuple(map(changes.pop, self._fields, self))
            return _wrong(type(self)) if changes else tuple.__new__(type(self), values)

    def _in_order(cls, values, named):
        names = cls._fields[len(values) :]
        defaults = cls._field_defaults
        try:
            values += tuple([named.pop(name) if name in named else defaults[name] for name in names])
        except KeyError:
            _wrong(cls)
        return _wrong(cls) if named or len(values) > len(cls._fields) else values

    def _wrong(cls):
        raise TypeError(f"{cls.__name__} has the fields {', '.join(cls._fields)}, each once") from None
