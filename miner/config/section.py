"""Base of every section of the settings, and the walk over all that they declare."""

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """Base of all sections: immutable, and an undeclared key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def setting_fields(section: type[Section], prefix: str = "") -> dict[str, FieldInfo]:
    """The settings below a section, by the dotted names that a TOML file or an override has."""
    found: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            found |= setting_fields(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field
    return found
