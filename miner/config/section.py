"""Base of every section of the settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: immutable, and a key nobody declared is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
