"""Models: the port, two wire adapters, and the registry of providers."""

from hames.models.encoder import Encoder
from hames.models.plugin import MODELS, Models
from hames.models.port import Dialect, Model, ModelStream, Provider, Settings

__all__ = ["MODELS", "Dialect", "Encoder", "Model", "ModelStream", "Models", "Provider", "Settings"]
