"""Stand-ins for what SGLang's scheduling code imports and never calls on a CPU.

The model's layers, the kernels and the packages that only a GPU needs are replaced by objects that
answer anything, so that `sglang.srt.managers.scheduler` can be imported from its wheel alone.
"""

import importlib.abc
import importlib.machinery
import sys
import types

REPLACED = (
    "IPython",
    "compressed_tensors",
    "sglang.srt.layers",
    "sglang.kernels",
    "sglang.srt.models",
    "sglang.srt.configs",
    "sglang.srt.model_executor.model_runner",
)


class _Answers(type):
    """A class whose attributes, items and unions are stand-ins too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __getitem__(cls, key):
        return cls

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __iter__(cls):
        return iter(())


class StandIn(metaclass=_Answers):
    """Answers any call or attribute with another of itself; decorates by doing nothing."""

    def __init__(self, *given, **named):
        pass

    def __call__(self, *given, **named):
        is_decorated = len(given) == 1 and isinstance(given[0], type | types.FunctionType)
        return given[0] if is_decorated else StandIn()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __getitem__(self, key):
        return StandIn()

    def __mro_entries__(self, bases):
        return ()

    def __or__(self, other):
        return StandIn()

    __ror__ = __or__

    def __iter__(self):
        return iter(())

    def __bool__(self):
        return False

    def __add__(self, other):
        return self

    __radd__ = __sub__ = __rsub__ = __add__


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Answers(name, (StandIn,), {}) if name[0].isupper() else StandIn()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in REPLACED):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


def install():
    """Put the stand-ins before all real modules of their names."""
    sys.meta_path.insert(0, _Finder())
