"""Composition files of a test."""

from __future__ import annotations

import pytest

from hames.compose import Layer, compose


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes files into the current directory and composes them in order."""
    monkeypatch.chdir(tmp_path)

    def make(*texts, **named):
        for name, text in named.items():
            (tmp_path / name.replace("_yaml", ".yaml").replace("_py", ".py")).write_text(text)
        layers = []
        for number, text in enumerate(texts, 1):
            path = tmp_path / f"layer{number}.yaml"
            path.write_text(text)
            layers.append(Layer(path))
        return compose(layers)

    return make
