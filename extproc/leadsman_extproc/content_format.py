"""Does a template take a message's content as text, or as a list of parts.

Engines decide by looking at the template's program: one that loops over the content of a message
takes parts, any other takes text, into which the parts are joined. The answer changes the text of
every request that sends parts, so the engine's own rule is followed, with its blind spots.

The rule: take every name that stands for the messages (`messages`, whatever is assigned from it,
a namespace's field too), every loop variable over one of these (a message), and look for a loop
over `message.content`, over a name `content`, or over a macro's parameter that is given a
message's content.

Source: vLLM 0.33 renderers/hf.py, _detect_content_format.
"""

from collections.abc import Iterator

from jinja2 import nodes


def iterates_content(tree: nodes.Template) -> bool:
    """Say whether the template loops over a message's content."""
    messages = set(_message_names(tree))
    macros = list(tree.find_all(nodes.Macro))
    in_macros = {id(loop) for macro in macros for loop in macro.find_all(nodes.For)}
    for macro in macros:
        given = _parameters_given_content(tree, macro, messages)
        if any(_is_name(loop.iter, given) for loop in macro.find_all(nodes.For)):
            return True
    return any(
        any(_reads(loop.iter, message, "content") for message in messages)
        or (id(loop) not in in_macros and _is_name(loop.iter, {"content"}))
        for loop in tree.find_all(nodes.For)
    )


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """Loop variables that stand for one message."""
    lists = set(_aliases(tree, "messages"))
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, n) for n in lists):
            yield loop.target.name


def _aliases(tree: nodes.Template, name: str) -> list[str]:
    """Every name that is assigned from `name`, itself included, dotted where a namespace's."""
    found, waiting = [name], [name]
    while waiting:
        source = waiting.pop()
        for assign in tree.find_all(nodes.Assign):
            for alias in _assigned_from(assign, source):
                if alias not in found:
                    found.append(alias)
                    waiting.append(alias)
    return found


def _assigned_from(assign: nodes.Assign, source: str) -> Iterator[str]:
    target, value = assign.target, assign.node
    if isinstance(target, nodes.Name):
        if _reads(value, source):
            yield target.name
        elif isinstance(value, nodes.Call) and _is_name(value.node, {"namespace"}):
            for keyword in value.kwargs:
                if _reads(keyword.value, source):
                    yield f"{target.name}.{keyword.key}"
    elif isinstance(target, nodes.NSRef) and _reads(value, source):
        yield f"{target.name}.{target.attr}"


def _parameters_given_content(
    tree: nodes.Template, macro: nodes.Macro, messages: set[str]
) -> set[str]:
    """Collect the macro's parameters that some call gives a message's content."""

    def gives(value: nodes.Node) -> bool:
        return any(_reads(value, message, "content") for message in messages)

    names = [argument.name for argument in macro.args]
    given: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not _is_name(call.node, {macro.name}):
            continue
        given |= {name for name, value in zip(names, call.args, strict=False) if gives(value)}
        given |= {k.key for k in call.kwargs if k.key in names and gives(k.value)}
    return given


def _is_name(node: nodes.Node, names: set[str]) -> bool:
    return isinstance(node, nodes.Name) and node.name in names and node.ctx == "load"


def _reads(node: nodes.Node, name: str, key: str | None = None) -> bool:
    """Whether an expression reads `name` (or its `key`), filtered, tested or sliced as may be."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node is not None and _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    return _is_variable(node, name) if key is None else _is_field(node, name, key)


def _is_variable(node: nodes.Node, name: str) -> bool:
    if isinstance(node, nodes.Name):
        return node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getattr) and "." in name:
        base, _, attribute = name.rpartition(".")
        return node.attr == attribute and _is_variable(node.node, base)
    return False


def _is_field(node: nodes.Node, name: str, key: str) -> bool:
    if isinstance(node, nodes.Getitem):
        constant = isinstance(node.arg, nodes.Const) and node.arg.value == key
        return constant and _is_variable(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_variable(node.node, name)
