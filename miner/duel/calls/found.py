"""Calls as parsers find them and writers are given them."""

from collections.abc import Mapping
from typing import Any

Found = tuple[str, Any]
"""A tool's name and its arguments, decoded."""

Call = tuple[str, Mapping[str, Any]]
"""A tool's name and its arguments, to be written."""

Offered = Mapping[str, Mapping[str, Any]]
"""By the name of each offered tool, its parameters' JSON schemas by name."""
