"""The quantities of an algorithm file: of which kind each is, which section makes it, and who may take it."""

from collections.abc import Callable, Mapping

from stages.algorithms.kinds import GIVEN, Kind
from stages.algorithms.operator import Operator, providers
from stages.algorithms.spec import near


class Scope:
    """What the nodes of a file can take. Errors are made by `error`, from the place in the file and what is wrong."""

    def __init__(self, operators: Mapping[str, Operator], error: Callable[[str, str], ValueError]) -> None:
        """Nothing is known yet but the given quantities."""
        self.operators, self.error = operators, error
        self.kinds = dict(GIVEN)
        self.made_in: dict[str, str] = dict.fromkeys(GIVEN, "given")

    def declare(self, section: str, name: str, op: Operator) -> None:
        """A node of this name makes the operator's outputs."""
        for suffix, kind in op.gives.items():
            self.kinds[name + suffix] = kind
            self.made_in[name + suffix] = section

    def check_input(self, section: str, name: str, input_name: str, source: str | None, op: Operator) -> None:
        """`source` is there, is of the kind of the input, and is made before `section` needs it."""
        kind = op.inputs[input_name]
        if source is None:
            need = f"{op.name} needs the input {input_name!r} ({kind})"
            raise self.error(name, f"{need}; {self._who_gives(kind, input_name)}")
        self.check_known(name, f"the input {input_name!r}", source, kind)
        if section == "experience" and self.made_in[source] == "update":
            raise self.error(name, f"{input_name!r} takes {source}, but the experience runs before the update")
        found = self.kinds[source]
        if section == "update" and kind is Kind.GROUP:
            raise self.error(name, f"{input_name!r} is {kind}, and a micro-batch may hold a part of a group")
        if found is not kind:
            hint = "; over_tokens makes one of the other" if (found, kind) == (Kind.SAMPLE, Kind.TOKEN) else ""
            raise self.error(name, f"{input_name!r} takes what is {kind}, but {source} is {found}{hint}")

    def check_known(self, name: str, what: str, source: str, kind: Kind | None) -> None:
        """`source` is there; `kind` is what it should be, where only one will do."""
        if source in self.kinds:
            return
        node = source.partition(".")[0]
        outputs = [quantity for quantity in self.kinds if quantity.partition(".")[0] == node]
        if outputs:
            hint = f"; {node} gives {', '.join(outputs)}"
        else:
            hint = near(source, self.kinds)
            hint += f"; {self._who_gives(kind, source.rpartition('.')[2])}" if kind else ""
        raise self.error(name, f"nothing gives {source!r} for {what}{hint}")

    def _who_gives(self, kind: Kind, output: str) -> str:
        given = [name for name, its_kind in self.kinds.items() if its_kind is kind]
        here = f"of this kind the file has {', '.join(given)}" if given else "the file has nothing of this kind"
        return f"{here}, and these operators give it: {', '.join(providers(self.operators, kind, output)) or 'none'}"
