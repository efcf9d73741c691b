"""The trainer of Towhee: replace ``towhee`` by ``stoker.dialects.towhee`` in a script."""

from stoker.dialects.aliases import arrange

arrange(
    __name__,
    {
        "data": "",
        "data.dataset": "",
        "data.dataset.dataset": "datasets",
        "data.dataset.image_datasets": "datasets",
        "models": "",
        "models.vit": "vit",
        "operator.base": "operator",
        "ops": "ops",
        "ops.image_embedding": "ops",
        "trainer.callback": "callback",
        "trainer.metrics": "metrics",
        "trainer.modelcard": "modelcard",
        "trainer.optimization": "",
        "trainer.optimization.adafactor": "optimizers",
        "trainer.optimization.adamw": "optimizers",
        "trainer.optimization.optimization": "schedules",
        "trainer.scheduler": "schedules",
        "trainer.trainer": "trainer",
        "trainer.training_config": "training_config",
        "trainer.utils": "",
        "trainer.utils.file_utils": "packages",
        "trainer.utils.layer_freezer": "layer_freezer",
        "trainer.utils.plot_utils": "plot_utils",
        "trainer.utils.trainer_utils": "trainer_utils",
        "trainer.utils.visualization": "plot_utils",
        "utils": "",
        "utils.log": "log",
        "utils.matplotlib_utils": "packages",
        "utils.pil_utils": "packages",
    },
)

from stoker.dialects.towhee.datasets import dataset  # noqa: E402

__all__ = ["dataset"]
