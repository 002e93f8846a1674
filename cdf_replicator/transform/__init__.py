"""Turn rows of Delta into change frames: filter, key, guard, projection, reduction."""
