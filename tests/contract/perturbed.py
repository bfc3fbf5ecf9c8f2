"""Another processor than this one: elementary functions and products of matrices that differ in their last bits.

Processors differ in what `exp`, `log` and linear algebra return. ``perturbed.py OUT CASE ...`` runs cases of
`test_digests` where each of these functions errs by up to four units in the last place besides, and each cost of a
calibration by a part in 10^9, and writes their digests to OUT. Whatever a release holds must stay the same.

Functions of NumPy, SciPy and `math` are replaced where they stand. Operators cannot be: an import hook writes the
modules of dpdist anew, with calls in place of ``a @ b`` and ``a ** b``. A result that is exact on every processor
stays: a product of integers below 2**53, a square, a power of two, a function that is 0.
"""

import ast
import importlib.machinery
import json
import math
import os
import re
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg
import scipy.special

ULPS = 4
COSTS = 1e-9

MATH = "exp exp2 expm1 log log2 log1p log10 pow sin cos tan sinh cosh tanh asinh atan erf erfc lgamma gamma cbrt"
NUMPY = "exp exp2 expm1 log log2 log1p log10 power float_power sin cos tan sinh cosh tanh arcsinh arctan logaddexp cbrt"
PRODUCTS = "dot matmul inner vdot tensordot einsum"
SPECIAL = "ndtr ndtri log_ndtr erf erfc erfinv expit logit gammaln betainc betaincinv chdtri chdtr logsumexp softmax"


def away(value: Any) -> Any:
    """The value, a few units in the last place away: by how many depends on its bits alone."""
    if isinstance(value, tuple):
        return type(value)(*map(away, value)) if hasattr(value, "_fields") else tuple(map(away, value))
    if isinstance(value, float):
        return _number_away(float(value))
    array = np.asarray(value)
    if array.dtype.kind == "c":
        return away(array.real) + 1j * away(array.imag)
    if array.dtype.kind != "f" or array.dtype.itemsize != 8:
        return value
    bits = np.ascontiguousarray(array).view(np.uint64).reshape(array.shape)
    mixed = (bits * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    steps = (mixed % np.uint64(2 * ULPS + 1)).astype(np.float64) - ULPS
    with np.errstate(all="ignore"):
        moved = np.where(np.isfinite(array) & (array != 0), array * (1 + steps * 2.0**-53), array)
    return moved.reshape(array.shape)[()]


def _number_away(value: float) -> float:
    """As `away`, in a tenth of the time."""
    if value == 0 or not math.isfinite(value):
        return value
    (bits,) = struct.unpack("Q", struct.pack("d", value))
    return float(value * (1 + ((bits * 0x9E3779B97F4A7C15 >> 32) % 2**32 % (2 * ULPS + 1) - ULPS) * 2.0**-53))


def _whole(*arrays: Any) -> bool:
    """Whether these are integers whose products a processor adds without error."""
    kinds = {array.dtype.kind for array in arrays}
    if not kinds <= {"f"}:
        return kinds <= set("biuO")
    return all((array == np.rint(array)).all() for array in arrays)


def product(left: Any, right: Any) -> Any:
    """``left @ right`` of another kernel of the linear algebra."""
    result = left @ right
    arrays = np.asarray(left), np.asarray(right)
    exact = _whole(*arrays) and bool((abs(arrays[0]) @ abs(arrays[1]) < 2.0**53).all())
    return result if exact or not isinstance(result, float | np.floating | np.ndarray) else away(result)


def raised(base: Any, exponent: Any) -> Any:
    """``base ** exponent`` of another C library."""
    result = base**exponent
    square = np.ndim(exponent) == 0 and exponent in (-1, 0, 1, 2)
    power_of_two = np.ndim(base) == 0 and base in (1, 2, 4) and isinstance(exponent, int | np.integer)
    return result if square or power_of_two else away(result)


class _Operators(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        name = {ast.MatMult: "product", ast.Pow: "raised"}.get(type(node.op))
        if name is None:
            return node
        call = ast.Call(ast.Name(f"__{name}__", ast.Load()), [node.left, node.right], [])
        return ast.copy_location(call, node)


_OPERATOR = re.compile(rb"@ |[\w)\]]\s*\*\*")
"""What every ``a @ b`` and ``a ** b`` holds as the formatter writes it; parsing all modules takes seconds."""


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        content = self.get_data(path)
        if not _OPERATOR.search(content):
            return super().get_code(fullname)
        tree = _Operators().visit(ast.parse(content, path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(__product__=product, __raised__=raised)
        super().exec_module(module)


class _Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] != "dpdist":
            return None
        spec = super().find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _moved(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        if options.get("out") is not None:
            options["out"][...] = away(options["out"])
            return options["out"]
        return away(result)

    for name in ("reduce", "accumulate", "outer"):
        if hasattr(function, name):
            setattr(call, name, _moved(getattr(function, name)))
    return call


def _moved_product(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        arrays = [np.asarray(one) for one in args if not isinstance(one, str | int)]
        return (function if _whole(*arrays) else _moved(function))(*args, **options)

    return call


def install() -> None:
    """Replace the functions; before dpdist is imported."""
    for names, module in ((MATH, math), (NUMPY, np), (SPECIAL, scipy.special)):
        for name in names.split():
            if hasattr(module, name):
                setattr(module, name, _moved(getattr(module, name)))
    for name in PRODUCTS.split():
        setattr(np, name, _moved_product(getattr(np, name)))
    for module in (np.linalg, scipy.linalg, np.fft, scipy.fft):
        for name in module.__all__:
            function = getattr(module, name)
            if callable(function) and not isinstance(function, type) and name[0].islower():
                setattr(module, name, _moved(function))
    sys.meta_path.insert(0, _Finder)
    from dpdist.privacy import accountant, calibrate

    search, exact = calibrate.least_scale, accountant._epsilons

    def least_scale(cost: Callable[[float], float], **options: Any) -> float:
        return search(lambda scale: cost(scale) * (1 + COSTS), **options)

    def epsilons(*args: Any) -> tuple[float, ...]:
        return tuple(value * (1 + COSTS) for value in exact(*args))

    accountant._epsilons = epsilons  # type: ignore[assignment]
    for module in [module for name, module in sys.modules.items() if name.startswith("dpdist")]:
        if getattr(module, "least_scale", None) is search:
            module.least_scale = least_scale  # type: ignore[attr-defined]
    calibrate.least_scale = least_scale  # type: ignore[assignment]


def main(out: str, names: list[str]) -> None:
    """Write the digests of the cases."""
    install()
    import test_digests

    data = Path(os.environ.get("DPDIST_DATA", test_digests.ROOT.parent / "shared" / "data"))
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = test_digests.released(name, data.joinpath, Path(folder))
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
