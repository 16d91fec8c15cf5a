"""Base of every section of the settings."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: immutable, and an undeclared key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
