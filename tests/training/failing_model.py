"""A model that cannot be written once it is trained, while a file is beside its checkpoints."""

from pathlib import Path

import tensorflow as tf

from twml_ops import models


@tf.keras.utils.register_keras_serializable("tests")
class Failing(tf.keras.layers.Layer):
    """Returns its input. Writing it fails if its folder has the last file."""

    def __init__(self, folder="", last="", **options):
        super().__init__(**options)
        self.folder, self.last = folder, last

    def call(self, inputs):
        return inputs

    def get_config(self):
        folder = Path(self.folder)
        if (folder / "fail").exists() and any(folder.glob(f"*.checkpoints/{self.last}")):
            raise OSError("the disk is gone")
        return {**super().get_config(), "folder": self.folder, "last": self.last}


def build(schema, dataset, *, folder: str, last: str = "ckpt-*step-40"):
    """Builds a logistic model that ends in such a layer."""
    model = models.logistic(schema, dataset)
    return tf.keras.Model(model.input, Failing(folder, last)(model.output))
