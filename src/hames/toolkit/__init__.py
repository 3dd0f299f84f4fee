"""The tools that come with Hames; each module is a plugin of its own."""
