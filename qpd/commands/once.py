"""Options count once: of two values the first would be lost without a word."""

from __future__ import annotations

from typing import Any

from typer import BadParameter
from typer.core import TyperCommand


class OnceCommand(TyperCommand):
    """A command that refuses an option given twice, unless it makes a list or is a flag."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `args`; raises BadParameter for an option that is given twice."""
        order: list[Any] = self.make_parser(ctx).parse_args(list(args))[2]
        for option in order:
            takes_one = option.param_type_name == "option" and option.nargs == 1
            if takes_one and not (option.multiple or option.is_flag) and order.count(option) > 1:
                raise BadParameter("is given twice", ctx, option)
        return super().parse_args(ctx, args)
