"""A plugin of mypy for what the stubs of Amaranth 0.5 cannot say.

``Signal(layout)`` is a view whose fields have names, a memory's rows have the type of its shape,
and the message of an assertion may be left out. `mypy` loads this file (pyproject.toml).
"""

from collections.abc import Callable

from mypy.maptype import map_instance_to_supertype
from mypy.nodes import ArgKind
from mypy.plugin import FunctionContext, FunctionSigContext, Plugin
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    Type,
    TypeOfAny,
    get_proper_type,
)

VIEW = "amaranth.lib.data.View"
CASTABLE = "amaranth.hdl._ast.ShapeCastable"
PROPERTIES = [f"amaranth.hdl._ast.{name}" for name in ("Assert", "Assume", "Cover")]


def signal(context: FunctionContext) -> Type:
    """A view for a layout, the structure for a class of ``data.Struct``, otherwise a ``Signal``."""
    shapes = context.arg_types[0] if context.arg_types else []
    for shape in map(get_proper_type, shapes):
        if isinstance(shape, Instance):
            castable = next((base for base in shape.type.mro if base.fullname == CASTABLE), None)
            if castable:
                return map_instance_to_supertype(shape, castable).args[0]
        if isinstance(shape, CallableType) and shape.is_type_obj():
            made = get_proper_type(shape.ret_type)
            if isinstance(made, Instance) and made.type.has_base(VIEW):
                return made
        if isinstance(shape, AnyType):
            return AnyType(TypeOfAny.special_form)
    return context.default_return_type


def memory(context: FunctionContext) -> Type:
    """A memory whose rows have any shape, where the stubs' overloads do not settle on one."""
    made = get_proper_type(context.default_return_type)
    if isinstance(made, Instance):
        return made.copy_modified(args=[AnyType(TypeOfAny.special_form) for _ in made.args])
    return made


def optional_message(context: FunctionSigContext) -> FunctionLike:
    kinds = [
        ArgKind.ARG_OPT if name == "message" else kind
        for name, kind in zip(
            context.default_signature.arg_names, context.default_signature.arg_kinds, strict=True
        )
    ]
    return context.default_signature.copy_modified(arg_kinds=kinds)


class AmaranthTypes(Plugin):
    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        return {"amaranth.hdl._ast.Signal": signal, "amaranth.lib.memory.Memory": memory}.get(
            fullname
        )

    def get_function_signature_hook(
        self, fullname: str
    ) -> Callable[[FunctionSigContext], FunctionLike] | None:
        return optional_message if fullname in PROPERTIES else None


def plugin(version: str) -> type[Plugin]:
    return AmaranthTypes
