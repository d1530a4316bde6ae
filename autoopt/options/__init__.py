"""The options of a run: what they are called, how their values are read, and where they are given."""

from __future__ import annotations

from autoopt.options.options import OPTIONS as OPTIONS
from autoopt.options.options import Options as Options
from autoopt.options.options import check_names as check_names
from autoopt.options.options import make_options as make_options
from autoopt.options.options import parse as parse
from autoopt.options.parsers import DEFAULT_RISKS as DEFAULT_RISKS
from autoopt.options.parsers import parse_choices as parse_choices
from autoopt.options.parsers import parse_percent as parse_percent
